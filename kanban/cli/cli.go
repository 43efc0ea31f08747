package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/control/show"
	"hinit/internal/proc"
	"hinit/kanban"
	"hinit/kanban/cli/runner"
)

// programName is the command before the name of a verb.
const programName = "hinit kanban"

// Terminal holds what the command line needs from its process: outputs, environment and clock. Tests replace it.
type Terminal struct {
	Out, Err      io.Writer
	Env           kanban.Env
	Environ       []string
	OutIsTerminal bool // Whether Out is a terminal.
	Now           func() time.Time
}

// NewTerminal returns a Terminal with the environment and the clock of this process. out is its standard output.
func NewTerminal(out io.Writer) *Terminal {
	return &Terminal{Out: out, Err: os.Stderr, Env: os.Getenv, Environ: os.Environ(), OutIsTerminal: proc.IsTerminal(os.Stdout), Now: time.Now}
}

// verbAction is the function of a verb, called after its flags are parsed. s is the open board, or nil for a verb with
// opensNoBoard. words are the arguments that aren't flags.
type verbAction func(ctx context.Context, s *kanban.Store, words []string) error

// verb is one verb of `hinit kanban`, such as create or list.
type verb struct {
	name          string
	aliases       []string
	args          string // Positional arguments for the help: "[X]" is optional, "X..." may be repeated.
	multiWordFlag string // Name of a flag whose value is all words up to the next flag.
	summary       string
	help          string
	hasJSONFlag   bool                     // Whether the verb has the flag --json.
	checksFile    bool                     // Whether the verb checks the integrity of the whole file when it opens the board.
	opensNoBoard  bool                     // Whether the verb does not open the board.
	busyTimeout   time.Duration            // Maximum wait for other writers of the board; 0: the default of [kanban.Options].
	defineFlags   func(c *call) verbAction // Defines the flags of the verb and returns its action.
}

// call is one invocation of a verb, from the command line to the exit code.
type call struct {
	*cmdline.Call
	*Terminal
	verb      verb
	board     string
	wantsJSON bool
}

// verbs returns all verbs in the order in which the help shows them.
func verbs() []verb {
	return slices.Concat(taskVerbs, stateVerbs, workerVerbs, viewVerbs, boardVerbs, dispatchVerbs, maintenanceVerbs)
}

// agentVerbs are verbs of the agent's own kanban command that hinit doesn't have, because they need a language model or the
// agent's chats. hinit executes the agent for them.
var agentVerbs = []string{"swarm", "specify", "decompose", "context", "notify-subscribe", "notify-list", "notify-unsubscribe"}

// Main runs the command line args, which begins with a verb. It returns the exit code of the process.
func (t *Terminal) Main(args []string) int {
	all, flags := args, cmdline.NewFlagSet(programName)
	board := flags.String("board", "", "")
	err := flags.Parse(args)
	args = flags.Args()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		return t.call(verb{}, nil).Fail(cmdline.ExitUsage, "%v: flags of a command follow its name; see: %s help", err, programName)
	}
	if err != nil || len(args) == 0 || args[0] == "help" {
		t.help()
		return cmdline.ExitDone
	}
	v, known := lo.Find(verbs(), func(v verb) bool { return v.name == args[0] || slices.Contains(v.aliases, args[0]) })
	c := t.call(v, args[1:])
	if known {
		c.Flags.StringVar(&c.board, "board", *board, "the board, `SLUG`; the current one by default")
		return c.run()
	}
	if slices.Contains(agentVerbs, args[0]) {
		err := t.becomeAgent(all)
		return c.Fail(cmdline.ExitUsage, "cannot run %q: it needs the agent: %v; run: hermes kanban %[1]s", args[0], err)
	}
	names := lo.Map(verbs(), func(v verb, _ int) string { return v.name })
	return c.Fail(cmdline.ExitUsage, "cannot run %q: %s has no such command%s; see: %[2]s help", args[0], programName, cmdline.DidYouMean(args[0], names))
}

// becomeAgent replaces this program by the agent's own command (execve(2)). It returns only if that fails.
func (t *Terminal) becomeAgent(args []string) error {
	cfg, err := config.Load(config.Options{Env: t.lookupEnv})
	if err != nil {
		return err
	}
	path, err := runner.AgentPath(cmp.Or(t.Env("HERMES_BIN"), cfg.Agent.Binary))
	if err != nil {
		return err
	}
	return unix.Exec(path, append([]string{path, "kanban"}, args...), t.Environ)
}

func (t *Terminal) lookupEnv(name string) (string, bool) {
	v := t.Env(name)
	return v, v != ""
}

func (t *Terminal) call(v verb, args []string) *call {
	described := cmdline.Verb{Program: programName, Name: v.name, Args: v.args, Summary: v.summary, Help: v.help, Aliases: v.aliases}
	c := &call{Call: cmdline.NewCall(described, expandMultiWordFlag(args, v.multiWordFlag), t.Out, t.Err), Terminal: t, verb: v}
	c.Call.Env = t.lookupEnv
	return c
}

// expandMultiWordFlag rewrites the arguments of a flag that takes all words up to the next flag. It turns "--ids a b" into
// "--ids=a --ids=b".
func expandMultiWordFlag(args []string, flag string) (out []string) {
	takes := false
	for _, a := range args {
		switch {
		case flag != "" && strings.TrimLeft(a, "-") == flag && strings.HasPrefix(a, "-"):
			takes = true
			continue
		case strings.HasPrefix(a, "-"):
			takes = false
		case takes:
			a = "--" + flag + "=" + a
		}
		out = append(out, a)
	}
	return out
}

func (t *Terminal) help() {
	fmt.Fprint(t.Out, "hinit kanban is the task board that the agent's profiles share, and its dispatcher.\n\n")
	for _, v := range verbs() {
		fmt.Fprintf(t.Out, "  %s %-12s %s\n", programName, v.name, v.summary)
	}
	fmt.Fprintf(t.Out, `
%s COMMAND --help tells more. Without --board a command works on the current board.
Exit codes: 0 done, 1 failed, 2 wrong usage.
The agent itself answers: %s.
`, programName, strings.Join(agentVerbs, ", "))
}

var (
	// errAlreadyPrinted makes the exit code a failure without another message, because the failure is already on stderr.
	errAlreadyPrinted = errors.New("said")
	// errNotAllowed means that the task does not exist, or that its status does not allow the operation.
	errNotAllowed = errors.New("unknown id, or its status does not allow it; see: hinit kanban show")
)

// usageErrorf returns an error for a mistake in the arguments. The exit code for it is cmdline.WrongUsage.
func usageErrorf(format string, args ...any) error {
	return kanban.InvalidError(fmt.Sprintf(format, args...))
}

// run parses the flags, opens the board and runs the verb. It returns the exit code.
func (c *call) run() int {
	act := c.verb.defineFlags(c)
	if c.verb.hasJSONFlag {
		c.Flags.BoolVar(&c.wantsJSON, "json", false, "print JSON")
	}
	least, most := cmdline.ArgumentBounds(c.verb.args)
	words, code, ok := c.Parse(least, most)
	if !ok {
		return code
	}
	ctx, cancel := cmdline.InterruptibleContext()
	defer cancel()
	doing := "run " + c.Command()
	if least > 0 {
		doing = c.verb.name + " " + words[0]
	}
	var s *kanban.Store
	if !c.verb.opensNoBoard {
		var err error
		if s, err = c.open(ctx); err != nil {
			return c.reportFailure("open the board", err)
		}
		defer s.Close()
	}
	return c.reportFailure(doing, act(ctx, s, words))
}

// reportFailure prints "cannot", the operation doing and the error on one line, and returns the
// exit code. If err is nil, it prints nothing and returns 0.
func (c *call) reportFailure(doing string, err error) int {
	code := cmdline.ExitFailed
	switch {
	case err == nil:
		return cmdline.ExitDone
	case errors.Is(err, errAlreadyPrinted):
		return code
	case errors.As(err, new(kanban.InvalidError)):
		code = cmdline.ExitUsage
	}
	message := kanban.ExplainFileError(err)
	if !strings.HasPrefix(message, "cannot ") {
		message = "cannot " + doing + ": " + message
	}
	return c.Fail(code, "%s", message)
}

// reportDone prints a message if ok is true and err nil. Otherwise it returns err, or errNotAllowed if err is nil.
func (c *call) reportDone(ok bool, err error, format string, args ...any) error {
	if err == nil && !ok {
		err = errNotAllowed
	}
	if err == nil {
		c.print(format+"\n", args...)
	}
	return err
}

// forEachTask calls do for every task in ids, even after a failure. After each success it prints the message done, whose
// format has one verb for the task's id. It returns an error if any call failed.
func (c *call) forEachTask(ids []string, done string, do func(id string) (bool, error)) error {
	var failed error
	for _, id := range ids {
		ok, err := do(id)
		if err := c.reportDone(ok, err, done, id); err != nil {
			failed = errAlreadyPrinted
			c.reportFailure(c.verb.name+" "+id, err)
		}
	}
	return failed
}

// multilineText is an argument of [call.print] that may have several lines.
type multilineText string

// print prints text for people, with a format as in fmt.Printf. An agent may have written any argument, so print makes escape
// sequences visible. It turns line ends into spaces, except in [multilineText].
func (c *call) print(format string, args ...any) {
	for i, arg := range args {
		if text, is := arg.(multilineText); is {
			args[i] = show.EscapeText(string(text))
		} else if v := reflect.ValueOf(arg); v.Kind() == reflect.String {
			args[i] = show.EscapeLine(v.String())
		}
	}
	fmt.Fprintf(c.Terminal.Out, format, args...)
}

// printResult prints v as JSON if --json was given. Otherwise it calls the function people, which
// prints the same for a reader. If err is not nil, it prints nothing and returns err.
func (c *call) printResult(v any, err error, people func()) error {
	switch {
	case err != nil:
		return err
	case c.wantsJSON:
		return c.printJSON(v)
	}
	people()
	return nil
}

// printJSON prints a value as JSON, indented by two spaces. Text that an agent wrote is safe in it, because JSON escapes
// control characters.
func (c *call) printJSON(v any) error { return cmdline.WriteJSON(c.Terminal.Out, v, "  ") }

// printTable prints a table. It calls fill with a function that adds a row. Each cell becomes one line of limited length.
func (c *call) printTable(fill func(row func(cells ...any))) {
	w := tabwriter.NewWriter(c.Terminal.Out, 0, 0, 2, ' ', 0)
	fill(func(cells ...any) {
		texts := lo.Map(cells, func(v any, _ int) string { return cmp.Or(truncate(show.EscapeLine(fmt.Sprint(v))), emptyCell) })
		fmt.Fprintln(w, strings.Join(texts, "\t"))
	})
	_ = w.Flush() // Flush fails only if the reader of the output is gone.
}

// boards returns the boards of this installation.
func (c *call) boards() *kanban.Boards {
	env := c.Terminal.Env
	return &kanban.Boards{Root: kanban.Root(env, env("HOME")), Env: env}
}

// paths returns the paths of the board that the user has selected.
func (c *call) paths() (kanban.Paths, error) {
	b := c.boards()
	slug, err := kanban.CanonicalSlug(c.board)
	if err != nil {
		return kanban.Paths{}, err
	}
	if slug != "" && !b.Exists(slug) {
		return kanban.Paths{}, fmt.Errorf("cannot use board %q: it does not exist; create it with: %s boards create %s", slug, programName, slug)
	}
	return b.Paths(slug)
}

// open opens the board that the user has selected.
func (c *call) open(ctx context.Context) (*kanban.Store, error) {
	paths, err := c.paths()
	if err != nil {
		return nil, err
	}
	return c.openAt(ctx, paths)
}

func (c *call) openAt(ctx context.Context, paths kanban.Paths) (*kanban.Store, error) {
	var toolsets []string // Names of toolsets, which can't be used as skills.
	if profiles := kanban.ProfileDirs(c.boards().Root); c.verb.name == "create" {
		toolsets = lo.FlatMap(profiles.List(), func(name string, _ int) []string { return profiles.Toolsets(name) })
	}
	return kanban.Open(ctx, paths, kanban.Options{
		Env: c.Terminal.Env, SkipCheck: !c.verb.checksFile, Host: c.EnvOr("HINIT_KANBAN_HOST", ""), Workdir: c.boards().Meta(paths.Board).DefaultWorkdir,
		Toolsets: toolsets, BusyTimeout: c.verb.busyTimeout, Log: c.logger(),
	})
}

// stringList is the value of a flag that may be given several times.
type stringList []string

func (l *stringList) String() string { return strings.Join(*l, ",") }

func (l *stringList) Set(s string) error {
	*l = append(*l, s)
	return nil
}

// optionalFlag defines a flag that may be absent. It converts the flag's value with read and stores it in *n, which otherwise
// stays nil.
func optionalFlag[T int | int64](c *call, n **T, name, usage string, read func(text string) (int64, error)) {
	c.Flags.Func(name, usage, func(text string) error {
		v, err := read(text)
		*n = new(T(v))
		return err
	})
}

// parseNumber parses a whole number.
func parseNumber(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		err = fmt.Errorf("%q is no whole number", text)
	}
	return n, err
}

// parseSeconds parses a duration and returns it in seconds. The text is a number of seconds, or a duration such as 90s or 1d.
func parseSeconds(text string) (int64, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	d, err := cmdline.ParseDuration(text)
	if err != nil {
		err = fmt.Errorf("%q is no time; write 90s, 30m, 2h, 1d, or a number of seconds", text)
	}
	return int64(d / time.Second), err
}

// parseTime parses a time and returns it in seconds since 1970. It accepts a number of seconds since 1970, a date, a local
// date and time, or RFC 3339.
func parseTime(text string) (int64, error) {
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t.Unix(), nil
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		err = fmt.Errorf("%q is no time; write for instance 2026-01-31", text)
	}
	return n, err
}

// emptyCell is the text of an empty table cell.
const emptyCell = "-"

// formatTime formats a time for people. epoch is in seconds since 1970; 0 means that there is no time.
func formatTime(epoch int64) string {
	if epoch == 0 {
		return emptyCell
	}
	return time.Unix(epoch, 0).Format(time.DateTime)
}
