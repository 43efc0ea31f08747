package tools

import (
	"embed"
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
		Name: "man", Summary: "print a manual page, for man -l - or a directory of man pages", Args: "[VERB] [-o DIR]", TakesVerbs: true,
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

// manuals writes all pages to a directory.
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

// roff escapes text so that troff prints it literally.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

//go:embed hinit.1 verb.1
var manPages embed.FS

// manPage writes a page with its marks replaced. marks has pairs of a mark and its text.
func manPage(w io.Writer, file string, marks ...string) {
	page, _ := manPages.ReadFile(file) // never fails, because the page is embedded
	marks = append(marks, "@VERSION@", roff(version.Get().Version))
	_, _ = strings.NewReplacer(marks...).WriteString(w, string(page)) // a write to memory or to a closed pipe: nothing to report
}

// manual writes hinit(1).
func manual(w io.Writer, all []cli.Verb) {
	var commands strings.Builder
	others := make([]string, len(all))
	for i, v := range all {
		fmt.Fprintf(&commands, ".TP\n\\fBhinit %s\\fR\n%s\n", roff(v.Name), roff(v.Summary))
		others[i] = fmt.Sprintf(".BR hinit\\-%s (1)", roff(v.Name))
	}
	manPage(w, "hinit.1", "@COMMANDS@\n", commands.String(), "@OTHERS@", strings.Join(others, ",\n"))
}

// manualOf writes the page of one verb.
func manualOf(w io.Writer, d described) {
	var body strings.Builder
	switch {
	case d.Outside:
		fmt.Fprintf(&body, ".SH DESCRIPTION\nA program beside hinit has this command. Its options: hinit %s \\-\\-help\n", roff(d.Name))
	case d.Help != "":
		fmt.Fprint(&body, ".SH DESCRIPTION\n")
		for line := range strings.SplitSeq(d.Help, "\n") {
			if line == "" {
				fmt.Fprintln(&body, ".PP")
				continue
			}
			fmt.Fprintln(&body, roff(line))
			if strings.Contains(line, "  ") || strings.HasSuffix(line, ".") { // a row of a table, or the end of a sentence
				fmt.Fprintln(&body, ".br")
			}
		}
	}
	if len(d.flags) > 0 {
		fmt.Fprint(&body, ".SH OPTIONS\n")
	}
	for _, f := range d.flags {
		value := ""
		if f.value != "" {
			value = ` \fI` + roff(f.value) + `\fR`
		}
		fmt.Fprintf(&body, ".TP\n\\fB%s\\fR%s\n%s\n", roff(f.name), value, roff(f.usage))
	}
	manPage(w, "verb.1", "@TITLE@", strings.ToUpper(roff(d.Name)), "@NAME@", roff(d.Name), "@SUMMARY@", roff(d.Summary), "@ARGS@", roff(d.Args), "@BODY@\n", body.String())
}
