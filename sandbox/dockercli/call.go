package dockercli

import (
	"context"
	"strconv"
	"strings"

	"hinit/sandbox"
	"hinit/sandbox/dockerflags"
)

// Call is one command line that the personality answers. The fields that its command doesn't have are zero.
type Call struct {
	command command
	flags   []dockerflags.Flag

	Words []string // containers or an image, and what is to run there
	Names []string // of variables whose value is the caller's
	Stdin bool     // it reads the caller's standard input

	// Of docker ps. State: the second column, after a tab. Full: whole ids. A label of the value "" need only be there.
	All, State, Full bool
	Labels           map[string]string
	Status           []sandbox.State

	Spec  sandbox.Spec // of docker run and docker create
	Env   []string     // of docker exec: NAME=value, or NAME for the caller's value
	Grace int          // of docker stop, in seconds
	Force bool         // of docker rm
}

// last is the value of a flag, the last one if it was given several times.
func (c *Call) last(name string) (value string) {
	for _, f := range c.flags {
		if f.Name == name {
			value = f.Value
		}
	}
	return value
}

func (c *Call) on(name string) bool { return c.last(name) == "true" }

// only returns a reader that refuses every output format but one.
func only(want string) func(*Call) error {
	return func(c *Call) error {
		if got := c.last("format"); got != want {
			return &OtherError{Reason: "the format " + strconv.Quote(got) + " of docker " + c.command.name}
		}
		return nil
	}
}

func (c *Call) imageInspect() error {
	if len(c.Words) > 1 {
		return &OtherError{Reason: "docker image inspect of several images"}
	}
	return only("{{json .Config.Entrypoint}}")(c)
}

func (c *Call) remove() error {
	c.Force = c.on("force")
	return nil
}

func (c *Call) ps() error {
	c.All, c.Full, c.Labels = c.on("all"), c.on("no-trunc"), map[string]string{}
	switch format := strings.ReplaceAll(c.last("format"), `\t`, "\t"); {
	case format == "{{.ID}}\t{{.State}}":
		c.State = true
	case format == "{{.ID}}", format == "" && c.on("quiet"):
	default:
		return &OtherError{Reason: "the format " + strconv.Quote(format) + " of docker ps"}
	}
	for _, f := range c.flags {
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
			return &OtherError{Reason: "the filter " + strconv.Quote(f.Value) + " of docker ps"}
		}
	}
	return nil
}

func (c *Call) exec() error {
	c.Stdin = c.on("interactive")
	for _, f := range c.flags {
		if f.Name != "env" {
			continue
		}
		c.Env = append(c.Env, f.Value)
		if !strings.Contains(f.Value, "=") {
			c.Names = append(c.Names, f.Value)
		}
	}
	return nil
}

func (c *Call) stop() error {
	c.Grace = 10
	for _, f := range c.flags {
		n, err := strconv.Atoi(f.Value)
		if err != nil {
			return &UsageError{c.command, `invalid argument "` + f.Value + `" for "-t, --timeout" flag: strconv.ParseInt: parsing "` + f.Value + `": invalid syntax`, exitDaemon}
		}
		c.Grace = n
	}
	return nil
}

// run reads what a container is to be made from. The flags keep their order, so that the last one wins where docker lets it.
func (c *Call) run() error {
	if c.command.name == "run" && !c.on("detach") {
		return &OtherError{Reason: "docker run without --detach"}
	}
	var flags []dockerflags.Flag
	for _, f := range c.flags {
		switch {
		case f.Name == "detach":
		case f.Name == "env" && !strings.Contains(f.Value, "="):
			c.Names = append(c.Names, f.Value)
		default:
			flags = append(flags, f)
		}
	}
	if err := c.Spec.Set(flags); err != nil {
		return &OtherError{Reason: err.Error() + ", and so docker " + c.command.name + " with it"}
	}
	c.Spec.Image, c.Spec.Cmd = c.Words[0], c.Words[1:]
	return nil
}

// each answers a call for every container that it names, also when it fails for one.
func each(do func(*Personality, context.Context, *Call, string, Caller) int) answer {
	return func(p *Personality, ctx context.Context, c *Call, from Caller) (code int) {
		for _, ref := range c.Words {
			code = max(code, do(p, ctx, c, ref, from))
		}
		return code
	}
}
