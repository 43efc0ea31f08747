package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/control/show"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/internal/procstat"
)

// The exit codes of every verb.
const (
	exitDone       = cmdline.Done
	exitFailed     = cmdline.Failed
	exitUsage      = cmdline.WrongUsage
	exitNotUp      = cmdline.NotUp
	exitNotAllowed = cmdline.NotAllowed
	exitUnknown    = cmdline.Unknown
)

// terminal is where a verb reads and writes.
type terminal struct {
	in       *os.File
	out, err io.Writer // for people: see escaped
	screen   bool      // out is a terminal
	notes    *os.File  // the terminal that err is, for a line that is drawn over; nil when it is none
	env      func(string) (string, bool)
}

func newTerminal() *terminal {
	t := &terminal{in: os.Stdin, out: escaped{os.Stdout}, err: escaped{os.Stderr}, screen: proc.IsTerminal(os.Stdout), env: os.LookupEnv}
	if proc.IsTerminal(os.Stderr) {
		t.notes = os.Stderr
	}
	return t
}

// escaped writes text that people read, in whole lines or cells, without anything that a terminal would obey but line ends. A name
// that the agent can choose needs [show.Line] or [show.Name] besides, or it could have a line of its own.
type escaped struct{ io.Writer }

func (w escaped) Write(text []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, show.Text(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// raw is where a verb writes bytes as they are.
func (t *terminal) raw() io.Writer {
	if w, ok := t.out.(escaped); ok {
		return w.Writer
	}
	return t.out
}

// fail prints the one line that says what did not work and returns the exit code.
func (t *terminal) fail(code int, format string, args ...any) int {
	fmt.Fprintf(t.err, format+"\n", args...)
	return code
}

// failed prints, in one line, what could not be done and why, and returns the exit code that the kind of error has. Without an error it
// returns exitDone.
func (t *terminal) failed(doing string, err error) int {
	if err == nil {
		return exitDone
	}
	message := strings.ReplaceAll(err.Error(), "\n", "; ")
	if said := (*client.Error)(nil); errors.As(err, &said) {
		message = "cannot " + doing + ": " + strings.ReplaceAll(said.Message, "\n", "; ")
		if said.Kind == client.KindUnknown {
			message += t.nameMeant(said.Message)
		}
	} else if !strings.HasPrefix(message, "cannot ") {
		message = "cannot " + doing + ": " + message
	}
	return t.fail(show.Code(err), "%s", message)
}

// verb is one command of the command line.
type verb struct {
	name, args, summary, help string
	doing                     string // completes "cannot …"; the name where it is empty
	run                       func(*terminal, *call) int
	outside                   bool // it is a program of its own
	takesVerbs                bool // its words are verbs
}

// verbs is the command line, in the order in which help shows it.
func verbs(be Init) []verb {
	table := func() []verb { return verbs(be) }
	return []verb{
		initVerb(be), runVerb(be), statusVerb(), explainVerb(), treeVerb(),
		lifecycleVerb("start", "want it up, and wait until it is"),
		lifecycleVerb("stop", "want it down, and wait until everything of it is gone"),
		lifecycleVerb("restart", "end the running process and start it again"),
		runOnceVerb(), profileVerb(), topologyVerb(), logsVerb(), eventsVerb(), notifyVerb(), waitVerb(), reloadVerb(), reexecVerb(), configVerb(), doctorVerb(), healthcheckVerb(), versionVerb(),
		seedVerb(), demoVerb(), bundleVerb(table), completionVerb(table), manVerb(table),
		companionVerb("import", "write hinit.yaml from the configuration of another supervisor"),
		companionVerb("sandbox", "run an agent's commands in containers that last"),
		companionVerb("kanban", "the task board: list, create, dispatch"),
		companionOf("hinit-web", []string{"web"}, "web", "serve the status page and metrics"),
		companionOf("hinit-web", []string{"forward"}, "forward", "send logs and events to where they are collected"),
		companionOf("hinit-web", []string{"metrics"}, "metrics", "print metrics of hinit and its services, for Prometheus"),
		companionVerb("top", "look after all services on one screen"),
	}
}

// call is a verb with its arguments: flags may stand anywhere before a lone "--".
type call struct {
	verb  verb
	raw   []string
	flags *flag.FlagSet
}

// newCall is a call of a verb with these words.
func newCall(v verb, words []string) *call {
	return &call{verb: v, raw: words, flags: cmdline.Flags(v.name)}
}

// parse reads the flags that the verb has defined on c.flags and returns the other words. When it returns false the verb
// ends with the code: help was asked for, or the words are wrong.
func (c *call) parse(t *terminal, atLeast, atMost int) (names []string, code int, ok bool) {
	return c.described().Parse(c.flags, c.raw, atLeast, atMost, t.out, t.err)
}

func (c *call) described() cmdline.Verb {
	return cmdline.Verb{Program: "hinit", Name: c.verb.name, Args: c.verb.args, Summary: c.verb.summary, Help: c.verb.help, Doing: c.doing()}
}

// doing says what a verb does, for messages that begin with "cannot".
func (c *call) doing() string { return cmp.Or(c.verb.doing, c.verb.name) }

// Main runs the verb that the arguments name, and returns the exit code of the process. be is for the verbs that are no client: they make
// this process an init.
func Main(args []string, be Init) int { return newTerminal().run(args, be) }

func (t *terminal) run(args []string, be Init) int {
	if len(args) == 0 {
		help(t.err, be)
		return exitUsage
	}
	switch args[0] {
	case "help", "-h", "--help", "-help":
		help(t.out, be)
		return exitDone
	case "--version":
		args = []string{"version"}
	}
	for _, v := range verbs(be) {
		if v.name == args[0] {
			return v.run(t, newCall(v, args[1:]))
		}
	}
	var names []string
	for _, v := range verbs(be) {
		names = append(names, v.name)
	}
	if near := config.Nearest(args[0], names); near != "" {
		return t.fail(exitUsage, "cannot run %q: hinit has no such command; did you mean: hinit %s", args[0], near)
	}
	return t.fail(exitUsage, "cannot run %q: hinit has no such command; see: hinit help", args[0])
}

func help(w io.Writer, be Init) {
	fmt.Fprint(w, "hinit is PID 1 and supervisor for containers that host many agent profiles.\n\n")
	for _, v := range verbs(be) {
		fmt.Fprintf(w, "  hinit %-12s %s\n", v.name, v.summary)
	}
	fmt.Fprint(w, `
NAME is a profile (coder), a service (dashboard) or a slot (gateway-coder).
hinit COMMAND --help tells more. Called as init or tini, hinit is the init.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a named service is not up,
4 hinit not reachable, 5 not allowed, 6 no such profile or service.
`)
}

// Dial connects to the running init, for what is called by another name than hinit. It blocks as [client.Dial] does.
func Dial() (*client.Client, error) { return newTerminal().dial() }

// dial connects to the running init.
func (t *terminal) dial() (*client.Client, error) {
	return client.Dial(t.sockets())
}

// ask is the answer of the running init to one question, which may take as long as limit.
func ask[T any](t *terminal, limit time.Duration, question func(context.Context, *client.Client) (T, error)) (answer T, err error) {
	cl, err := t.dial()
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return question(ctx, cl)
}

// status is the status of the running init, or of the named services.
func (t *terminal) status(limit time.Duration, names ...string) (client.Status, error) {
	return ask(t, limit, func(ctx context.Context, cl *client.Client) (client.Status, error) { return cl.Status(ctx, names...) })
}

// dialPause is the time between two attempts to reach an init that has just been started.
const dialPause = 20 * time.Millisecond

// dialSoon is dial, for a command that may have come before the init answers: while process 1 is an init that has hardly
// begun, it tries again.
func (t *terminal) dialSoon(ctx context.Context, patience time.Duration) (*client.Client, error) {
	for end := time.Now().Add(patience); ; {
		cl, err := t.dial()
		if err == nil || !errors.Is(err, client.ErrUnreachable) || time.Now().After(end) || !beginning() {
			return cl, err
		}
		if !pause.For(ctx, dialPause) {
			return nil, err
		}
	}
}

// youth is how long an init may take until it answers.
const youth = 10 * time.Second

// beginning says whether process 1 is an init that may not answer yet.
func beginning() bool {
	line, err := os.ReadFile("/proc/1/cmdline")
	if err != nil {
		return false
	}
	st, err := procstat.Read(1)
	return err == nil && isYoung(line, time.Since(procstat.StartedAt(st.Start)))
}

// isYoung says whether a process with this command line, as /proc has it, is a hinit that has hardly begun.
func isYoung(cmdline []byte, age time.Duration) bool {
	argv := strings.Split(string(cmdline), "\x00")
	switch filepath.Base(argv[0]) {
	case "init", "tini":
	case "hinit":
		if len(argv) < 2 || argv[1] != "init" && argv[1] != "run" {
			return false
		}
	default:
		return false
	}
	return age < youth
}

// sockets are the places where the control socket may be. A broken configuration does not keep the operator from it.
func (t *terminal) sockets() []string {
	return client.Sockets(config.Socket(config.Options{Env: t.env}), t.env, os.Geteuid())
}

func (t *terminal) config() (*config.Config, error) {
	return config.Load(config.Options{Env: t.env})
}
