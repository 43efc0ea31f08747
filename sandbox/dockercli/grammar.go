package dockercli

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"hinit/sandbox"
)

// handler handles a call. It prints what the docker command would print, and returns its exit code.
type handler func(*Emulator, context.Context, *Call, Caller) int

// command is a command of docker that this package handles.
type command struct {
	name         string // such as "image inspect"
	args         string // the arguments after the flags, for the usage message
	minArgs      int    // minimum number of arguments
	argEndsFlags bool   // flags end at the first argument, because the rest belongs to another command
	flags        func(*Call, *pflag.FlagSet)
	complete     func(*Call) error // checks the call and completes it; may be nil
	handle       handler
}

// commands returns all commands, in the order of the reference page.
func commands() []command {
	return []command{
		{name: "version", handle: (*Emulator).version},
		{name: "info", flags: (*Call).format, complete: requireFormat("{{.Driver}}"), handle: (*Emulator).info},
		{name: "image inspect", args: "IMAGE", minArgs: 1, flags: (*Call).format, complete: (*Call).imageInspect, handle: (*Emulator).imageInspect},
		{name: "ps", flags: (*Call).psFlags, complete: (*Call).ps, handle: (*Emulator).list},
		{name: "run", args: "IMAGE COMMAND...", minArgs: 1, argEndsFlags: true, flags: (*Call).runFlags, complete: (*Call).run, handle: (*Emulator).run},
		{name: "start", args: "CONTAINER...", minArgs: 1, handle: forEach((*Emulator).start)},
		{name: "exec", args: "CONTAINER COMMAND...", minArgs: 2, argEndsFlags: true, flags: (*Call).execFlags, handle: (*Emulator).exec},
		{name: "inspect", args: "CONTAINER...", minArgs: 1, flags: (*Call).format, complete: requireFormat("{{.State.FinishedAt}}"), handle: forEach((*Emulator).inspect)},
		{name: "create", args: "IMAGE COMMAND...", minArgs: 1, argEndsFlags: true, flags: (*Call).runFlags, complete: (*Call).run, handle: (*Emulator).run},
		{name: "stop", args: "CONTAINER...", minArgs: 1, flags: (*Call).stopFlags, handle: forEach((*Emulator).stop)},
		{name: "rm", args: "CONTAINER...", minArgs: 1, flags: (*Call).removeFlags, handle: forEach((*Emulator).remove)},
	}
}

// flagSet returns the flags of a call. Hidden flags are not supported. They are defined only so that the parser can find the
// flags after them.
func (c *Call) flagSet() *pflag.FlagSet {
	f := sandbox.NewFlags()
	f.SetInterspersed(!c.command.argEndsFlags)
	if c.command.flags != nil {
		c.command.flags(c, f)
	}
	return f
}

// EachCommand calls f for each docker command that this package handles. flags maps the long names of the command's flags to
// their short names, or to "".
func EachCommand(f func(line string, flags map[string]string)) {
	for _, c := range commands() {
		flags := map[string]string{}
		(&Call{command: c}).flagSet().VisitAll(func(flag *pflag.Flag) {
			if !flag.Hidden {
				flags[flag.Name] = flag.Shorthand
			}
		})
		f(strings.TrimSpace("docker "+c.name+" "+c.args), flags)
	}
}

// findCommand returns the command of a command line, and the remaining arguments.
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

// parse parses all flags of a call, even after an invalid one. It skips unknown flags and returns an error for them.
func (c *Call) parse(args []string) (err error) {
	f := c.flagSet()
	set := func(flag *pflag.Flag, value string) error {
		if bad := f.Set(flag.Name, value); bad != nil && err == nil {
			if err = (&UnhandledError{Reason: bad.Error()}); errors.Is(bad, strconv.ErrSyntax) { // docker also rejects this value
				err = &UsageError{c.command, bad.Error(), exitDaemon}
			}
		}
		if flag.Hidden && err == nil {
			err = &UnhandledError{Reason: "the flag --" + flag.Name + " of docker " + c.command.name}
		}
		return nil
	}
	wrong := f.ParseAll(args, set)
	if unknown := (*pflag.NotExistError)(nil); errors.As(wrong, &unknown) || errors.Is(wrong, pflag.ErrHelp) {
		err = &UnhandledError{Reason: "docker " + c.command.name + " with an " + wrong.Error()}
		f.ParseErrorsAllowlist.UnknownFlags = true
		wrong = f.ParseAll(args, set)
	}
	if wrong != nil && err == nil {
		err = &UsageError{c.command, wrong.Error(), exitDaemon}
	}
	c.Words = append(c.Words, f.Args()...)
	return err
}

// Parse parses the arguments of the docker command, without the word docker. The error is an [UnhandledError] for a call that
// this package does not handle. It is a [RefusedError] for a flag that would weaken the sandbox, unless allow contains the word
// that permits it. It is a [UsageError] for a call that the docker command also rejects.
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
	if command.complete != nil {
		err = command.complete(c)
	}
	return c, err
}
