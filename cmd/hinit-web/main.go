// Command hinit-web connects hinit to other systems: it serves the status page and the metrics, and forwards logs. It is the
// program behind `hinit web`, `hinit metrics` and `hinit forward`. It is an ordinary client of hinit's control socket, and needs
// no privileges.
//
// It owns one goroutine, which waits for signals.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/boot/lookup"
	"hinit/internal/cmdline"
	"hinit/internal/fsutil"
	"hinit/internal/metrics"
	"hinit/internal/proc"
	"hinit/internal/procusage"
	"hinit/internal/web"
)

// verb is one verb of this program, such as web or metrics.
type verb struct {
	cmdline.Verb
	run func(context.Context, *cmdline.Call) int
}

func verbs() []verb { return []verb{serveVerb, metricsVerb, forwardVerb} }

func main() {
	ctx, stop := cmdline.InterruptibleContext()
	code := cmdline.RunWithOutput(func(out io.Writer) int { return run(ctx, os.Args[1:], out, os.Stderr) })
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, errs io.Writer) int {
	name := strings.Join(args[:min(len(args), 1)], "")
	switch {
	case slices.Contains([]string{"help", "-h", "--help", "-help"}, name):
		help(out)
		return cmdline.ExitDone
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
	return cmdline.ExitUsage
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
		return c.ReportError("print the metrics", err)
	}
	return c.ReportError("ask hinit", h.CheckConnection())
}

func newCollector(ctx context.Context, h *hinitSource, limit int) *metrics.Collector {
	return &metrics.Collector{
		Source: h, ProcPath: h.procPath, ForwardCounters: h.forwardCounters, MaxServices: limit, Now: time.Now, Context: func() context.Context { return ctx },
	}
}

// hinitSource is the connection to this container's hinit. It also finds the data that this program reads without asking hinit:
// /proc, the logs, and the forwarder's counters.
type hinitSource struct {
	*dial.Client
	env func(string) (string, bool)
}

func newSource(env func(string) (string, bool)) *hinitSource {
	return &hinitSource{cmdline.ClientForThisContainer(env), env}
}

// requireToken returns an error if the page must not be served without a token, because isolated profiles could read the logs
// of others on it. Without a hinit it returns nil, because the page is empty.
func (h *hinitSource) requireToken() error {
	if h.CheckConnection() != nil && h.Socket() == "" {
		return nil
	}
	list, err := cmdline.ReadIsolatedFile(h.Socket())
	switch {
	case err != nil:
		return fmt.Errorf("isolated profiles may be able to read the logs of others on it, and there is no token: %w; or %s", err, tokenAdvice)
	case list != "":
		return errors.New("isolated profiles could read the logs of others on it, and there is no token; " + tokenAdvice)
	}
	return nil
}

// procPath returns the path of a /proc with hinit's processes, or "".
func (h *hinitSource) procPath(i client.Init) string { return procusage.FindProc(h.Socket(), i.PID) }

// logReader returns the identity with which this program opens hinit's log files.
func (h *hinitSource) logReader(i client.Init) (*fsutil.Actor, error) {
	return lookup.LogReader(i.ServicesFile != "", h.env)
}

// siblingPrograms returns functions that run hinit-sandbox and hinit-kanban, which report the sandboxes and the task boards.
// These programs are in the directory of this program, and run as the same user. As root, this program gets no function for
// boards, because root must not open the agent's files.
func siblingPrograms(env func(string) (string, bool)) web.Programs {
	b := web.Programs{Sandboxes: func(ctx context.Context, home string) ([]byte, error) {
		if _, err := os.Stat(dial.SandboxSocket(env)); err != nil {
			return nil, fs.ErrNotExist
		}
		return programOutput(ctx, home, "hinit-sandbox", "ls", "--json")
	}}
	if os.Geteuid() != 0 {
		b.Boards = func(ctx context.Context, home string) ([]byte, error) {
			return programOutput(ctx, home, "hinit-kanban", "stats", "--all")
		}
	}
	return b
}

// maxOutput is the maximum size in bytes of the output that programOutput reads.
const maxOutput = 8 << 20

// programOutput runs one of hinit's programs for the data directory home, and returns its output. If the program is not
// installed, the error is [fs.ErrNotExist].
func programOutput(ctx context.Context, home, name string, args ...string) ([]byte, error) {
	program, err := cmdline.SiblingProgram(name)
	if err != nil {
		return nil, err
	}
	env := os.Environ()
	if home != "" {
		env = proc.SetEnv(env, map[string]string{"HERMES_HOME": home})
	}
	out, errs, x, err := proc.Output(ctx, proc.Spec{Path: program, Argv: append([]string{name}, args...), Env: env}, maxOutput)
	switch {
	case err != nil:
		return nil, err
	case ctx.Err() != nil:
		return nil, fmt.Errorf("cannot ask %s: it does not answer", name)
	case x.Code != 0 || x.Signal != 0:
		why, _, _ := bytes.Cut(errs, []byte{'\n'})
		return nil, fmt.Errorf("cannot ask %s: %s", name, why)
	}
	return out, nil
}
