package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"hinit/internal/config"
	"hinit/internal/control/show"
	"hinit/kanban"
)

// The exit codes of every verb.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// Terminal is where the command line reads and writes.
type Terminal struct {
	Out, Err io.Writer
	Env      kanban.Env
	Environ  []string
	Now      func() time.Time
}

// System is the terminal, the environment and the clock of this process.
func System() *Terminal {
	return &Terminal{Out: os.Stdout, Err: os.Stderr, Env: os.Getenv, Environ: os.Environ(), Now: time.Now}
}

// verb is one command.
type verb struct {
	name    string
	aliases []string
	args    string
	summary string
	help    string
	checks  bool // looks through the whole file before it works on it
	run     func(c *call) int
}

// call is a verb with its arguments: flags may stand anywhere before a lone "--".
type call struct {
	*Terminal
	verb  verb
	raw   []string
	flags *flag.FlagSet
	board string
	json  bool
}

// verbs is the command line, in the order in which help shows it.
func verbs() []verb {
	return slices.Concat(taskVerbs(), linkVerbs(), stateVerbs(), workVerbs(), lookVerbs(), boardVerbs(), dispatchVerbs(), careVerbs())
}

// elsewhere are verbs of the agent's own command line that need the agent: a model, or a gateway.
var elsewhere = []string{"swarm", "specify", "decompose", "context", "notify-subscribe", "notify-list", "notify-unsubscribe"}

// Main runs the verb that the arguments name, and returns the exit code of the process.
func (t *Terminal) Main(args []string) int {
	board := ""
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, value, has := strings.Cut(strings.TrimLeft(args[0], "-"), "=")
		switch {
		case name == "board" && has:
			board, args = value, args[1:]
		case name == "board" && len(args) > 1:
			board, args = args[1], args[2:]
		case name == "h" || name == "help":
			t.help(t.Out)
			return exitDone
		default:
			return t.fail(exitUsage, "cannot use %s: flags of a command follow its name; see: hinit kanban help", args[0])
		}
	}
	if len(args) == 0 {
		t.help(t.Err)
		return exitUsage
	}
	if args[0] == "help" {
		t.help(t.Out)
		return exitDone
	}
	var names []string
	for _, v := range verbs() {
		if v.name == args[0] || slices.Contains(v.aliases, args[0]) {
			c := &call{Terminal: t, verb: v, raw: args[1:], flags: flag.NewFlagSet(v.name, flag.ContinueOnError), board: board}
			c.flags.SetOutput(io.Discard)
			c.flags.StringVar(&c.board, "board", board, "the board, `SLUG`; the current one by default")
			return v.run(c)
		}
		names = append(names, v.name)
	}
	if args[0] == "daemon" {
		return t.fail(exitUsage, "cannot run \"daemon\": it is DEPRECATED; run: hinit kanban serve, or start the container with HINIT_KANBAN=1, or: hermes gateway start")
	}
	if slices.Contains(elsewhere, args[0]) {
		return t.fail(exitUsage, "cannot run %q: it needs the agent; run: hermes kanban %s", args[0], args[0])
	}
	if near := config.Nearest(args[0], names); near != "" {
		return t.fail(exitUsage, "cannot run %q: hinit kanban has no such command; did you mean: hinit kanban %s", args[0], near)
	}
	return t.fail(exitUsage, "cannot run %q: hinit kanban has no such command; see: hinit kanban help", args[0])
}

func (t *Terminal) help(w io.Writer) {
	fmt.Fprint(w, "hinit kanban is the task board that the agent's profiles share, and its dispatcher.\n\n")
	for _, v := range verbs() {
		fmt.Fprintf(w, "  hinit kanban %-12s %s\n", v.name, v.summary)
	}
	fmt.Fprint(w, `
hinit kanban COMMAND --help tells more. Without --board a command works on the current board.
Exit codes: 0 done, 1 failed, 2 wrong usage.
`)
}

// fail prints the one line that says what did not work and returns the exit code.
func (t *Terminal) fail(code int, format string, args ...any) int {
	fmt.Fprintln(t.Err, show.Text(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")))
	return code
}

// failed prints, in one line, what could not be done and why. Bad input is wrong usage.
func (c *call) failed(doing string, err error) int {
	code := exitFailed
	if bad := (*kanban.ValueError)(nil); errors.As(err, &bad) {
		code = exitUsage
	}
	message := err.Error()
	if why := kanban.Plainly(err); why != "" {
		message = "cannot " + doing + ": " + why
	}
	if !strings.HasPrefix(message, "cannot ") {
		message = "cannot " + doing + ": " + message
	}
	return c.fail(code, "%s", message)
}

// print writes for people: what a task says is whatever an agent wrote.
func (c *call) print(format string, args ...any) {
	fmt.Fprint(c.Out, show.Text(fmt.Sprintf(format, args...)))
}

// asJSON defines --json.
func (c *call) asJSON() { c.flags.BoolVar(&c.json, "json", false, "print JSON") }

// printJSON writes a value with an indent of two.
func (c *call) printJSON(v any) int {
	e := json.NewEncoder(c.Out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return c.failed("print JSON", err)
	}
	return exitDone
}

// parse reads the flags that the verb has defined and returns the other words. When it returns false the verb ends with the code:
// help was asked for, or the words are wrong. atMost -1 is any number.
func (c *call) parse(atLeast, atMost int) (words []string, code int, ok bool) {
	rest := c.raw
	for len(rest) > 0 {
		if err := c.flags.Parse(rest); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				c.usage(c.Out)
				return nil, exitDone, false
			}
			return nil, c.fail(exitUsage, "cannot run hinit kanban %s: %v; see: hinit kanban %s --help", c.verb.name, err, c.verb.name), false
		}
		left := c.flags.Args()
		if len(left) == 0 {
			break
		}
		if parsed := len(rest) - len(left); parsed > 0 && rest[parsed-1] == "--" {
			words = append(words, left...)
			break
		}
		words, rest = append(words, left[0]), left[1:]
	}
	if len(words) < atLeast || atMost >= 0 && len(words) > atMost {
		return nil, c.fail(exitUsage, "cannot run hinit kanban %s: expected: hinit kanban %s", c.verb.name, strings.TrimSpace(c.verb.name+" "+c.verb.args)), false
	}
	return words, 0, true
}

func (c *call) usage(w io.Writer) {
	fmt.Fprintf(w, "usage: hinit kanban %s\n\n%s\n", strings.TrimSpace(c.verb.name+" "+c.verb.args), c.verb.summary)
	if len(c.verb.aliases) > 0 {
		fmt.Fprintf(w, "Also: %s\n", strings.Join(c.verb.aliases, ", "))
	}
	if c.verb.help != "" {
		fmt.Fprintf(w, "\n%s\n", c.verb.help)
	}
	fmt.Fprintln(w)
	c.flags.VisitAll(func(f *flag.Flag) {
		name, text := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "  %-26s %s\n", strings.TrimSpace("--"+f.Name+" "+name), text)
	})
}

// boards are the boards of this installation.
func (c *call) boards() *kanban.Boards {
	return &kanban.Boards{Root: kanban.Root(c.Env, c.Env("HOME")), Env: c.Env}
}

// paths are the places of the board that the call means.
func (c *call) paths() (kanban.Paths, error) {
	b := c.boards()
	slug, err := kanban.Slug(c.board)
	if err != nil {
		return kanban.Paths{}, err
	}
	if slug != "" && !b.Exists(slug) {
		return kanban.Paths{}, fmt.Errorf("cannot use board %q: it does not exist; create it with: hinit kanban boards create %s", slug, slug)
	}
	return b.Paths(slug)
}

// open opens the board that the call means.
func (c *call) open(ctx context.Context) (*kanban.Store, error) {
	paths, err := c.paths()
	if err != nil {
		return nil, err
	}
	return c.openAt(ctx, paths)
}

func (c *call) openAt(ctx context.Context, paths kanban.Paths) (*kanban.Store, error) {
	return kanban.Open(ctx, paths, kanban.Options{Env: c.Env, Trust: !c.verb.checks, Host: c.Env("HINIT_KANBAN_HOST"), Workdir: c.boards().Meta(paths.Board).DefaultWorkdir})
}

// onBoard runs what a verb does on the open board.
func (c *call) onBoard(do func(ctx context.Context, s *kanban.Store) int) int {
	ctx, cancel := interruptible()
	defer cancel()
	s, err := c.open(ctx)
	if err != nil {
		return c.failed("open the board", err)
	}
	defer s.Close()
	return do(ctx, s)
}

// interruptible returns a context that ends with Ctrl-C or SIGTERM.
func interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(s string) error {
	*l = append(*l, s)
	return nil
}

// number is a flag that may be absent.
type number struct{ n *int64 }

func (n *number) String() string {
	if n.n == nil {
		return ""
	}
	return fmt.Sprint(*n.n)
}

func (n *number) Set(s string) error {
	var v int64
	if _, err := fmt.Sscanf(s, "%d", &v); err != nil || fmt.Sprint(v) != s {
		return fmt.Errorf("%q is no whole number", s)
	}
	n.n = &v
	return nil
}

// seconds is a time that may be absent: a number of seconds, or as Go writes times.
type seconds struct{ number }

func (s *seconds) Set(text string) error {
	if d, err := time.ParseDuration(text); err == nil && d >= time.Second {
		text = fmt.Sprint(int64(d / time.Second))
	}
	return s.number.Set(text)
}

// when is a point in time: seconds since 1970, a date, or a time as in RFC 3339.
type when int64

func (w *when) String() string { return at(int64(*w)) }

func (w *when) Set(text string) error {
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			*w = when(t.Unix())
			return nil
		}
	}
	var n number
	if n.Set(text) != nil {
		return fmt.Errorf("%q is no time; write for instance 2026-01-31", text)
	}
	*w = when(*n.n)
	return nil
}

// dash is what a table has for nothing.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// at is a time for people.
func at(epoch int64) string {
	if epoch == 0 {
		return "-"
	}
	return time.Unix(epoch, 0).Format("2006-01-02 15:04:05")
}
