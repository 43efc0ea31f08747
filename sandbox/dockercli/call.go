package dockercli

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"hinit/sandbox"
)

// Call is one command line that the personality handles. Fields that its command doesn't use are zero.
type Call struct {
	command command
	given   given

	Words []string // containers or an image, and the command to run there
	Env   []string // NAME=value, or NAME for the caller's value
	Stdin bool     // it reads the caller's standard input

	// These are for docker ps. State prints a second column, after a tab. Full prints whole ids. A label with the value "" may have
	// any value.
	All, State, Full bool
	Labels           map[string]string
	Status           []sandbox.State

	Spec  sandbox.Spec // for docker run and docker create, without variables
	Grace int          // for docker stop, in seconds
	Force bool         // for docker rm
}

// given has flags that are only needed to parse a call.
type given struct {
	detach, quiet bool
	format        string
	filters       []string
	beyond        map[string]string // flags that lead out of a sandbox and have no field in Spec, with the words that permit them
}

func (c *Call) format(f *pflag.FlagSet) { f.StringVarP(&c.given.format, "format", "f", "", "") }

// only returns a check that accepts one output format.
func only(want string) func(*Call) error {
	return func(c *Call) error {
		if c.given.format != want {
			return &OtherError{Reason: "the format " + strconv.Quote(c.given.format) + " of docker " + c.command.name}
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

func (c *Call) psFlags(f *pflag.FlagSet) {
	f.BoolVarP(&c.All, "all", "a", false, "")
	f.BoolVarP(&c.given.quiet, "quiet", "q", false, "")
	f.BoolVar(&c.Full, "no-trunc", false, "")
	f.StringVar(&c.given.format, "format", "", "")
	f.StringArrayVarP(&c.given.filters, "filter", "f", nil, "")
}

func (c *Call) ps() error {
	c.Labels = map[string]string{}
	switch format := strings.ReplaceAll(c.given.format, `\t`, "\t"); {
	case format == "{{.ID}}\t{{.State}}":
		c.State = true
	case format == "{{.ID}}", format == "" && c.given.quiet:
	default:
		return &OtherError{Reason: "the format " + strconv.Quote(format) + " of docker ps"}
	}
	for _, filter := range c.given.filters {
		key, value, _ := strings.Cut(filter, "=")
		switch key {
		case "label":
			name, is, _ := strings.Cut(value, "=")
			c.Labels[name] = is
		case "status":
			c.Status = append(c.Status, sandbox.State(value))
		default:
			return &OtherError{Reason: "the filter " + strconv.Quote(filter) + " of docker ps"}
		}
	}
	return nil
}

func (c *Call) execFlags(f *pflag.FlagSet) {
	f.BoolVarP(&c.Stdin, "interactive", "i", false, "")
	f.StringArrayVarP(&c.Env, "env", "e", nil, "")
	f.BoolVar(&c.Spec.Privileged, "privileged", false, "")
	unanswered(f, "d/detach t/tty privileged", "u/user w/workdir")
}

func (c *Call) stopFlags(f *pflag.FlagSet) {
	f.IntVarP(&c.Grace, "timeout", "t", 10, "")
	f.IntVar(&c.Grace, "time", 10, "")
}

func (c *Call) removeFlags(f *pflag.FlagSet) {
	f.BoolVarP(&c.Force, "force", "f", false, "")
	f.BoolP("volumes", "v", false, "")
}

func (c *Call) runFlags(f *pflag.FlagSet) {
	f.BoolVarP(&c.given.detach, "detach", "d", false, "")
	c.createFlags(f)
}

func (c *Call) createFlags(f *pflag.FlagSet) {
	c.Spec.Flags(f, &c.Env)
	unanswered(f, "disable-content-trust i/interactive no-healthcheck oom-kill-disable P/publish-all q/quiet rm sig-proxy t/tty", "a/attach c/cpu-shares")
	c.given.beyond = map[string]string{}
	for name, word := range map[string]string{
		"device-cgroup-rule": sandbox.AllowPrivileged, "gpus": sandbox.AllowPrivileged, "cgroup-parent": sandbox.AllowHost, "volumes-from": sandbox.AllowHost,
		"oom-score-adj": sandbox.AllowHost, "use-api-socket": sandbox.AllowSocket,
	} {
		f.Func(name, "", func(value string) error {
			c.given.beyond["--"+name+"="+value] = word
			return nil
		})
		f.Lookup(name).Hidden = true
	}
	f.Lookup("use-api-socket").NoOptDefVal = "true"
}

// unanswered defines flags of the docker command that the personality does not handle: bools have no value, and values have one.
// Each word is SHORT/LONG, or LONG. A value flag without a short name need not be defined, because pflag can skip it.
func unanswered(f *pflag.FlagSet, bools, values string) {
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

// leadsOut returns the part of a call that gives more than a sandbox, and the word that permits it; see [sandbox.Spec.LeadsOut].
func (c *Call) leadsOut(allow []string) (what, word string) {
	for what, word := range c.given.beyond {
		if !slices.Contains(allow, word) {
			return what, word
		}
	}
	for name := range c.Spec.Labels {
		if strings.HasPrefix(name, "hinit-") {
			return "the label " + name, ""
		}
	}
	return c.Spec.LeadsOut(allow...)
}

func (c *Call) run() error {
	if !c.given.detach {
		return &OtherError{Reason: "docker run without --detach"}
	}
	return c.create()
}

func (c *Call) create() error {
	c.Spec.Image, c.Spec.Cmd = c.Words[0], c.Words[1:]
	return nil
}

// each handles a call for every container that it names, also after a failure.
func each(do func(*Personality, context.Context, *Call, string, Caller) int) answer {
	return func(p *Personality, ctx context.Context, c *Call, from Caller) (code int) {
		for _, ref := range c.Words {
			code = max(code, do(p, ctx, c, ref, from))
		}
		return code
	}
}
