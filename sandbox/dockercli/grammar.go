package dockercli

import (
	"slices"
	"strconv"
	"strings"

	"hinit/sandbox"
	"hinit/sandbox/dockerflags"
)

// command is one command of docker that the personality answers.
type command struct {
	name    string // "image inspect" is one
	args    string // what follows the flags, for the usage line
	atLeast int    // words
	known   string // the flags that it answers
	grammar dockerflags.Grammar
	read    func(*line) (Call, error)
}

// commands are all of them, in the order of the reference.
func commands() []command {
	format := dockerflags.Grammar{Shorts: "f/format"}
	container := strings.Join(sandbox.FlagNames(), " ")
	return []command{
		{name: "version", grammar: format, read: func(*line) (Call, error) { return &Version{}, nil }},
		{name: "info", known: "format", grammar: format, read: func(l *line) (Call, error) { return &Info{}, l.format("{{.Driver}}") }},
		{name: "image inspect", args: "IMAGE", atLeast: 1, known: "format", grammar: format, read: (*line).imageInspect},
		{name: "ps", known: "all filter format quiet no-trunc", read: (*line).ps, grammar: dockerflags.Grammar{
			Shorts: "a/all f/filter n/last l/latest q/quiet s/size", Bools: "all latest no-trunc quiet size",
		}},
		{name: "run", args: "IMAGE COMMAND...", atLeast: 1, known: "detach " + container, grammar: dockerflags.Container, read: (*line).run},
		{name: "start", args: "CONTAINER...", atLeast: 1, read: func(l *line) (Call, error) { return &Start{l.words}, nil }, grammar: dockerflags.Grammar{
			Shorts: "a/attach i/interactive", Bools: "attach interactive",
		}},
		{name: "exec", args: "CONTAINER COMMAND...", atLeast: 2, known: "interactive env", read: (*line).exec, grammar: dockerflags.Grammar{
			Shorts: "d/detach e/env i/interactive t/tty u/user w/workdir", Bools: "detach interactive privileged tty", Leading: true,
		}},
		{name: "inspect", args: "CONTAINER...", atLeast: 1, known: "format", read: (*line).inspect, grammar: dockerflags.Grammar{Shorts: "f/format s/size", Bools: "size"}},
		{name: "create", args: "IMAGE COMMAND...", atLeast: 1, known: container, grammar: dockerflags.Container, read: (*line).run},
		{name: "stop", args: "CONTAINER...", atLeast: 1, known: "timeout time", grammar: dockerflags.Grammar{Shorts: "s/signal t/timeout"}, read: (*line).stop},
		{name: "rm", args: "CONTAINER...", atLeast: 1, known: "force volumes", read: (*line).remove, grammar: dockerflags.Grammar{
			Shorts: "f/force l/link v/volumes", Bools: "force link volumes",
		}},
	}
}

// line is a command line taken apart.
type line struct {
	command command
	flags   []dockerflags.Flag
	words   []string
}

// split takes the arguments of the docker command apart.
func split(args []string) (*line, error) {
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
	return &line{all[at], flags, words}, nil
}

// Parse reads the arguments of the docker command, without its own name. The error is an [OtherError] for a call that the
// personality does not answer. It is a [RefusedError] for a flag that no sandbox gets unless allow has the word for it. It is a
// [UsageError] for a call that the docker command refuses too.
func Parse(args, allow []string) (Call, error) {
	l, err := split(args)
	if err != nil {
		return nil, err
	}
	for _, f := range l.flags {
		if what, word := sandbox.FlagLeadsOut(f.Name, f.Value, allow...); what != "" {
			return nil, &RefusedError{what, word}
		}
	}
	known := strings.Fields(l.command.known)
	for _, f := range l.flags {
		if !slices.Contains(known, f.Name) {
			return nil, &OtherError{Reason: "the flag --" + f.Name + " of docker " + l.command.name}
		}
	}
	if n := l.command.atLeast; len(l.words) < n {
		text := "docker: 'docker " + l.command.name + "' requires at least " + strconv.Itoa(n) + " argument"
		if n > 1 {
			text += "s"
		}
		return nil, &UsageError{l.command, text, exitFailed}
	}
	return l.command.read(l)
}

// last is the value of a flag, the last one if it was given several times.
func (l *line) last(name string) (value string) {
	for _, f := range l.flags {
		if f.Name == name {
			value = f.Value
		}
	}
	return value
}

func (l *line) on(name string) bool { return l.last(name) == "true" }

// format refuses every output format but one.
func (l *line) format(want string) error {
	if got := l.last("format"); got != want {
		return &OtherError{Reason: "the format " + strconv.Quote(got) + " of docker " + l.command.name}
	}
	return nil
}
