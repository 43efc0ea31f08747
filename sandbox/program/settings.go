package program

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"hinit/client/dial"
	"hinit/internal/cmdline"
	"hinit/sandbox/policy"
)

// settings are the operator's settings for the service.
type settings struct {
	socket, state, user, root string
	memory                    int64 // memory limit in MB
	policy                    policy.Policy
}

// wordList is a flag with a list of words. A later flag replaces the whole list.
type wordList []string

func (w *wordList) String() string { return (*cmdline.List)(w).String() }
func (w *wordList) Set(text string) error {
	*w = nil
	return (*cmdline.List)(w).Set(text)
}

// define defines the flags of hinit sandbox serve.
func (s *settings) define(f *flag.FlagSet) {
	p := &s.policy
	f.StringVar(&s.socket, "socket", dial.SandboxSocket(os.LookupEnv), "unix `SOCKET` that it listens on")
	f.StringVar(&s.state, "state", "/run/hinit-sandbox", "`DIRECTORY` for what it knows of its callers; made for root alone")
	f.StringVar(&s.user, "user", "hermes", "`USER` who may ask, besides root")
	f.Var((*wordList)(&p.Images), "images", "`IMAGES` that sandboxes may be made of: patterns with * and ?, separated by commas; one without a tag allows every tag; none: TERMINAL_DOCKER_IMAGE")
	f.Var((*wordList)(&p.Roots), "roots", "`DIRECTORIES` below which the source of a mount may be, separated by commas; none: HERMES_HOME")
	f.Var((*wordList)(&p.Networks), "networks", "`NETWORKS` that a sandbox may join, besides none and the engine's default")
	f.Var((*wordList)(&p.Runtimes), "runtimes", "`RUNTIMES` that a sandbox may have, besides the engine's default")
	f.StringVar(&s.root, "root", "", "`private`: commands may be root inside, and nothing is shared with the caller; without it they run as the caller, unless the engine keeps root inside apart from root here")
	f.Int64Var(&s.memory, "memory", 5120, "highest limit of memory, in `MB`, and the one where none is asked for; 0 is none")
	f.Float64Var(&p.CPUs, "cpus", 0, "highest limit of `PROCESSORS`, and the one where none is asked for; 0 is none")
	f.IntVar(&p.MaxContainers, "most", 64, "`SANDBOXES` that one user may have; 0 is no limit")
}

// variables are the environment variables for these flags. HINIT_SANDBOX_SOCKET sets --socket, and so on.
var variables = []string{
	"HINIT_SANDBOX_SOCKET", "HINIT_SANDBOX_STATE", "HINIT_SANDBOX_USER", "HINIT_SANDBOX_IMAGES", "HINIT_SANDBOX_ROOTS", "HINIT_SANDBOX_NETWORKS",
	"HINIT_SANDBOX_RUNTIMES", "HINIT_SANDBOX_ROOT", "HINIT_SANDBOX_MEMORY", "HINIT_SANDBOX_CPUS", "HINIT_SANDBOX_MOST",
}

// check returns an error if a setting is invalid.
func (s *settings) check() error {
	switch {
	case s.root != "" && s.root != "private":
		return fmt.Errorf("--root is %q: it must be private, or empty", s.root)
	case s.memory < 0 || s.memory > math.MaxInt32, s.policy.MaxContainers < 0, !(s.policy.CPUs >= 0): // true for NaN
		return errors.New("a limit must be a number, 0 or more")
	}
	return nil
}

// readSettings reads the settings from the flags and the environment. A flag takes precedence over its variable.
func readSettings(args []string, lookup func(string) (string, bool), out io.Writer) (s settings, code int, ok bool) {
	verb := cmdline.Verb{
		Program: "hinit sandbox", Name: "serve", Args: "[OPTIONS]", Doing: "serve sandboxes",
		Summary: "own the sandboxes of this volume for all agents; hinit runs it with HINIT_SANDBOX=1",
	}
	f := cmdline.Flags(verb.Name)
	s.define(f)
	var wrong error
	for _, name := range variables {
		option := f.Lookup(strings.ToLower(name[len("HINIT_SANDBOX")+1:]))
		option.Usage += fmt.Sprintf(" (%s; default: %q)", name, option.DefValue)
		if value, _ := lookup(name); value != "" {
			if err := option.Value.Set(value); err != nil {
				wrong = fmt.Errorf("%s is %q: %w", name, value, err)
			}
		}
	}
	if _, code, ok = verb.Parse(f, args, 0, 0, out, os.Stderr); !ok {
		return s, code, false
	}
	if wrong = cmp.Or(wrong, s.check()); wrong != nil {
		fmt.Fprintf(os.Stderr, "cannot serve sandboxes: %v; see: hinit sandbox serve --help\n", wrong)
		return s, cmdline.WrongUsage, false
	}
	s.policy.Memory, s.policy.Private = s.memory<<20, s.root != ""
	return s, 0, true
}
