// Package cli implements the service commands (status, start, stop, restart, healthcheck) and the code that all hinit commands
// share. Package tools implements the other commands and defines the table of all commands. Each file has one verb, or a few
// related verbs.
//
// A verb is a command of the command line. It asks the running init through package dial. Verbs that must work without an init
// read files: the configuration, the logs, the profiles. Nothing in this package runs in PID 1. [Terminal.Run] prints one line on
// standard error for each failure. Its exit codes are in docs/reference/exit-codes.md. Names that an agent can choose are escaped
// when they are printed on a terminal.
//
// The goroutines of the package belong to a verb and end with it.
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
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/nearest"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/internal/version"
)

// Terminal holds the input, the outputs and the environment of a verb.
type Terminal struct {
	In         *os.File
	Out, Err   io.Writer // outputs for people, which escape control characters, see cmdline.Escaped
	Screen     bool      // Out is a terminal
	progressTo *os.File  // the terminal behind Err, for a progress line; nil if Err is no terminal
	Env        func(string) (string, bool)
}

// NewTerminal returns the terminal of this process.
func NewTerminal() *Terminal {
	out, errs := cmdline.Escaped{Writer: os.Stdout}, cmdline.Escaped{Writer: os.Stderr}
	t := &Terminal{In: os.Stdin, Out: out, Err: errs, Screen: proc.IsTerminal(os.Stdout), Env: os.LookupEnv}
	if proc.IsTerminal(os.Stderr) {
		t.progressTo = os.Stderr
	}
	return t
}

// Raw returns a writer to Out that does not escape control characters.
func (t *Terminal) Raw() io.Writer {
	if w, ok := t.Out.(cmdline.Escaped); ok {
		return w.Writer
	}
	return t.Out
}

// Fail prints a failure on one line of Err and returns code, the exit code.
func (t *Terminal) Fail(code int, format string, args ...any) int {
	fmt.Fprintf(t.Err, format+"\n", args...)
	return code
}

// Failed prints the failed action, doing, and the reason on one line, and returns the exit code for this kind of error. If err is
// nil, it prints nothing and returns cmdline.Done.
func (t *Terminal) Failed(doing string, err error) int {
	if err == nil {
		return cmdline.Done
	}
	message := cmdline.Message(doing, err)
	if said, is := errors.AsType[*client.Error](err); is && said.Kind == client.KindUnknown {
		message += t.nearestName(said.Message)
	}
	return t.Fail(cmdline.Code(err), "%s", message)
}

// Show prints the result of a verb and returns the exit code. If err is not nil, it prints the error. With --json it prints
// answer as JSON. Otherwise it calls people, which prints the result for people.
func (t *Terminal) Show(c *Call, answer any, err error, people func()) int {
	switch {
	case err != nil:
		return t.Failed(c.Doing(), err)
	case c.JSON:
		return t.Failed(c.Doing(), cmdline.WriteJSON(t.Out, answer, "  "))
	}
	people()
	return cmdline.Done
}

// Verb is one command of the command line, such as status in "hinit status".
type Verb struct {
	Name, Args, Summary string
	Doing               string // the action, as errors name it after "cannot"; the default is the name
	JSON                string // description of --json, if the verb prints more than the usual JSON
	Run                 func(*Terminal, *Call) int
	External            bool                              // another program carries out the verb, see [CompanionVerb]
	TakesVerbs          bool                              // the arguments are names of verbs
	Services            bool                              // the arguments select services by name, pattern or group
	Trailing            int                               // number of arguments at the end that do not select services
	Empty               func(*Terminal) (any, error)      // returns an empty result for --json when no service has the state; nil: print no JSON
	Offline             func(*Terminal) ([]string, error) // returns the names of services when no init runs; nil: the verb needs an init
}

// helpTexts has the help of each verb, which follows the summary, in the file help/NAME.txt.
//
//go:embed help
var helpTexts embed.FS

// Call is one call of a verb with its arguments. Flags may stand anywhere before a lone "--".
type Call struct {
	Verb  Verb
	Raw   []string
	Named []string // the arguments that each name one service; set by Parse if Verb.Services is set
	Flags *flag.FlagSet
	JSON  bool // --json was given
}

// NewCall returns a call of v with the arguments words. The call has the flag --json if v.Args mentions it.
func NewCall(v Verb, words []string) *Call {
	c := &Call{Verb: v, Raw: words, Flags: cmdline.Flags(v.Name)}
	if strings.Contains(v.Args, "[--json]") {
		c.Flags.BoolVar(&c.JSON, "json", false, cmp.Or(v.JSON, "print JSON"))
	}
	return c
}

// Parse reads the flags that the verb has defined on c.Flags and returns the other arguments. Their number must be between
// atLeast and atMost; an atMost of -1 means no limit. If ok is false, the verb must end with the exit code: the user asked for
// help, or the arguments are wrong.
func (c *Call) Parse(t *Terminal, atLeast, atMost int) (names []string, code int, ok bool) {
	if c.Verb.Services {
		return c.parseServices(t, atLeast, atMost)
	}
	return c.Described().Parse(c.Flags, c.Raw, atLeast, atMost, t.Out, t.Err)
}

// Described returns the description of the verb, which package cmdline needs for the help and for messages.
func (c *Call) Described() cmdline.Verb {
	text, _ := helpTexts.ReadFile("help/" + c.Verb.Name + ".txt") // not every verb has a text
	return cmdline.Verb{Program: "hinit", Name: c.Verb.Name, Args: c.Verb.Args, Summary: c.Verb.Summary, Help: strings.TrimSpace(string(text)), Doing: c.Doing()}
}

// Doing returns the action of the verb, as errors name it after "cannot".
func (c *Call) Doing() string { return cmp.Or(c.Verb.Doing, c.Verb.Name) }

// Run finds the first argument in verbs, runs that verb with the other arguments, and returns the exit code of the process.
func (t *Terminal) Run(args []string, verbs []Verb) int {
	if len(args) == 0 {
		help(t.Err, verbs)
		return cmdline.WrongUsage
	}
	switch args[0] {
	case "help", "-h", "--help", "-help":
		if len(args) == 1 || args[0] != "help" {
			help(t.Out, verbs)
			return cmdline.Done
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
	if near := nearest.Word(args[0], names); near != "" {
		return t.Fail(cmdline.WrongUsage, "cannot run %q: hinit has no such command; did you mean: hinit %s", args[0], near)
	}
	return t.Fail(cmdline.WrongUsage, "cannot run %q: hinit has no such command; see: hinit help", args[0])
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

// Dial connects to the running init, even if the configuration has mistakes.
func (t *Terminal) Dial() (*dial.Client, error) { return cmdline.Dial(t.Env) }

// Ask connects to the running init, calls question with the connection, and returns the answer of question. The context that
// question gets ends after limit.
func Ask[T any](t *Terminal, limit time.Duration, question func(context.Context, *dial.Client) (T, error)) (answer T, err error) {
	cl, err := t.Dial()
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return question(ctx, cl)
}

// Status returns the status of the running init, with the named services or, without names, with all services.
func (t *Terminal) Status(limit time.Duration, names ...string) (client.Status, error) {
	return Ask(t, limit, func(ctx context.Context, cl *dial.Client) (client.Status, error) { return cl.Status(ctx, names...) })
}

// DialPause is the pause between two attempts to connect to an init that has just started.
const DialPause = 20 * time.Millisecond

// DialSoon is like Dial, for a command that may run before the init answers. If process 1 is a hinit that has just started,
// DialSoon retries for up to patience.
func (t *Terminal) DialSoon(ctx context.Context, patience time.Duration) (*dial.Client, error) {
	for end := time.Now().Add(patience); ; {
		cl, err := t.Dial()
		if err == nil || !errors.Is(err, client.ErrUnreachable) || time.Now().After(end) || !initIsStarting() {
			return cl, err
		}
		if !pause.For(ctx, DialPause) {
			return nil, err
		}
	}
}

// startupTime is the longest time that an init needs before it answers.
const startupTime = 10 * time.Second

// initIsStarting reports whether process 1 is an init that has just started and may not answer yet.
func initIsStarting() bool {
	line, _ := os.ReadFile("/proc/1/cmdline") // nil without /proc
	st, err := procstat.Read(1)
	return err == nil && dial.IsInit(line) && time.Since(procstat.StartedAt(st.Start)) < startupTime
}

// Config reads the configuration file and the environment in the same way as an init that starts here.
func (t *Terminal) Config() (*config.Config, error) { return config.Load(config.Options{Env: t.Env}) }

// CompanionVerb returns a verb that a separate program carries out: hinit-NAME, which is installed beside hinit. The code of that
// program is not linked into PID 1.
func CompanionVerb(name, summary string) Verb { return CompanionOf("hinit-"+name, nil, name, summary) }

// CompanionOf returns a verb that a separate program carries out, for a program that has several verbs. The program gets the
// arguments in first, followed by the user's arguments.
func CompanionOf(program string, first []string, name, summary string) Verb {
	return Verb{
		Name: name, Args: "...", Summary: summary, External: true,
		Run: func(t *Terminal, c *Call) int {
			doing := "run hinit " + name
			path, err := execBeside(program, slices.Concat([]string{"hinit " + name}, first, c.Raw))
			if errors.Is(err, fs.ErrNotExist) {
				return t.Fail(cmdline.Failed, "cannot %s: there is no %s; install it beside hinit", doing, path)
			}
			return t.Failed(doing, err)
		},
	}
}

// execBeside replaces this process by another program from the directory of this process's own program. It returns only on
// failure, with the path of the other program.
func execBeside(program string, argv []string) (path string, err error) {
	if path, err = cmdline.Beside(program); err != nil {
		return path, err
	}
	return path, &fs.PathError{Op: "exec", Path: path, Err: unix.Exec(path, argv, os.Environ())}
}

// InitVerb implements the command hinit init. It handles --help, and otherwise executes the program hinit, which carries out the
// verb.
var InitVerb = Verb{
	Name: "init", Args: "[--] [CMD...]", Summary: "be the init: PID 1 of a container, or a subreaper elsewhere",
	Run: func(t *Terminal, c *Call) int {
		if len(c.Raw) == 1 && (c.Raw[0] == "--help" || c.Raw[0] == "-h") {
			c.Described().Usage(c.Flags, t.Out)
			return cmdline.Done
		}
		return t.becomeInit(c, c.Raw...)
	},
}

// RunVerb implements the command hinit run. It checks the arguments and executes the program hinit, which carries out the verb.
var RunVerb = Verb{
	Name: "run", Doing: "run the services", Args: "[-c FILE]", Summary: "be a plain supervisor: the services of hinit.yaml and nothing else",
	Run: func(t *Terminal, c *Call) int {
		file := c.Flags.String("c", "", "read this `FILE`")
		if _, code, ok := c.Parse(t, 0, 0); !ok {
			return code
		}
		return t.becomeInit(c, "-c", *file)
	},
}

// becomeInit replaces this process by the program hinit, which becomes an init. It returns only after a failure.
func (t *Terminal) becomeInit(c *Call, words ...string) int {
	path, err := cmdline.Hinit()
	if err == nil {
		_, err = execBeside(filepath.Base(path), append([]string{"hinit", c.Verb.Name}, words...))
	}
	return t.Failed(c.Doing(), err)
}

// VersionVerb implements the command hinit version.
var VersionVerb = Verb{
	Name: "version", Doing: "show the version", Args: "[--json]", Summary: "print the version",
	Run: func(t *Terminal, c *Call) int {
		// hinit answers --handover itself and does not start this program; the flag is here for the help.
		c.Flags.Bool("handover", false, "print the format in which it takes over from a running hinit instead")
		if _, code, ok := c.Parse(t, 0, 0); !ok {
			return code
		}
		return t.Show(c, version.Get(), nil, func() { fmt.Fprintln(t.Out, "hinit", version.Get()) })
	},
}
