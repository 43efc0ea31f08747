// Command hinit-web connects hinit to other systems: it serves the status page and the metrics, and forwards logs. It is the
// program behind hinit web, hinit metrics and hinit forward. It is a client of hinit's control socket like any other, and needs
// no privileges.
//
// It owns one goroutine, which waits for signals.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"hinit/internal/cmdline"
	"hinit/internal/metrics"
)

// verb is one of the commands of this program.
type verb struct {
	cmdline.Verb
	run func(context.Context, *cmdline.Call) int
}

func verbs() []verb { return []verb{serveVerb, metricsVerb, forwardVerb} }

func main() {
	ctx, stop := cmdline.Interruptible()
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	name := strings.Join(args[:min(len(args), 1)], "")
	switch {
	case slices.Contains([]string{"help", "-h", "--help", "-help"}, name):
		help(out)
		return cmdline.Done
	case strings.HasPrefix(name, "-"):
		args, name = append([]string{"web"}, args...), "web"
	case name == "serve":
		name = "web"
	}
	for _, v := range verbs() {
		if v.Name == name {
			return v.run(ctx, cmdline.NewCall(v.Verb, args[1:], out, errs))
		}
	}
	help(errs)
	return cmdline.WrongUsage
}

func help(w io.Writer) {
	fmt.Fprint(w, "hinit-web shows hinit to the outside.\n\n")
	for _, v := range verbs() {
		fmt.Fprintf(w, "  hinit %-10s %s\n", v.Name, v.Summary)
	}
	fmt.Fprint(w, "\nhinit COMMAND --help tells more.\n")
}

var metricsVerb = verb{cmdline.Verb{
	Program: "hinit", Name: "metrics", Args: "[--max-services N]",
	Summary: "print metrics of hinit and its services once, as text for Prometheus",
	Help: `For a textfile collector: hinit metrics >x.prom.tmp && mv x.prom.tmp x.prom. hinit web serves the same at /metrics.
When hinit does not answer it prints hinit_up 0 and ends with 4.`,
}, printMetrics}

func printMetrics(ctx context.Context, c *cmdline.Call) int {
	most := c.Flags.Int("max-services", metrics.MaxServices, "metrics for at most `N` services")
	if _, code, ok := c.Parse(0, 0); !ok {
		return code
	}
	h := newSource(c.Env)
	if err := metrics.Write(c.Out, newCollector(ctx, h, *most)); err != nil {
		return c.Failed("print the metrics", err)
	}
	return c.Failed("ask hinit", h.Reach())
}

func newCollector(ctx context.Context, h *source, most int) *metrics.Collector {
	return &metrics.Collector{Source: h, Proc: h.procPath, Sent: h.forwardCounters, MaxServices: most, Context: func() context.Context { return ctx }}
}
