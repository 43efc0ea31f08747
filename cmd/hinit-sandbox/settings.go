package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/sandbox/policy"
)

// settings are what the operator decides for the service.
type settings struct {
	socket, state, user string
	policy              policy.Policy
}

// setting is one of them: an option of serve and a variable.
type setting struct {
	name, variable, value, doc string
	set                        func(*settings, string) error
}

// settingsTable is all of them.
func settingsTable() []setting {
	words := func(text string) []string {
		return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
	}
	text := func(field func(*settings) *string) func(*settings, string) error {
		return func(s *settings, v string) error {
			*field(s) = v
			return nil
		}
	}
	texts := func(field func(*settings) *[]string) func(*settings, string) error {
		return func(s *settings, v string) error {
			*field(s) = words(v)
			return nil
		}
	}
	return []setting{
		{"socket", "HINIT_SANDBOX_SOCKET", config.SandboxSocket(os.LookupEnv), "unix `SOCKET` that it listens on", text(func(s *settings) *string { return &s.socket })},
		{"state", "HINIT_SANDBOX_STATE", "/run/hinit-sandbox", "`DIRECTORY` for what it knows of its callers; made for root alone", text(func(s *settings) *string { return &s.state })},
		{"user", "HINIT_SANDBOX_USER", "hermes", "`USER` who may ask, besides root", text(func(s *settings) *string { return &s.user })},
		{
			"images", "HINIT_SANDBOX_IMAGES", "", "`IMAGES` that sandboxes may be made of: patterns with * and ?, separated by commas; one without a tag allows every tag; none: TERMINAL_DOCKER_IMAGE",
			texts(func(s *settings) *[]string { return &s.policy.Images }),
		},
		{"roots", "HINIT_SANDBOX_ROOTS", "", "`DIRECTORIES` below which the source of a mount may be, separated by commas; none: HERMES_HOME", texts(func(s *settings) *[]string { return &s.policy.Roots })},
		{"networks", "HINIT_SANDBOX_NETWORKS", "", "`NETWORKS` that a sandbox may join, besides none and the engine's default", texts(func(s *settings) *[]string { return &s.policy.Networks })},
		{"runtimes", "HINIT_SANDBOX_RUNTIMES", "", "`RUNTIMES` that a sandbox may have, besides the engine's default", texts(func(s *settings) *[]string { return &s.policy.Runtimes })},
		{"root", "HINIT_SANDBOX_ROOT", "", "`private`: commands may be root inside, and nothing is shared with the caller; without it they run as the caller, unless the engine keeps root inside apart from root here", func(s *settings, v string) error {
			if s.policy.Private = v == "private"; !s.policy.Private && v != "" {
				return errors.New("it must be private, or empty")
			}
			return nil
		}},
		{"memory", "HINIT_SANDBOX_MEMORY", "5120", "highest limit of memory, in `MB`, and the one where none is asked for; 0 is none", func(s *settings, v string) error {
			n, err := strconv.ParseInt(v, 10, 32)
			s.policy.Memory = n << 20
			return whole(n, err)
		}},
		{"cpus", "HINIT_SANDBOX_CPUS", "0", "highest limit of `PROCESSORS`, and the one where none is asked for; 0 is none", func(s *settings, v string) (err error) {
			s.policy.CPUs, err = strconv.ParseFloat(v, 64)
			return whole(int64(s.policy.CPUs), err)
		}},
		{"most", "HINIT_SANDBOX_MOST", "64", "`SANDBOXES` that one user may have; 0 is no limit", func(s *settings, v string) error {
			n, err := strconv.Atoi(v)
			s.policy.Most = n
			return whole(int64(n), err)
		}},
	}
}

func whole(n int64, err error) error {
	if err != nil || n < 0 {
		return fmt.Errorf("it must be a number, 0 or more")
	}
	return nil
}

// readSettings reads the options of serve: a flag wins over its variable.
func readSettings(args []string, table []setting, lookup func(string) (string, bool), out io.Writer) (s settings, code int, ok bool) {
	verb := cmdline.Verb{
		Program: "hinit sandbox", Name: "serve", Args: "[OPTIONS]", Doing: "serve sandboxes",
		Summary: "own the sandboxes of this volume for all agents; hinit runs it with HINIT_SANDBOX=1",
	}
	f := cmdline.Flags(verb.Name)
	given := map[string]*string{}
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
		if err := t.set(&s, *given[t.name]); err != nil {
			fmt.Fprintf(os.Stderr, "cannot serve sandboxes: --%s (%s) is %q: %v; see: hinit sandbox serve --help\n", t.name, t.variable, *given[t.name], err)
			return s, cmdline.WrongUsage, false
		}
	}
	return s, 0, true
}
