package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"hinit/internal/cmdline"
	"hinit/internal/version"
)

func manVerb(table func() []verb) verb {
	return verb{
		name: "man", args: "[VERB] [-o DIR]", summary: "print a manual page, for man -l - or a directory of man pages", takesVerbs: true,
		help: `Without VERB the page of hinit itself. To read it: hinit man status | man -l -
With -o all pages are written into the directory, as hinit.1, hinit-status.1 and so on.`,
		run: func(t *terminal, c *call) int {
			dir := c.flags.String("o", "", "write all pages into `DIR`")
			words, code, ok := c.parse(t, 0, 1)
			if !ok {
				return code
			}
			all := table()
			if *dir != "" {
				if len(words) > 0 {
					return t.fail(exitUsage, "cannot write the manual: -o writes all pages; leave out %q", words[0])
				}
				return t.manuals(*dir, all)
			}
			if len(words) == 0 {
				manual(t.raw(), all)
				return exitDone
			}
			var names []string
			for _, v := range all {
				if v.name == words[0] {
					manualOf(t.raw(), describe(v))
					return exitDone
				}
				names = append(names, v.name)
			}
			return t.fail(exitUsage, "cannot print the manual of %q: hinit has no such command%s", words[0], cmdline.DidYouMean(words[0], names))
		},
	}
}

// manuals writes all pages into a directory.
func (t *terminal) manuals(dir string, all []verb) int {
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
			err = write("hinit-"+v.name, func(w io.Writer) { manualOf(w, describe(v)) })
		}
	}
	if err != nil {
		return t.failed("write the manual", err)
	}
	fmt.Fprintf(t.out, "%d pages are in %s\n", len(all)+1, dir)
	return exitDone
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
func manual(w io.Writer, all []verb) {
	manHead(w, "hinit")
	fmt.Fprint(w, ".SH NAME\nhinit \\- PID 1 and supervisor for containers that host many agent profiles\n")
	fmt.Fprint(w, ".SH SYNOPSIS\n.B hinit\n.I COMMAND\n[\\fIARGUMENT\\fR...]\n")
	fmt.Fprint(w, ".SH DESCRIPTION\nCalled as init or tini, hinit is the init: it reaps every orphan, supervises services and runs the container's CMD.\n"+
		"Its other commands ask the running one over its control socket, as root or as the agent's user.\n"+
		".PP\nNAME is a profile (coder), a service (dashboard) or a slot (gateway\\-coder).\n.SH COMMANDS\n")
	for _, v := range all {
		fmt.Fprintf(w, ".TP\n\\fBhinit %s\\fR\n%s\n", roff(v.name), roff(v.summary))
	}
	manCodes(w)
	fmt.Fprint(w, ".SH FILES\n.TP\n.I /etc/hinit/hinit.yaml\nthe configuration, or the file that HINIT_CONFIG names\n"+
		".TP\n.I /run/hinit/control.sock\nthe control socket; HINIT_RUNTIME_DIR moves it\n.SH SEE ALSO\n")
	for i, v := range all {
		comma := ","
		if i == len(all)-1 {
			comma = ""
		}
		fmt.Fprintf(w, ".BR hinit\\-%s (1)%s\n", roff(v.name), comma)
	}
}

// manualOf is the page of one verb.
func manualOf(w io.Writer, d described) {
	manHead(w, "hinit-"+d.name)
	fmt.Fprintf(w, ".SH NAME\nhinit\\-%s \\- %s\n.SH SYNOPSIS\n.B hinit %s\n%s\n", roff(d.name), roff(d.summary), roff(d.name), roff(d.args))
	switch {
	case d.outside:
		fmt.Fprintf(w, ".SH DESCRIPTION\nA program of its own, hinit\\-%s, which is installed beside hinit. Its commands: hinit %s \\-\\-help\n", roff(d.name), roff(d.name))
	case d.help != "":
		fmt.Fprint(w, ".SH DESCRIPTION\n")
		for line := range strings.SplitSeq(d.help, "\n") {
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
