// Command hinit-import converts the configuration of another supervisor to hinit.yaml; it is the program behind `hinit import`.
// It does not connect to a running hinit, and owns no goroutine.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/imports"
	"hinit/internal/wholefile"
)

func main() {
	os.Exit(cmdline.RunWithOutput(func(out io.Writer) int { return run(os.Args[1:], out, os.Stderr) }))
}

var importVerb = cmdline.Verb{
	Program: "hinit", Name: "import", Args: "FILE|DIR [--from FORMAT] [-o FILE]", Action: "import a configuration",
	Summary: "write hinit.yaml from the configuration of another supervisor",
	Help: `It takes supervisord.conf, process-compose.yaml, a compose file of Docker, a layer of pebble or a
directory of them, a unit of systemd or a directory of them, and service directories or source
directories of s6. hinit.yaml goes to standard output. Standard error names each part that is left out
or works in another way, a line each: file, line, key and what to do instead. The .env beside a
process-compose.yaml becomes an env_file of each service.`,
}

// run converts one configuration and returns the exit code. show.Line escapes the texts of the files, because the files are not
// trusted.
func run(args []string, out, errs io.Writer) int {
	c := cmdline.NewCall(importVerb, args, out, errs)
	from := ""
	c.Flags.Func("from", "the `FORMAT` of the file: supervisord, process-compose, compose, pebble, s6 or systemd; it is found out where this is missing", func(text string) error {
		if !slices.Contains(imports.Formats, text) {
			return errors.New("expected " + strings.Join(imports.Formats, ", ") + cmdline.DidYouMean(text, imports.Formats))
		}
		from = text
		return nil
	})
	file := c.Flags.String("o", "", "write this `FILE`, which must not exist; only its owner may read it")
	words, code, ok := c.Parse(1, 1)
	if !ok {
		return code
	}
	doing := fmt.Sprintf("import %q", words[0])
	result, err := imports.Convert(words[0], from)
	for _, n := range result.Notes {
		fmt.Fprintln(errs, show.EscapeLine(n.String()))
	}
	if err != nil {
		return c.ReportError(doing, err)
	}
	if *file == "" {
		_, err := out.Write(result.YAML)
		return c.ReportError(doing, err)
	}
	if err := wholefile.WriteNew(*file, result.YAML); err != nil {
		return c.ReportError(doing, err)
	}
	fmt.Fprintf(out, "wrote %s from %s; notes above: %d; to try it: hinit run -c %s\n", show.EscapeLine(*file), result.Format, len(result.Notes), show.EscapeLine(*file))
	return cmdline.ExitDone
}
