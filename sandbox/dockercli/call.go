package dockercli

import (
	"strconv"
	"strings"

	"hinit/sandbox"
)

// Call is one command line that the personality answers.
type Call any

// The calls, named after docker's commands.
type (
	// Version asks whether the engine answers.
	Version struct{}
	// Info asks for the storage driver, the one thing of info that the personality prints.
	Info struct{}
	// ImageInspect asks for the entry point of an image.
	ImageInspect struct{ Image string }
	// PS lists containers.
	PS struct {
		All, State bool              // State: the second column, after a tab
		Full       bool              // whole ids
		Labels     map[string]string // a label of the value "" need only be there
		Status     []sandbox.State
	}
	// Run is docker run -d, and docker create without Start.
	Run struct {
		Spec  sandbox.Spec
		Names []string // of variables whose value is the caller's
		Start bool
	}
	// Start starts containers that exist.
	Start struct{ Containers []string }
	// Exec runs a command in a container.
	Exec struct {
		Container string
		Argv      []string
		Env       []string // NAME=value, or NAME for the caller's value
		Stdin     bool
	}
	// Inspect asks when containers have ended.
	Inspect struct{ Containers []string }
	// Stop stops containers.
	Stop struct {
		Containers []string
		Grace      int // seconds
	}
	// Remove removes containers.
	Remove struct {
		Containers []string
		Force      bool
	}
)

func (l *line) imageInspect() (Call, error) {
	if len(l.words) > 1 {
		return nil, &OtherError{Reason: "docker image inspect of several images"}
	}
	return &ImageInspect{l.words[0]}, l.format("{{json .Config.Entrypoint}}")
}

func (l *line) inspect() (Call, error) { return &Inspect{l.words}, l.format("{{.State.FinishedAt}}") }

func (l *line) remove() (Call, error) { return &Remove{l.words, l.on("force")}, nil }

func (l *line) ps() (Call, error) {
	c := &PS{All: l.on("all"), Full: l.on("no-trunc"), Labels: map[string]string{}}
	switch format := strings.ReplaceAll(l.last("format"), `\t`, "\t"); {
	case format == "{{.ID}}\t{{.State}}":
		c.State = true
	case format == "{{.ID}}", format == "" && l.on("quiet"):
	default:
		return nil, &OtherError{Reason: "the format " + strconv.Quote(format) + " of docker ps"}
	}
	for _, f := range l.flags {
		if f.Name != "filter" {
			continue
		}
		key, value, _ := strings.Cut(f.Value, "=")
		switch key {
		case "label":
			name, is, _ := strings.Cut(value, "=")
			c.Labels[name] = is
		case "status":
			c.Status = append(c.Status, sandbox.State(value))
		default:
			return nil, &OtherError{Reason: "the filter " + strconv.Quote(f.Value) + " of docker ps"}
		}
	}
	return c, nil
}

func (l *line) exec() (Call, error) {
	c := &Exec{Container: l.words[0], Argv: l.words[1:]}
	for _, f := range l.flags {
		switch f.Name {
		case "interactive":
			c.Stdin = f.Value == "true"
		case "env":
			c.Env = append(c.Env, f.Value)
		}
	}
	return c, nil
}

func (l *line) stop() (Call, error) {
	c := &Stop{Containers: l.words, Grace: 10}
	for _, f := range l.flags {
		n, err := strconv.Atoi(f.Value)
		if err != nil {
			return nil, &UsageError{l.command, `invalid argument "` + f.Value + `" for "-t, --timeout" flag: strconv.ParseInt: parsing "` + f.Value + `": invalid syntax`, exitDaemon}
		}
		c.Grace = n
	}
	return c, nil
}

// run reads what a container is to be made from. The flags keep their order, so that the last one wins where docker lets it.
func (l *line) run() (Call, error) {
	c := &Run{Start: l.command.name == "run"}
	if c.Start && !l.on("detach") {
		return nil, &OtherError{Reason: "docker run without --detach"}
	}
	var flags []string
	for _, f := range l.flags {
		switch {
		case f.Name == "detach":
		case f.Name == "env" && !strings.Contains(f.Value, "="):
			c.Names = append(c.Names, f.Value)
		default:
			flags = append(flags, "--"+f.Name+"="+f.Value)
		}
	}
	if _, err := c.Spec.ApplyFlags(flags); err != nil {
		return nil, &OtherError{Reason: err.Error() + ", and so docker " + l.command.name + " with it"}
	}
	c.Spec.Image, c.Spec.Cmd = l.words[0], l.words[1:]
	return c, nil
}
