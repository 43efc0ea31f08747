package tools

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/version"
)

func manVerb(table func() []cli.Verb) cli.Verb {
	return cli.Verb{
		Name: "man", Args: "[VERB] [-o DIR]", TakesVerbs: true,
		Help: `Without VERB the page of hinit itself. To read it: hinit man status | man -l -
With -o all pages are written into the directory, as hinit.1, hinit-status.1 and so on.`,
		Run: func(t *cli.Terminal, c *cli.Call) int {
			dir := c.Flags.String("o", "", "write all pages into `DIR`")
			words, code, ok := c.Parse(t, 0, 1)
			if !ok {
				return code
			}
			all := table()
			if *dir != "" {
				if len(words) > 0 {
					return t.Fail(cmdline.WrongUsage, "cannot write the manual: -o writes all pages; leave out %q", words[0])
				}
				return manuals(t, *dir, all)
			}
			if len(words) == 0 {
				manual(t.Raw(), all)
				return cmdline.Done
			}
			var names []string
			for _, v := range all {
				if v.Name == words[0] {
					manualOf(t.Raw(), describe(v))
					return cmdline.Done
				}
				names = append(names, v.Name)
			}
			return t.Fail(cmdline.WrongUsage, "cannot print the manual of %q: hinit has no such command%s", words[0], cmdline.DidYouMean(words[0], names))
		},
	}
}

// manuals writes all pages into a directory.
func manuals(t *cli.Terminal, dir string, all []cli.Verb) int {
	write := func(name string, page func(io.Writer)) error {
		var b strings.Builder
		page(&b)
		return os.WriteFile(filepath.Join(dir, name+".1"), []byte(b.String()), 0o644)
	}
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = write("hinit", func(w io.Writer) { manual(w, all) })
	}
	for _, v := range all {
		if err == nil {
			err = write("hinit-"+v.Name, func(w io.Writer) { manualOf(w, describe(v)) })
		}
	}
	if err != nil {
		return t.Failed("write the manual", err)
	}
	fmt.Fprintf(t.Out, "%d pages are in %s\n", len(all)+1, dir)
	return cmdline.Done
}

// roff is text as troff takes it literally.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

func manHead(w io.Writer, page string) {
	fmt.Fprintf(w, ".\\\" Generated from the verb table by hinit man.\n.TH %s 1 \"\" \"hinit %s\" \"hinit\"\n", strings.ToUpper(roff(page)), roff(version.Get().Version))
}

// manual is hinit(1).
func manual(w io.Writer, all []cli.Verb) {
	manHead(w, "hinit")
	fmt.Fprint(w, ".SH NAME\nhinit \\- PID 1 and supervisor for containers that host many agent profiles\n")
	fmt.Fprint(w, ".SH SYNOPSIS\n.B hinit\n.I COMMAND\n[\\fIARGUMENT\\fR...]\n")
	fmt.Fprint(w, ".SH DESCRIPTION\nCalled as init or tini, hinit is the init: it reaps every orphan, supervises services and runs the container's CMD.\n"+
		"Its other commands ask the running one over its control socket, as root or as the agent's user.\n"+
		".PP\nNAME is a profile (coder), a service (dashboard) or a slot (gateway\\-coder).\n.SH COMMANDS\n")
	for _, v := range all {
		fmt.Fprintf(w, ".TP\n\\fBhinit %s\\fR\n%s\n", roff(v.Name), roff(v.Summary))
	}
	manCodes(w)
	fmt.Fprint(w, ".SH FILES\n.TP\n.I /etc/hinit/hinit.yaml\nthe configuration, or the file that HINIT_CONFIG names\n"+
		".TP\n.I /run/hinit/control.sock\nthe control socket; HINIT_RUNTIME_DIR moves it\n.SH SEE ALSO\n")
	for i, v := range all {
		comma := ","
		if i == len(all)-1 {
			comma = ""
		}
		fmt.Fprintf(w, ".BR hinit\\-%s (1)%s\n", roff(v.Name), comma)
	}
}

// manualOf is the page of one verb.
func manualOf(w io.Writer, d described) {
	manHead(w, "hinit-"+d.Name)
	fmt.Fprintf(w, ".SH NAME\nhinit\\-%s \\- %s\n.SH SYNOPSIS\n.B hinit %s\n%s\n", roff(d.Name), roff(d.Summary), roff(d.Name), roff(d.Args))
	switch {
	case d.Outside:
		fmt.Fprintf(w, ".SH DESCRIPTION\nA program beside hinit has this command. Its options: hinit %s \\-\\-help\n", roff(d.Name))
	case d.Help != "":
		fmt.Fprint(w, ".SH DESCRIPTION\n")
		for line := range strings.SplitSeq(d.Help, "\n") {
			if line == "" {
				fmt.Fprintln(w, ".PP")
				continue
			}
			fmt.Fprintln(w, roff(line))
			if strings.Contains(line, "  ") || strings.HasSuffix(line, ".") { // a row of a table, or the end of a thought
				fmt.Fprintln(w, ".br")
			}
		}
	}
	if len(d.flags) > 0 {
		fmt.Fprint(w, ".SH OPTIONS\n")
	}
	for _, f := range d.flags {
		value := ""
		if f.value != "" {
			value = ` \fI` + roff(f.value) + `\fR`
		}
		fmt.Fprintf(w, ".TP\n\\fB%s\\fR%s\n%s\n", roff(f.name), value, roff(f.usage))
	}
	manCodes(w)
	fmt.Fprint(w, ".SH SEE ALSO\n.BR hinit (1)\n")
}

func manCodes(w io.Writer) {
	fmt.Fprint(w, ".SH EXIT STATUS\n")
	for code, what := range []string{"done", "failed", "wrong usage", "a named service is not up", "hinit is not reachable", "not allowed", "no such profile or service"} {
		fmt.Fprintf(w, ".TP\n.B %d\n%s\n", code, what)
	}
}
