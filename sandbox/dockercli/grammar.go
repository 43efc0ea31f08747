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

// answer does what a call asks, prints what the docker command would, and returns its exit code.
type answer func(*Personality, context.Context, *Call, Caller) int

// command is one command of docker that the personality answers.
type command struct {
	name    string // "image inspect" is one
	args    string // what follows the flags, for the usage line
	atLeast int    // words
	leading bool   // the first word ends the flags: what follows belongs to a command
	flags   func(*Call, *pflag.FlagSet)
	read    func(*Call) error // refuses a call, or fills it in; nil where the flags are all
	answer  answer
}

// commands are all of them, in the order of the reference.
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

// flagSet returns the flags of a call. Those that are hidden are not answered: they are there to find the others.
func (c *Call) flagSet() *pflag.FlagSet {
	f := sandbox.NewFlags()
	f.SetInterspersed(!c.command.leading)
	if c.command.flags != nil {
		c.command.flags(c, f)
	}
	return f
}

// Described calls f with each command that the personality answers, and its flags in their long and short form; "" is none.
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

// find returns the command of a line, and what follows it.
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

// parse reads the flags of a call, all of them even if one is wrong. Unknown ones are left out, and are the error.
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
// personality does not answer. It is a [RefusedError] for a flag that no sandbox gets unless allow has the word for it. It is a
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
