// Command hinit-web shows hinit to the outside: a status page, metrics, and logs that are sent elsewhere. hinit web, hinit metrics
// and hinit forward are this program. It asks hinit over the control socket as any client does, and needs no privileges.
//
// It owns the goroutine that waits for signals.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"hinit/internal/control/show"
)

// The exit codes, as those of hinit.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// verb is one command.
type verb struct {
	name, args, summary, help string
	run                       func(context.Context, *call) int
}

func verbs() []verb {
	return []verb{serveVerb(), metricsVerb(), forwardVerb()}
}

// call is a verb with its arguments.
type call struct {
	verb     verb
	words    []string
	flags    *flag.FlagSet
	out, err io.Writer
	env      func(string) (string, bool)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	if len(args) > 0 {
		switch args[0] {
		case "help", "-h", "--help", "-help":
			help(out)
			return exitDone
		}
		for _, v := range verbs() {
			if v.name == args[0] || v.name == "web" && (args[0] == "serve" || strings.HasPrefix(args[0], "-")) {
				if v.name == "web" && strings.HasPrefix(args[0], "-") {
					args = append([]string{"web"}, args...)
				}
				c := &call{verb: v, words: args[1:], flags: flag.NewFlagSet(v.name, flag.ContinueOnError), out: out, err: errs, env: os.LookupEnv}
				c.flags.SetOutput(io.Discard)
				return v.run(ctx, c)
			}
		}
	}
	help(errs)
	return exitUsage
}

func help(w io.Writer) {
	fmt.Fprint(w, "hinit-web shows hinit to the outside.\n\n")
	for _, v := range verbs() {
		fmt.Fprintf(w, "  hinit %-10s %s\n", v.name, v.summary)
	}
	fmt.Fprint(w, "\nhinit COMMAND --help tells more.\n")
}

// parse reads the flags. When it returns false the verb ends with the code.
func (c *call) parse() (code int, ok bool) {
	err := c.flags.Parse(c.words)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintf(c.out, "usage: hinit %s\n\n%s\n\n%s\n\n", strings.TrimSpace(c.verb.name+" "+c.verb.args), c.verb.summary, c.verb.help)
		c.flags.VisitAll(func(f *flag.Flag) {
			name, text := flag.UnquoteUsage(f)
			fmt.Fprintf(c.out, "  %-24s %s\n", strings.TrimSpace("--"+f.Name+" "+name), text)
		})
		return exitDone, false
	case err == nil && c.flags.NArg() > 0:
		err = fmt.Errorf("unexpected %q", c.flags.Arg(0))
	}
	if err != nil {
		return c.fail(exitUsage, "cannot run hinit %s: %v; see: hinit %s --help", c.verb.name, err, c.verb.name), false
	}
	return exitDone, true
}

// fail prints why something did not work, in one line, and returns the code.
func (c *call) fail(code int, format string, args ...any) int {
	text := fmt.Sprintf(format, args...)
	fmt.Fprintln(c.err, show.Line(strings.ReplaceAll(text, "\n", "; ")))
	return code
}

// failed is fail with the exit code that the kind of error has.
func (c *call) failed(doing string, err error) int {
	code := show.Code(err)
	if strings.HasPrefix(err.Error(), "cannot ") {
		return c.fail(code, "%v", err)
	}
	return c.fail(code, "cannot %s: %v", doing, err)
}
