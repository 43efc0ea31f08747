package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/sandbox/policy"
)

// settings are what the operator decides for the service.
type settings struct {
	socket, state, user, root string
	memory                    int64 // MB
	policy                    policy.Policy
}

// setting is one of them: an option of serve and a variable, and where its value goes.
type setting struct {
	name, variable, value, doc string
	to                         any
}

// table is all of them.
func (s *settings) table() []setting {
	return []setting{
		{"socket", "HINIT_SANDBOX_SOCKET", config.SandboxSocket(os.LookupEnv), "unix `SOCKET` that it listens on", &s.socket},
		{"state", "HINIT_SANDBOX_STATE", "/run/hinit-sandbox", "`DIRECTORY` for what it knows of its callers; made for root alone", &s.state},
		{"user", "HINIT_SANDBOX_USER", "hermes", "`USER` who may ask, besides root", &s.user},
		{
			"images", "HINIT_SANDBOX_IMAGES", "",
			"`IMAGES` that sandboxes may be made of: patterns with * and ?, separated by commas; one without a tag allows every tag; none: TERMINAL_DOCKER_IMAGE",
			&s.policy.Images,
		},
		{"roots", "HINIT_SANDBOX_ROOTS", "", "`DIRECTORIES` below which the source of a mount may be, separated by commas; none: HERMES_HOME", &s.policy.Roots},
		{"networks", "HINIT_SANDBOX_NETWORKS", "", "`NETWORKS` that a sandbox may join, besides none and the engine's default", &s.policy.Networks},
		{"runtimes", "HINIT_SANDBOX_RUNTIMES", "", "`RUNTIMES` that a sandbox may have, besides the engine's default", &s.policy.Runtimes},
		{
			"root", "HINIT_SANDBOX_ROOT", "",
			"`private`: commands may be root inside, and nothing is shared with the caller; without it they run as the caller, unless the engine keeps root inside apart from root here",
			&s.root,
		},
		{"memory", "HINIT_SANDBOX_MEMORY", "5120", "highest limit of memory, in `MB`, and the one where none is asked for; 0 is none", &s.memory},
		{"cpus", "HINIT_SANDBOX_CPUS", "0", "highest limit of `PROCESSORS`, and the one where none is asked for; 0 is none", &s.policy.CPUs},
		{"most", "HINIT_SANDBOX_MOST", "64", "`SANDBOXES` that one user may have; 0 is no limit", &s.policy.Most},
	}
}

// set reads a value.
func set(to any, value string) (err error) {
	var n float64
	switch to := to.(type) {
	case *string:
		*to = value
	case *[]string:
		err = (*cmdline.List)(to).Set(value)
	case *float64:
		*to, err = strconv.ParseFloat(value, 64)
		n = *to
	case *int64:
		*to, err = strconv.ParseInt(value, 10, 32)
		n = float64(*to)
	case *int:
		*to, err = strconv.Atoi(value)
		n = float64(*to)
	}
	if err != nil || !(n >= 0) { // NaN too
		err = errors.New("it must be a number, 0 or more")
	}
	return err
}

// readSettings reads the options of serve: a flag wins over its variable.
func readSettings(args []string, lookup func(string) (string, bool), out io.Writer) (s settings, code int, ok bool) {
	verb := cmdline.Verb{
		Program: "hinit sandbox", Name: "serve", Args: "[OPTIONS]", Doing: "serve sandboxes",
		Summary: "own the sandboxes of this volume for all agents; hinit runs it with HINIT_SANDBOX=1",
	}
	f := cmdline.Flags(verb.Name)
	given := map[string]*string{}
	table := s.table()
	for _, t := range table {
		value := t.value
		if v, set := lookup(t.variable); set && v != "" {
			value = v
		}
		given[t.name] = f.String(t.name, value, fmt.Sprintf("%s (%s; default: %q)", t.doc, t.variable, t.value))
	}
	if _, code, ok = verb.Parse(f, args, 0, 0, out, os.Stderr); !ok {
		return s, code, false
	}
	for _, t := range table {
		err := set(t.to, *given[t.name])
		if t.to == any(&s.root) && s.root != "" && s.root != "private" {
			err = errors.New("it must be private, or empty")
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "cannot serve sandboxes: --%s (%s) is %q: %v; see: hinit sandbox serve --help\n", t.name, t.variable, *given[t.name], err)
			return s, cmdline.WrongUsage, false
		}
	}
	s.policy.Memory, s.policy.Private = s.memory<<20, s.root != ""
	return s, 0, true
}
