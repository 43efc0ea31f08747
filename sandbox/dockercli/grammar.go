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

// answer handles a call, prints what the docker command would print, and returns its exit code.
type answer func(*Personality, context.Context, *Call, Caller) int

// command is one command of docker that the personality handles.
type command struct {
	name    string // such as "image inspect"
	args    string // arguments after the flags, for the usage line
	atLeast int    // least number of arguments
	leading bool   // the first argument ends the flags: the rest belongs to a command
	flags   func(*Call, *pflag.FlagSet)
	read    func(*Call) error // checks a call and completes it; nil if the flags are enough
	answer  answer
}

// commands returns all commands in the order of the reference.
func commands() []command {
	return []command{
		{name: "version", answer: (*Personality).version},
		{name: "info", flags: (*Call).format, read: only("{{.Driver}}"), answer: (*Personality).info},
		{name: "image inspect", args: "IMAGE", atLeast: 1, flags: (*Call).format, read: (*Call).imageInspect, answer: (*Personality).imageInspect},
		{name: "ps", flags: (*Call).psFlags, read: (*Call).ps, answer: (*Personality).list},
		{name: "run", args: "IMAGE COMMAND...", atLeast: 1, leading: true, flags: (*Call).runFlags, read: (*Call).run, answer: (*Personality).run},
		{name: "start", args: "CONTAINER...", atLeast: 1, answer: each((*Personality).start)},
		{name: "exec", args: "CONTAINER COMMAND...", atLeast: 2, leading: true, flags: (*Call).execFlags, answer: (*Personality).exec},
		{name: "inspect", args: "CONTAINER...", atLeast: 1, flags: (*Call).format, read: only("{{.State.FinishedAt}}"), answer: each((*Personality).inspect)},
		{name: "create", args: "IMAGE COMMAND...", atLeast: 1, leading: true, flags: (*Call).createFlags, read: (*Call).create, answer: (*Personality).run},
		{name: "stop", args: "CONTAINER...", atLeast: 1, flags: (*Call).stopFlags, answer: each((*Personality).stop)},
		{name: "rm", args: "CONTAINER...", atLeast: 1, flags: (*Call).removeFlags, answer: each((*Personality).remove)},
	}
}

// flagSet returns the flags of a call. Hidden flags are not handled; they are defined so that the other flags can be found.
func (c *Call) flagSet() *pflag.FlagSet {
	f := sandbox.NewFlags()
	f.SetInterspersed(!c.command.leading)
	if c.command.flags != nil {
		c.command.flags(c, f)
	}
	return f
}

// Described calls f for each command that the personality handles, with its flags by their long names. The value is the short name,
// or "".
func Described(f func(line string, flags map[string]string)) {
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

// find returns the command of a line, and the rest of the line.
func find(args []string) (c command, rest []string, err error) {
	if len(args) == 0 {
		return c, nil, &OtherError{Reason: "docker without a command"}
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
		return c, nil, &OtherError{Reason: "docker " + name}
	}
	return all[at], rest, nil
}

// parse reads all flags of a call, even after a wrong one. It leaves out unknown flags and returns an error for them.
func (c *Call) parse(args []string) (err error) {
	f := c.flagSet()
	set := func(flag *pflag.Flag, value string) error {
		if bad := f.Set(flag.Name, value); bad != nil && err == nil {
			if err = (&OtherError{Reason: bad.Error()}); errors.Is(bad, strconv.ErrSyntax) { // the docker command refuses it too
				err = &UsageError{c.command, bad.Error(), exitDaemon}
			}
		}
		if flag.Hidden && err == nil {
			err = &OtherError{Reason: "the flag --" + flag.Name + " of docker " + c.command.name}
		}
		return nil
	}
	wrong := f.ParseAll(args, set)
	if unknown := (*pflag.NotExistError)(nil); errors.As(wrong, &unknown) || errors.Is(wrong, pflag.ErrHelp) {
		err = &OtherError{Reason: "docker " + c.command.name + " with an " + wrong.Error()}
		f.ParseErrorsAllowlist.UnknownFlags = true
		wrong = f.ParseAll(args, set)
	}
	if wrong != nil && err == nil {
		err = &UsageError{c.command, wrong.Error(), exitDaemon}
	}
	c.Words = append(c.Words, f.Args()...)
	return err
}

// Parse reads the arguments of the docker command, without its own name. The error is an [OtherError] for a call that the
// personality does not handle. It is a [RefusedError] for a flag that no sandbox gets unless allow has the word for it. It is a
// [UsageError] for a call that the docker command refuses too.
func Parse(args, allow []string) (*Call, error) {
	command, rest, err := find(args)
	if err != nil {
		return nil, err
	}
	c := &Call{command: command}
	err = c.parse(rest)
	if what, word := c.leadsOut(allow); what != "" {
		return nil, &RefusedError{what, word}
	}
	if err != nil {
		return nil, err
	}
	if n := command.atLeast; len(c.Words) < n {
		text := "docker: 'docker " + command.name + "' requires at least " + strconv.Itoa(n) + " argument"
		if n > 1 {
			text += "s"
		}
		return nil, &UsageError{command, text, exitFailed}
	}
	if command.read != nil {
		err = command.read(c)
	}
	return c, err
}
