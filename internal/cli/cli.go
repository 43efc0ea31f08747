// Package cli implements the service commands (status, start, stop, restart, healthcheck) and the common parts of all hinit
// commands. Package tools implements the other commands and has the table of all commands. Each file has one verb, or a few
// related verbs.
//
// A verb is a command of the command line, such as status in "hinit status". It asks the running init through package dial.
// Verbs that must work without an init read files: the configuration, the logs, the profiles. Nothing in this package runs in
// PID 1. [Terminal.Run] prints each failure on one line of standard error. Its exit codes are in docs/reference/exit-codes.md.
// On a terminal, names that an agent can choose are escaped.
//
// The package starts goroutines only for a verb, and they end with the verb.
package cli

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/internal/version"
)

// Terminal is the environment of a verb: its input, its outputs and its environment variables.
type Terminal struct {
	In             *os.File
	Out, Err       io.Writer // writers for people; they escape control characters, see cmdline.Escaped
	IsScreen       bool
	progressOutput *os.File
	Env            func(string) (string, bool)
}

// NewTerminal returns the Terminal of this process, whose standard output is stdout.
func NewTerminal(stdout io.Writer) *Terminal {
	out, errs := cmdline.EscapedWriter{Writer: stdout}, cmdline.EscapedWriter{Writer: os.Stderr}
	t := &Terminal{In: os.Stdin, Out: out, Err: errs, IsScreen: proc.IsTerminal(os.Stdout), Env: os.LookupEnv}
	if proc.IsTerminal(os.Stderr) {
		t.progressOutput = os.Stderr
	}
	return t
}

// RawOutput returns a writer to Out that doesn't escape control characters.
func (t *Terminal) RawOutput() io.Writer {
	if w, ok := t.Out.(cmdline.EscapedWriter); ok {
		return w.Writer
	}
	return t.Out
}

// Fail prints a failure on one line of Err, and returns the exit code.
func (t *Terminal) Fail(code int, format string, args ...any) int {
	fmt.Fprintf(t.Err, format+"\n", args...)
	return code
}

// ReportError prints the failed action (doing) and the error on one line, and returns the exit code for the kind of error. If err
// is nil, it prints nothing and returns cmdline.Done.
func (t *Terminal) ReportError(doing string, err error) int {
	if err == nil {
		return cmdline.ExitDone
	}
	message := cmdline.FailureMessage(doing, err)
	if clientErr, is := errors.AsType[*client.Error](err); is && clientErr.Kind == client.KindUnknown {
		message += t.nearestName(clientErr.Message)
	}
	return t.Fail(cmdline.ExitCode(err), "%s", message)
}

// ShowResult prints the result of a verb, and returns the exit code. An error err is the only output. With --json ShowResult
// prints answer as JSON. Otherwise it calls people, which must print the result for people.
func (t *Terminal) ShowResult(c *Call, answer any, err error, people func()) int {
	switch {
	case err != nil:
		return t.ReportError(c.Action(), err)
	case c.JSON:
		return t.ReportError(c.Action(), cmdline.WriteJSON(t.Out, answer, "  "))
	}
	people()
	return cmdline.ExitDone
}

// Verb is a command of the command line, such as status in "hinit status".
type Verb struct {
	Name, Args, Summary string // Args is "..." if another program carries out the verb, see [CompanionVerb]
	Action              string // the action in errors, after "cannot"; "": the name of the verb
	JSONHelp            string // description of --json in the help; "" for the usual description
	Run                 func(*Terminal, *Call) int
	TakesVerbNames      bool // arguments are names of verbs, as in "hinit help VERB"
	SelectsServices     bool // arguments select services by name, pattern or group
	OtherArgCount       int  // number of arguments at the end that don't select services
	// returns the result for --json if no service has the state from --state; nil: the verb prints no JSON
	EmptyResult func(*Terminal) (any, error)
	// returns the names of services when no init answers; nil: the verb needs an init
	OfflineNames func(*Terminal) ([]string, error)
}

// helpTexts has the help of each verb that follows the summary, as help/NAME.txt.
//
//go:embed help
var helpTexts embed.FS

// Call is one call of a verb. Flags may stand anywhere before a separate argument "--".
type Call struct {
	Verb          Verb
	Args          []string
	NamedServices []string // arguments that are the name of a service; set by Parse if Verb.SelectsServices
	Flags         *flag.FlagSet
	JSON          bool // --json was given
}

// NewCall returns a call of v with the arguments words. If v.Args mentions --json, the call has this flag.
func NewCall(v Verb, words []string) *Call {
	c := &Call{Verb: v, Args: words, Flags: cmdline.NewFlagSet(v.Name)}
	if strings.Contains(v.Args, "[--json]") {
		c.Flags.BoolVar(&c.JSON, "json", false, cmp.Or(v.JSONHelp, "print JSON"))
	}
	return c
}

// Parse parses the flags that the verb has defined on c.Flags, and returns the other arguments. Their number must be between
// atLeast and atMost; -1 for atMost means no limit. If ok is false, the verb must return code: the user has asked for help, or
// the arguments are wrong.
func (c *Call) Parse(t *Terminal, atLeast, atMost int) (names []string, code int, ok bool) {
	if c.Verb.SelectsServices {
		return c.parseServices(t, atLeast, atMost)
	}
	return c.Description().Parse(c.Flags, c.Args, atLeast, atMost, t.Out, t.Err)
}

// Description returns the description of the verb for package cmdline, which prints help and messages.
func (c *Call) Description() cmdline.Verb {
	text, _ := helpTexts.ReadFile("help/" + c.Verb.Name + ".txt")
	return cmdline.Verb{Program: "hinit", Name: c.Verb.Name, Args: c.Verb.Args, Summary: c.Verb.Summary, Help: strings.TrimSpace(string(text)), Action: c.Action()}
}

// Action returns the action of the verb, in words that can follow "cannot".
func (c *Call) Action() string { return cmp.Or(c.Verb.Action, c.Verb.Name) }

// Run runs the verb that the first argument names, and returns the exit code.
func (t *Terminal) Run(args []string, verbs []Verb) int {
	if len(args) == 0 {
		help(t.Err, verbs)
		return cmdline.ExitUsage
	}
	switch args[0] {
	case "help", "-h", "--help", "-help":
		if len(args) == 1 || args[0] != "help" {
			help(t.Out, verbs)
			return cmdline.ExitDone
		}
		args = append(args[1:], "--help")
	case "--version":
		args = []string{"version"}
	}
	var names []string
	for _, v := range verbs {
		if v.Name == args[0] {
			return v.Run(t, NewCall(v, args[1:]))
		}
		names = append(names, v.Name)
	}
	return t.Fail(cmdline.ExitUsage, "cannot run %q: hinit has no such command%s; see: hinit help", args[0], cmdline.DidYouMean(args[0], names))
}

func help(w io.Writer, verbs []Verb) {
	fmt.Fprint(w, "hinit is PID 1 and supervisor for containers that host many agent profiles.\n\n")
	for _, v := range verbs {
		fmt.Fprintf(w, "  hinit %-12s %s\n", v.Name, v.Summary)
	}
	fmt.Fprint(w, `
NAME is a profile (coder), a service (dashboard), a slot (gateway-coder), a pattern
in quotes ('p4*') or a group (@payments); --state STATE takes all in a state.
hinit help COMMAND tells more. Called as init or tini, hinit is the init.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a named service is not up,
4 hinit not reachable, 5 not allowed, 6 no such profile or service.
`)
}

// Dial connects to the running init. It also works if the configuration has mistakes.
func (t *Terminal) Dial() (*dial.Client, error) { return cmdline.Dial(t.Env) }

// Client returns a client of the running init, which connects at its first request.
func (t *Terminal) Client() *dial.Client { return cmdline.ClientForThisContainer(t.Env) }

// Status returns the status of the running init with the named services. Without names, it returns all services.
func (t *Terminal) Status(names ...string) (client.Status, error) {
	return t.Client().Status(context.Background(), names...)
}

// DialRetryPause is the pause between attempts to connect to an init that has just started.
const DialRetryPause = 20 * time.Millisecond

// DialDuringStart connects like Dial, but may run before the init answers. If process 1 is a newly started hinit, it repeats
// the attempt for the time patience.
func (t *Terminal) DialDuringStart(ctx context.Context, patience time.Duration) (*dial.Client, error) {
	for end := time.Now().Add(patience); ; {
		cl, err := t.Dial()
		if err == nil || !errors.Is(err, client.ErrUnreachable) || time.Now().After(end) || !initIsStarting() {
			return cl, err
		}
		if !pause.For(ctx, DialRetryPause) {
			return nil, err
		}
	}
}

// startupTimeout is the longest time from the start of an init to its first answer.
const startupTimeout = 10 * time.Second

// initIsStarting reports whether process 1 is a newly started init, which may not answer yet.
func initIsStarting() bool {
	line, _ := os.ReadFile("/proc/1/cmdline")
	st, err := procstat.Read(1)
	return err == nil && dial.IsInit(line) && time.Since(procstat.StartedAt(st.Start)) < startupTimeout
}

// Config reads the configuration that an init would use in this environment.
func (t *Terminal) Config() (*config.Config, error) { return t.ConfigOf(client.Init{}) }

// ConfigOf reads the configuration of a running init. The init of hinit run uses another file, which its status names.
func (t *Terminal) ConfigOf(in client.Init) (*config.Config, error) {
	return config.Load(config.Options{Path: in.ServicesFile, ServicesOnly: in.ServicesFile != "", Env: t.Env})
}

// CompanionVerb returns a verb that the program hinit-NAME carries out. The program is installed beside hinit, so that PID 1
// need not contain its code.
func CompanionVerb(name, summary string) Verb { return CompanionOf("hinit-"+name, nil, name, summary) }

// CompanionOf returns a verb of a program that carries out several verbs. The arguments first precede the user's arguments.
func CompanionOf(program string, first []string, name, summary string) Verb {
	return Verb{
		Name: name, Args: "...", Summary: summary,
		Run: func(t *Terminal, c *Call) int {
			doing := "run hinit " + name
			path, err := cmdline.SiblingProgram(program)
			if err == nil {
				err = replaceProcess(path, slices.Concat([]string{"hinit " + name}, first, c.Args))
			}
			if errors.Is(err, fs.ErrNotExist) {
				return t.Fail(cmdline.ExitFailed, "cannot %s: there is no %s; install it beside hinit", doing, path)
			}
			return t.ReportError(doing, err)
		},
	}
}

// replaceProcess replaces this process by another program. It returns only if that fails.
func replaceProcess(path string, argv []string) error {
	return &fs.PathError{Op: "exec", Path: path, Err: unix.Exec(path, argv, os.Environ())}
}

// InitVerb is the command hinit init. It prints the help, or executes the program hinit, which becomes the init.
var InitVerb = Verb{
	Name: "init", Args: "[--] [CMD...]", Summary: "be the init: PID 1 of a container, or a subreaper elsewhere",
	Run: func(t *Terminal, c *Call) int {
		if len(c.Args) == 1 && (c.Args[0] == "--help" || c.Args[0] == "-h") {
			c.Description().Usage(c.Flags, t.Out)
			return cmdline.ExitDone
		}
		return t.becomeInit(c, c.Args...)
	},
}

// RunVerb is the command hinit run. It checks the arguments and executes the program hinit.
var RunVerb = Verb{
	Name: "run", Action: "run the services", Args: "[-c FILE]", Summary: "be a plain supervisor: the services of hinit.yaml and nothing else",
	Run: func(t *Terminal, c *Call) int {
		file := c.Flags.String("c", "", "read this `FILE`")
		if _, code, ok := c.Parse(t, 0, 0); !ok {
			return code
		}
		return t.becomeInit(c, "-c", *file)
	},
}

// becomeInit replaces this process by the program hinit. It returns only if that fails.
func (t *Terminal) becomeInit(c *Call, words ...string) int {
	path, err := cmdline.HinitPath()
	if err == nil {
		err = replaceProcess(path, append([]string{"hinit", c.Verb.Name}, words...))
	}
	return t.ReportError(c.Action(), err)
}

// VersionVerb is the command hinit version.
var VersionVerb = Verb{
	Name: "version", Action: "show the version", Args: "[--json]", Summary: "print the version",
	Run: func(t *Terminal, c *Call) int {
		// The program hinit handles --handover, and this flag is only for the help.
		c.Flags.Bool("handover", false, "print the format in which it takes over from a running hinit instead")
		if _, code, ok := c.Parse(t, 0, 0); !ok {
			return code
		}
		return t.ShowResult(c, version.Get(), nil, func() { fmt.Fprintln(t.Out, "hinit", version.Get()) })
	},
}
