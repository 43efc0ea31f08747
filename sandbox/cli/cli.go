package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/samber/lo"

	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/sandbox"
	"hinit/sandbox/daemon"
)

// ExitCodeUnknown is the exit code for a command whose own exit code is unknown. It is also the code of a killed command (128 +
// SIGKILL).
const ExitCodeUnknown = 137

// verb is one verb of `hinit sandbox`, such as exec or ls.
type verb struct {
	cmdline.Verb
	hidden  bool   // Hidden from the help, because only the verb cp calls it.
	options string // Names of the verb's flags, see [options.defineAll].
	run     func(*invocation) (int, error)
}

// options are the values of all flags. Each verb defines only some of them.
type options struct {
	task, profile, container, dir, job, retryPolicy string
	env                                             []string
	timeout, maxAge                                 time.Duration
	json, tty, background, follow, dryRun           bool
	volumes                                         bool
}

// invocation is a running verb with its flags and arguments.
type invocation struct {
	ctx            context.Context //nolint:containedctx // an invocation ends before the call that passed ctx
	manager        *sandbox.Manager
	serviceRequest daemon.Request
	sandbox.Streams
	operation string // Name of the failed operation, for errors that don't contain it.
	options   options
	words     []string
}

// defineAll defines the flags of all verbs. A name with a dot, such as "job.only", defines the flag before the dot with
// another description, for verbs that need one.
func (o *options) defineAll(f *flag.FlagSet) {
	f.StringVar(&o.task, "task", "", "the sandbox of this `TASK`; default: default")
	f.StringVar(&o.profile, "profile", "", "of this `PROFILE`; default: the current one")
	f.StringVar(&o.profile, "profile.only", "", "only those of this `PROFILE`")
	f.BoolVar(&o.json, "json", false, "print JSON")
	f.BoolVar(&o.dryRun, "dry-run", false, "only say what would be removed")
	f.DurationVar(&o.maxAge, "max-age", 0, "ended for this `TIME`; default: twice the idle window")
	f.StringVar(&o.container, "in", "", "a container that exists, by its name or `ID`")
	f.StringVar(&o.dir, "dir", "", "begin in this `DIRECTORY`")
	f.BoolVar(&o.tty, "t", false, "give it a terminal")
	f.BoolVar(&o.follow, "f", false, "follow: keep printing")
	f.BoolVar(&o.background, "background", false, "do not wait; print the job")
	f.StringVar(&o.job, "job", "", "of this background command, by its `ID`")
	f.StringVar(&o.job, "job.only", "", "only this background command, by its `ID`, with all that it started")
	f.BoolVar(&o.volumes, "volumes", false, "list the volumes of sandboxes with a root of their own instead")
	f.DurationVar(&o.timeout, "timeout", 0, "end it, with all that it started, after this `TIME`; default: TERMINAL_TIMEOUT")
	f.StringVar(&o.retryPolicy, "retry", "never", "safe: it may be run again if the sandbox was lost while it ran; `WHEN`: never or safe")
	f.Func("e", "set a variable, `NAME=VALUE` or NAME for the caller's value; it stands on no command line inside", func(text string) error {
		o.env = append(o.env, text)
		return nil
	})
}

func (o *options) defineNamed(f *flag.FlagSet, names string) {
	all := cmdline.NewFlagSet("")
	o.defineAll(all)
	for key := range strings.FieldsSeq(names) {
		name, _, _ := strings.Cut(key, ".")
		f.Var(all.Lookup(key).Value, name, all.Lookup(key).Usage)
	}
}

// verbs returns all verbs in the order in which the help lists them.
func verbs() []verb {
	return []verb{
		{
			Verb: cmdline.Verb{
				Name: "exec", Args: "[--] COMMAND [ARG...]", Summary: "run a command in the sandbox, which is made if it is missing", FlagsFirst: true,
				Help: "One word is a line for the shell; its working directory and exported variables are there for the next one.\nSeveral words are a program and its arguments. The exit code is the command's, 124 when it ran out of time.",
			},
			run: (*invocation).exec, options: "task profile in dir e timeout retry background t json",
		},
		{Verb: cmdline.Verb{Name: "shell", Summary: "open a shell in the sandbox"}, options: "task profile in dir e", run: (*invocation).shell},
		{Verb: cmdline.Verb{Name: "ls", Summary: "list the sandboxes"}, options: "volumes json", run: (*invocation).list},
		{Verb: cmdline.Verb{Name: "show", Args: "[SANDBOX]", Summary: "show one with its background commands"}, options: "task profile json", run: (*invocation).show},
		{Verb: cmdline.Verb{Name: "logs", Args: "[SANDBOX]", Summary: "show what its first process or a background command has written"}, options: "task profile job f", run: (*invocation).logs},
		{
			Verb: cmdline.Verb{
				Name: "cp", Args: "SOURCE TARGET", Summary: "copy files into a sandbox or out of it",
				Help: "One of the two begins with a colon, and is inside: :/workspace/report.txt. A directory is copied with all that is in it.",
			},
			options: "task profile", run: func(*invocation) (int, error) { return cmdline.ExitUsage, errors.New("cannot copy here") },
		},
		{Verb: cmdline.Verb{Name: "stop", Args: "[SANDBOX...]", Summary: "stop sandboxes, or a background command of one"}, options: "task profile job.only", run: (*invocation).stop},
		{Verb: cmdline.Verb{Name: "rm", Args: "[SANDBOX...]", Summary: "remove sandboxes, running or not"}, options: "task profile", run: (*invocation).remove},
		{Verb: cmdline.Verb{Name: "prune", Summary: "remove the sandboxes that do not run"}, options: "profile.only dry-run json", run: func(i *invocation) (int, error) { return i.reap(true) }},
		{
			Verb:    cmdline.Verb{Name: "reap", Summary: "remove unused sandboxes: ended long ago, or of an agent that has ended"},
			options: "profile.only dry-run json max-age", run: func(i *invocation) (int, error) { return i.reap(false) },
		},
		{Verb: cmdline.Verb{Name: "_put", Args: "DIRECTORY", Action: "copy"}, hidden: true, options: "task profile", run: transferVerb(func(i *invocation, box *sandbox.Sandbox) error {
			return box.PutTree(i.ctx, i.words[0], i.In)
		})},
		{Verb: cmdline.Verb{Name: "_get", Args: "PATH", Action: "copy"}, hidden: true, options: "task profile", run: transferVerb(func(i *invocation, box *sandbox.Sandbox) error {
			return box.GetTree(i.ctx, i.words[0], i.Out)
		})},
	}
}

// Main executes a command line of `hinit sandbox`, and returns the exit code.
func Main(ctx context.Context, m *sandbox.Manager, req daemon.Request, s sandbox.Streams) int {
	v, opt, words, code, ok := parse(req.Args, s.Out, s.Err)
	if !ok {
		return code
	}
	if len(words) == 0 {
		words = []string{""} // Without a name, the flags select the sandbox.
	}
	i := &invocation{ctx: ctx, manager: m, serviceRequest: req, Streams: s, operation: cmp.Or(v.Action, "run "+v.Command()), options: opt, words: words}
	code, err := v.run(i)
	if err != nil {
		code = cmp.Or(code, i.fail(err))
	}
	return code
}

// fail prints an error, and returns its exit code.
func (i *invocation) fail(err error) (code int) {
	fmt.Fprintln(i.Err, show.EscapeText(cmdline.FailureMessage(i.operation, err)))
	return exitCodeOf(err)
}

// ParseLine parses a command line without executing it. It returns the request for the service, with the variables that the
// command line needs from this process. terminal is true if the command wants a terminal. ParseLine prints errors and the help;
// ok is then false, and the caller exits with code.
func ParseLine(args []string, out, errs io.Writer) (req daemon.Request, terminal bool, code int, ok bool) {
	v, opt, _, code, ok := parse(args, out, errs)
	req = daemon.Request{Args: args, Env: sandbox.InheritedVariables(opt.env), Stdin: v.Name == "exec" || v.Name == "shell"}
	return req, v.Name == "shell" || opt.tty, code, ok
}

func parse(args []string, out, errs io.Writer) (v verb, opt options, words []string, code int, ok bool) {
	var known []string
	name := lo.FirstOrEmpty(args) // A client may send no arguments at all.
	for _, v = range verbs() {
		known = append(known, v.Name)
		if v.Name == name {
			f := cmdline.NewFlagSet(v.Name)
			opt.defineNamed(f, v.options)
			least, most := cmdline.ArgumentBounds(v.Args)
			v.Program, v.Args = "hinit sandbox", strings.TrimSpace("[OPTIONS] "+v.Args)
			words, code, ok = v.Parse(f, args[1:], least, most, out, errs)
			return v, opt, words, code, ok
		}
	}
	fmt.Fprintf(errs, "cannot run %q: hinit sandbox has no such command%s; see: hinit sandbox help\n", name, cmdline.DidYouMean(name, known))
	return v, opt, nil, cmdline.ExitUsage, false
}

// Help prints the list of all verbs.
func Help(w io.Writer) {
	fmt.Fprint(w, "hinit sandbox runs an agent's commands in containers that survive it.\n\n")
	for _, v := range verbs() {
		if !v.hidden {
			fmt.Fprintf(w, "  hinit sandbox %-6s %s\n", v.Name, v.Summary)
		}
	}
	fmt.Fprint(w, `  hinit sandbox serve  own the sandboxes of this volume for all agents (a service of hinit)

SANDBOX is a container's name or id, or a task; none is the default task of the current profile.
hinit sandbox COMMAND --help tells more.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the sandbox does not run, 4 no engine or
service answers, 5 not allowed, 6 no such sandbox; exec and shell return their command's.
`)
}

// errNoSandbox means that a sandbox does not exist.
var errNoSandbox = errors.New("no such sandbox; see: hinit sandbox ls")

func exitCodeOf(err error) int {
	option, down := (*sandbox.OptionError)(nil), (*sandbox.StateError)(nil)
	switch {
	case errors.As(err, &down):
		return cmdline.ExitNotUp
	case errors.Is(err, errNoSandbox), errors.Is(err, sandbox.ErrGone), errors.Is(err, sandbox.ErrNoJob):
		return cmdline.ExitUnknown
	case errors.Is(err, sandbox.ErrNoEngine):
		return cmdline.ExitUnreachable
	case errors.Is(err, sandbox.ErrRefused), errors.Is(err, os.ErrPermission):
		return cmdline.ExitNotAllowed
	case errors.As(err, &option):
		return cmdline.ExitUsage
	}
	return cmdline.ExitFailed
}

// print prints v as JSON if --json was given, otherwise rows as a table.
func (i *invocation) print(v any, rows [][]string) error {
	if i.options.json {
		return cmdline.WriteJSON(i.Out, v, "")
	}
	w := tabwriter.NewWriter(i.Out, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(lo.Map(row, func(cell string, _ int) string { return show.EscapeLine(cell) }), "\t"))
	}
	return w.Flush()
}
