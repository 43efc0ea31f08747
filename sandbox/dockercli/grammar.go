package dockercli

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"hinit/sandbox"
	"hinit/sandbox/dockerflags"
)

// answer does what a call asks, prints what the docker command would, and returns its exit code.
type answer func(*Personality, context.Context, *Call, Caller) int

// command is one command of docker that the personality answers.
type command struct {
	name    string // "image inspect" is one
	args    string // what follows the flags, for the usage line
	atLeast int    // words
	known   string // the flags that it answers
	grammar dockerflags.Grammar
	read    func(*Call) error // fills in a call; nil where its words are all
	answer  answer
}

// commands are all of them, in the order of the reference.
func commands() []command {
	format := dockerflags.Grammar{Shorts: "f/format"}
	container := strings.Join(sandbox.FlagNames(), " ")
	return []command{
		{name: "version", grammar: format, answer: (*Personality).version},
		{name: "info", known: "format", grammar: format, read: only("{{.Driver}}"), answer: (*Personality).info},
		{name: "image inspect", args: "IMAGE", atLeast: 1, known: "format", grammar: format, read: (*Call).imageInspect, answer: (*Personality).imageInspect},
		{name: "ps", known: "all filter format quiet no-trunc", read: (*Call).ps, answer: (*Personality).list, grammar: dockerflags.Grammar{
			Shorts: "a/all f/filter n/last l/latest q/quiet s/size", Bools: "all latest no-trunc quiet size",
		}},
		{
			name: "run", args: "IMAGE COMMAND...", atLeast: 1, known: "detach " + container, grammar: dockerflags.Container, read: (*Call).run,
			answer: (*Personality).run,
		},
		{name: "start", args: "CONTAINER...", atLeast: 1, answer: each((*Personality).start), grammar: dockerflags.Grammar{
			Shorts: "a/attach i/interactive", Bools: "attach interactive",
		}},
		{
			name: "exec", args: "CONTAINER COMMAND...", atLeast: 2, known: "interactive env", read: (*Call).exec, answer: (*Personality).exec,
			grammar: dockerflags.Grammar{
				Shorts: "d/detach e/env i/interactive t/tty u/user w/workdir", Bools: "detach interactive privileged tty", Leading: true,
			},
		},
		{
			name: "inspect", args: "CONTAINER...", atLeast: 1, known: "format", read: only("{{.State.FinishedAt}}"), answer: each((*Personality).inspect),
			grammar: dockerflags.Grammar{Shorts: "f/format s/size", Bools: "size"},
		},
		{name: "create", args: "IMAGE COMMAND...", atLeast: 1, known: container, grammar: dockerflags.Container, read: (*Call).run, answer: (*Personality).run},
		{
			name: "stop", args: "CONTAINER...", atLeast: 1, known: "timeout time", read: (*Call).stop, answer: each((*Personality).stop),
			grammar: dockerflags.Grammar{Shorts: "s/signal t/timeout"},
		},
		{name: "rm", args: "CONTAINER...", atLeast: 1, known: "force volumes", read: (*Call).remove, answer: each((*Personality).remove), grammar: dockerflags.Grammar{
			Shorts: "f/force l/link v/volumes", Bools: "force link volumes",
		}},
	}
}

// Described calls f with each command that the personality answers, and its flags in their long and short form; "" is none.
func Described(f func(line string, flags map[string]string)) {
	for _, c := range commands() {
		flags := map[string]string{}
		for name := range strings.FieldsSeq(c.known) {
			flags[name] = c.grammar.Short(name)
		}
		f(strings.TrimSpace("docker "+c.name+" "+c.args), flags)
	}
}

// split takes the arguments of the docker command apart.
func split(args []string) (*Call, error) {
	if len(args) == 0 {
		return nil, &OtherError{Reason: "docker without a command"}
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
		return nil, &OtherError{Reason: "docker " + name}
	}
	flags, words, err := all[at].grammar.Split(rest)
	if err != nil {
		return nil, &UsageError{all[at], err.Error(), exitDaemon}
	}
	return &Call{command: all[at], flags: flags, Words: words}, nil
}

// Parse reads the arguments of the docker command, without its own name. The error is an [OtherError] for a call that the
// personality does not answer. It is a [RefusedError] for a flag that no sandbox gets unless allow has the word for it. It is a
// [UsageError] for a call that the docker command refuses too.
func Parse(args, allow []string) (*Call, error) {
	c, err := split(args)
	if err != nil {
		return nil, err
	}
	for _, f := range c.flags {
		if what, word := sandbox.FlagLeadsOut(f.Name, f.Value, allow...); what != "" {
			return nil, &RefusedError{what, word}
		}
	}
	known := strings.Fields(c.command.known)
	for _, f := range c.flags {
		if !slices.Contains(known, f.Name) {
			return nil, &OtherError{Reason: "the flag --" + f.Name + " of docker " + c.command.name}
		}
	}
	if n := c.command.atLeast; len(c.Words) < n {
		text := "docker: 'docker " + c.command.name + "' requires at least " + strconv.Itoa(n) + " argument"
		if n > 1 {
			text += "s"
		}
		return nil, &UsageError{c.command, text, exitFailed}
	}
	if c.command.read != nil {
		err = c.command.read(c)
	}
	return c, err
}
