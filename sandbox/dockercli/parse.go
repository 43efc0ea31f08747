package dockercli

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/samber/lo"
	"github.com/spf13/pflag"

	"hinit/sandbox"
)

// handler executes a call. It prints what the docker command would print, and returns the exit code.
type handler func(*Emulator, context.Context, *Call, Caller) int

// command is one command of docker that this package emulates.
type command struct {
	name         string                      // name of the command, such as "image inspect"
	args         string                      // positional arguments, for the usage message
	minArgs      int                         // minimum number of arguments
	argEndsFlags bool                        // Whether flags after the first argument belong to a command for the container.
	flags        func(*Call, *pflag.FlagSet) // Defines the command's flags; nil: it has none.
	completeCall func(*Call) error           // Checks the parsed call and completes it; nil: nothing to check.
	handle       handler
}

// commands returns all commands in the order of the reference page.
func commands() []command {
	return []command{
		{name: "version", handle: (*Emulator).version},
		{name: "info", flags: (*Call).format, completeCall: requireFormat("{{.Driver}}"), handle: (*Emulator).info},
		{name: "image inspect", args: "IMAGE", minArgs: 1, flags: (*Call).format, completeCall: (*Call).imageInspect, handle: (*Emulator).imageInspect},
		{name: "ps", flags: (*Call).psFlags, completeCall: (*Call).ps, handle: (*Emulator).ps},
		{name: "run", args: "IMAGE COMMAND...", minArgs: 1, argEndsFlags: true, flags: (*Call).runFlags, completeCall: (*Call).run, handle: (*Emulator).run},
		{name: "start", args: "CONTAINER...", minArgs: 1, handle: forEachContainer((*Emulator).start)},
		{name: "exec", args: "CONTAINER COMMAND...", minArgs: 2, argEndsFlags: true, flags: (*Call).execFlags, handle: (*Emulator).exec},
		{name: "inspect", args: "CONTAINER...", minArgs: 1, flags: (*Call).format, completeCall: requireFormat("{{.State.FinishedAt}}"), handle: forEachContainer((*Emulator).inspect)},
		{name: "create", args: "IMAGE COMMAND...", minArgs: 1, argEndsFlags: true, flags: (*Call).runFlags, completeCall: (*Call).run, handle: (*Emulator).run},
		{name: "stop", args: "CONTAINER...", minArgs: 1, flags: (*Call).stopFlags, handle: forEachContainer((*Emulator).stop)},
		{name: "rm", args: "CONTAINER...", minArgs: 1, flags: (*Call).removeFlags, handle: forEachContainer((*Emulator).remove)},
	}
}

// flagSet returns the flags of the call's command. It also defines, as hidden ones, flags that this package does not handle.
// Otherwise the parser would not know whether such a flag has a value, and could not find the flags after it.
func (c *Call) flagSet() *pflag.FlagSet {
	f := sandbox.NewFlags()
	f.SetInterspersed(!c.command.argEndsFlags)
	if c.command.flags != nil {
		c.command.flags(c, f)
	}
	return f
}

// EachCommand calls f for each docker command that this package emulates, with its usage line and its flags. The flags that
// only lead to an error are hidden. The reference page is generated with EachCommand.
func EachCommand(f func(line string, flags *pflag.FlagSet)) {
	for _, c := range commands() {
		f(strings.TrimSpace("docker "+c.name+" "+c.args), (&Call{command: c}).flagSet())
	}
}

// findCommand returns the command that the first words of args name, and the other arguments.
func findCommand(args []string) (c command, rest []string, err error) {
	if len(args) == 0 {
		return c, nil, &UnhandledError{Reason: "docker without a command"}
	}
	name, rest := args[0], args[1:]
	if len(rest) > 0 {
		switch name {
		case "image":
			name, rest = "image "+rest[0], rest[1:]
		case "container":
			name, rest = rest[0], rest[1:]
		}
	}
	all := commands()
	at := slices.IndexFunc(all, func(c command) bool { return c.name == name })
	if at < 0 {
		return c, nil, &UnhandledError{Reason: "docker " + name}
	}
	return all[at], rest, nil
}

// parse parses the flags of a call. After an invalid or unknown flag it continues with the next one, so that it finds every
// flag that asks for forbidden rights.
func (c *Call) parse(args []string) (err error) {
	f := c.flagSet()
	set := func(flag *pflag.Flag, value string) error {
		if bad := f.Set(flag.Name, value); bad != nil && err == nil {
			// The real docker also rejects this value.
			if err = (&UnhandledError{Reason: bad.Error()}); errors.Is(bad, strconv.ErrSyntax) {
				err = &UsageError{c.command, bad.Error(), exitDaemon}
			}
		}
		if flag.Hidden && err == nil {
			err = &UnhandledError{Reason: "the flag --" + flag.Name + " of docker " + c.command.name}
		}
		return nil
	}
	problem := f.ParseAll(args, set)
	if unknown := (*pflag.NotExistError)(nil); errors.As(problem, &unknown) || errors.Is(problem, pflag.ErrHelp) {
		err = &UnhandledError{Reason: "docker " + c.command.name + " with an " + problem.Error()}
		f.ParseErrorsAllowlist.UnknownFlags = true
		problem = f.ParseAll(args, set)
	}
	if problem != nil && err == nil {
		err = &UsageError{c.command, problem.Error(), exitDaemon}
	}
	c.Words = append(c.Words, f.Args()...)
	return err
}

// Parse parses the arguments of the docker command, without the word docker. It returns an [UnhandledError] for a call that
// this package does not handle, and a [UsageError] for a call that docker also rejects. It returns a [RefusedError] for a
// flag that would weaken the sandbox, unless allow contains the word that permits the flag.
func Parse(args, allow []string) (*Call, error) {
	command, rest, err := findCommand(args)
	if err != nil {
		return nil, err
	}
	c := &Call{command: command}
	err = c.parse(rest)
	if what, word := c.findEscape(allow); what != "" {
		return nil, &RefusedError{what, word}
	}
	if err != nil {
		return nil, err
	}
	if n := command.minArgs; len(c.Words) < n {
		text := "docker: 'docker " + command.name + "' requires at least " + strconv.Itoa(n) + " argument"
		if n > 1 {
			text += "s"
		}
		return nil, &UsageError{command, text, exitFailed}
	}
	if command.completeCall != nil {
		err = command.completeCall(c)
	}
	return c, err
}

// Call is one parsed command line of docker. A field that the command doesn't use is zero.
type Call struct {
	command  command
	rawFlags rawFlags

	Words []string // names of containers, or an image and the command to run in the container
	Env   []string // NAME=value, or only NAME for a value from the caller's environment
	Stdin bool     // Whether the command reads standard input.

	// Options of docker ps. With ShowState, the output has a second column with the state, after a tab. With ShowFullIDs, it
	// has full ids. A label with the value "" matches any value.
	ShowAll, ShowState, ShowFullIDs bool
	Labels                          map[string]string
	Status                          []sandbox.State

	Spec  sandbox.Spec // Container that docker run or docker create makes. Its variables are in Env.
	Grace int          // Seconds after which docker stop kills the process.
	Force bool         // Value of --force of docker rm.
}

// rawFlags holds flags that are needed only while the call is parsed.
type rawFlags struct {
	detach, quiet bool
	format        string
	filters       []string
	// Flags that would weaken the sandbox and have no field in Spec, each with the word in HINIT_SANDBOX_ALLOW that permits
	// it.
	escapes map[string]string
}

func (c *Call) format(f *pflag.FlagSet) { f.StringVarP(&c.rawFlags.format, "format", "f", "", "") }

// requireFormat returns a check for [command] that accepts only the output format want, which the agent uses.
func requireFormat(want string) func(*Call) error {
	return func(c *Call) error {
		if c.rawFlags.format != want {
			return &UnhandledError{Reason: "the format " + strconv.Quote(c.rawFlags.format) + " of docker " + c.command.name}
		}
		return nil
	}
}

func (c *Call) imageInspect() error {
	if len(c.Words) > 1 {
		return &UnhandledError{Reason: "docker image inspect of several images"}
	}
	return requireFormat("{{json .Config.Entrypoint}}")(c)
}

func (c *Call) psFlags(f *pflag.FlagSet) {
	f.BoolVarP(&c.ShowAll, "all", "a", false, "")
	f.BoolVarP(&c.rawFlags.quiet, "quiet", "q", false, "")
	f.BoolVar(&c.ShowFullIDs, "no-trunc", false, "")
	f.StringVar(&c.rawFlags.format, "format", "", "")
	f.StringArrayVarP(&c.rawFlags.filters, "filter", "f", nil, "")
}

func (c *Call) ps() error {
	c.Labels = map[string]string{}
	switch format := strings.ReplaceAll(c.rawFlags.format, `\t`, "\t"); {
	case format == "{{.ID}}\t{{.State}}":
		c.ShowState = true
	case format == "{{.ID}}", format == "" && c.rawFlags.quiet:
	default:
		return &UnhandledError{Reason: "the format " + strconv.Quote(format) + " of docker ps"}
	}
	for _, filter := range c.rawFlags.filters {
		key, value, _ := strings.Cut(filter, "=")
		switch key {
		case "label":
			name, is, _ := strings.Cut(value, "=")
			c.Labels[name] = is
		case "status":
			c.Status = append(c.Status, sandbox.State(value))
		default:
			return &UnhandledError{Reason: "the filter " + strconv.Quote(filter) + " of docker ps"}
		}
	}
	return nil
}

func (c *Call) execFlags(f *pflag.FlagSet) {
	f.BoolVarP(&c.Stdin, "interactive", "i", false, "")
	f.StringArrayVarP(&c.Env, "env", "e", nil, "")
	f.StringVarP(&c.Spec.Dir, "workdir", "w", "", "")
	f.BoolVar(&c.Spec.Privileged, "privileged", false, "")
	addHiddenFlags(f, "d/detach t/tty privileged", "u/user")
}

func (c *Call) stopFlags(f *pflag.FlagSet) {
	f.IntVarP(&c.Grace, "timeout", "t", 10, "")
	f.IntVar(&c.Grace, "time", 10, "")
}

func (c *Call) removeFlags(f *pflag.FlagSet) {
	f.BoolVarP(&c.Force, "force", "f", false, "")
	f.BoolP("volumes", "v", false, "")
}

// runFlags defines the flags of docker run and docker create.
func (c *Call) runFlags(f *pflag.FlagSet) {
	if c.command.name == "run" {
		f.BoolVarP(&c.rawFlags.detach, "detach", "d", false, "")
	}
	c.Spec.Flags(f, &c.Env)
	addHiddenFlags(f, "disable-content-trust i/interactive no-healthcheck oom-kill-disable P/publish-all q/quiet rm sig-proxy t/tty", "a/attach c/cpu-shares")
	c.rawFlags.escapes = map[string]string{}
	for name, word := range map[string]string{
		"device-cgroup-rule": sandbox.AllowPrivileged, "gpus": sandbox.AllowPrivileged, "cgroup-parent": sandbox.AllowHost, "volumes-from": sandbox.AllowHost,
		"oom-score-adj": sandbox.AllowHost, "use-api-socket": sandbox.AllowSocket,
	} {
		f.Func(name, "", func(value string) error {
			c.rawFlags.escapes["--"+name+"="+value] = word
			return nil
		})
		f.Lookup(name).Hidden = true
	}
	f.Lookup("use-api-socket").NoOptDefVal = "true"
}

// addHiddenFlags defines flags of docker that this package does not handle. bools lists flags without a value, and values
// flags with one, each as SHORT/LONG or LONG. A flag with a value that has no short name need not be listed, because pflag
// can skip it.
func addHiddenFlags(f *pflag.FlagSet, bools, values string) {
	for name := range strings.FieldsSeq(bools + " " + values) {
		short, long, has := strings.Cut(name, "/")
		if !has {
			short, long = "", name
		}
		if f.Lookup(long) == nil {
			f.StringP(long, short, "", "")
		}
		if f.Lookup(long).Hidden = true; slices.Contains(strings.Fields(bools), name) {
			f.Lookup(long).NoOptDefVal = "true"
		}
	}
}

// findEscape returns the part of a call that asks for more rights than a sandbox may have, or "". word is the word in
// HINIT_SANDBOX_ALLOW that would permit it, or "" if none would. See [sandbox.Spec.FindEscape].
func (c *Call) findEscape(allow []string) (what, word string) {
	if what, has := lo.FindKeyBy(c.rawFlags.escapes, func(_, word string) bool { return !slices.Contains(allow, word) }); has {
		return what, c.rawFlags.escapes[what]
	}
	if name, has := lo.FindKeyBy(c.Spec.Labels, func(name, _ string) bool { return strings.HasPrefix(name, "hinit-") }); has {
		return "the label " + name, ""
	}
	return c.Spec.FindEscape(allow...)
}

func (c *Call) run() error {
	if c.command.name == "run" && !c.rawFlags.detach {
		return &UnhandledError{Reason: "docker run without --detach"}
	}
	c.Spec.Image, c.Spec.Cmd = c.Words[0], c.Words[1:]
	return nil
}

// forEachContainer returns a handler that calls do for each container in the call. It continues after a failure.
func forEachContainer(do func(*Emulator, context.Context, *Call, string, Caller) int) handler {
	return func(p *Emulator, ctx context.Context, c *Call, from Caller) (code int) {
		for _, ref := range c.Words {
			code = max(code, do(p, ctx, c, ref, from))
		}
		return code
	}
}
