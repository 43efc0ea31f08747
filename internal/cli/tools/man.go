package tools

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/version"
)

// manPages has the pages that internal/gendocs writes.
//
//go:embed man
var manPages embed.FS

func manVerb(table func() []cli.Verb) cli.Verb {
	return cli.Verb{
		Name: "man", Summary: "print a manual page, for man -l - or a directory of man pages", Args: "[VERB] [-o DIR]", TakesVerbs: true,
		Run: func(t *cli.Terminal, c *cli.Call) int {
			dir := c.Flags.String("o", "", "write all pages into `DIR`")
			words, code, ok := c.Parse(t, 0, 1)
			if !ok {
				return code
			}
			if *dir != "" {
				if len(words) > 0 {
					return t.Fail(cmdline.WrongUsage, "cannot write the manual: -o writes all pages; leave out %q", words[0])
				}
				return manuals(t, *dir)
			}
			page, err := manual(strings.Join(append([]string{"hinit"}, words...), "-") + ".1")
			if err == nil {
				_, err = t.Raw().Write(page)
				return t.Failed("print the manual", err)
			}
			var names []string
			for _, v := range table() {
				names = append(names, v.Name)
			}
			return t.Fail(cmdline.WrongUsage, "cannot print the manual of %q: hinit has no such command%s", words[0], cmdline.DidYouMean(words[0], names))
		},
	}
}

// manual returns the manual page in the file name, with the version filled in.
func manual(name string) ([]byte, error) {
	page, err := manPages.ReadFile("man/" + name)
	return []byte(strings.ReplaceAll(string(page), "@VERSION@", strings.ReplaceAll(version.Get().Version, "-", `\-`))), err
}

// manuals writes all pages to a directory.
func manuals(t *cli.Terminal, dir string) int {
	pages, err := manPages.ReadDir("man")
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	for _, p := range pages {
		if err != nil {
			break
		}
		page, _ := manual(p.Name()) // never fails for a page in the list
		err = os.WriteFile(filepath.Join(dir, p.Name()), page, 0o644)
	}
	if err != nil {
		return t.Failed("write the manual", err)
	}
	fmt.Fprintf(t.Out, "%d pages are in %s\n", len(pages), dir)
	return cmdline.Done
}
