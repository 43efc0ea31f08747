package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/control/show"
	"hinit/internal/imports"
)

// format is the value of a flag that names what is imported.
type format string

func (*format) choices() []string { return imports.Formats }

// String implements flag.Value.
func (f *format) String() string { return "" }

// Set implements flag.Value.
func (f *format) Set(text string) error {
	if !slices.Contains(imports.Formats, text) {
		return errors.New("expected " + strings.Join(imports.Formats, ", ") + didYouMean(text, imports.Formats))
	}
	*f = format(text)
	return nil
}

func importVerb() verb {
	return verb{
		name: "import", args: "FILE|DIR [--from FORMAT] [-o FILE]", summary: "write hinit.yaml from the configuration of another supervisor",
		help: `It takes supervisord.conf, process-compose.yaml, a layer of pebble or a directory of them, and service directories or
source directories of s6. hinit.yaml goes to standard output; what could not be taken over, or works in another way, is
named on standard error, a line each: the file, the line, the key and what to do instead. The .env beside a
process-compose.yaml becomes an env_file of each service. What hinit.yaml can't say is left out, so that the result is
always a configuration for hinit run; hinit config check --run FILE checks it again.`,
		run: importRun,
	}
}

func importRun(t *terminal, c *call) int {
	var from format
	c.flags.Var(&from, "from", "what it is, a `FORMAT`: supervisord, process-compose, pebble or s6; it is found out where this is missing")
	file := c.flags.String("o", "", "write this `FILE`, which must not exist")
	words, code, ok := c.parse(t, 1, 1)
	if !ok {
		return code
	}
	doing := fmt.Sprintf("import %q", words[0])
	result, err := imports.Convert(words[0], string(from))
	for _, n := range result.Notes {
		fmt.Fprintln(t.err, show.Line(n.String()))
	}
	if err != nil {
		return t.failed(doing, err)
	}
	if *file == "" {
		if _, err := t.out.Write(result.YAML); err != nil {
			return t.failed(doing, err)
		}
		return exitDone
	}
	f, err := os.OpenFile(*file, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err == nil {
		_, err = f.Write(result.YAML)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return t.failed(doing, err)
	}
	fmt.Fprintf(t.out, "wrote %s from %s; %d notes above; to try it: hinit run -c %s\n", show.Line(*file), result.Format, len(result.Notes), show.Line(*file))
	return exitDone
}
