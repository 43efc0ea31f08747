// Package dockerflags takes a command line apart as the docker command does: which words are flags, which are their values, and where the
// image or the container begins. It knows nothing of what the flags mean.
//
// The package starts no goroutine and keeps nothing.
package dockerflags

import (
	"fmt"
	"slices"
	"strings"
)

// Grammar is what the docker command makes of the flags of one verb. Lists are words separated by spaces; "v/volume" is a flag with a
// short form. A flag that is in no list takes a value.
type Grammar struct {
	Shorts  string // every flag that has a short form
	Bools   string // every flag without a value, by its long name
	Leading bool   // the first word ends the flags: what follows belongs to a command
}

// Container is the grammar of docker run and docker create.
var Container = Grammar{
	Shorts: "a/attach c/cpu-shares d/detach e/env h/hostname i/interactive l/label m/memory p/publish P/publish-all q/quiet t/tty u/user " +
		"v/volume w/workdir",
	Bools: "detach disable-content-trust help init interactive no-healthcheck oom-kill-disable privileged publish-all quiet read-only rm " +
		"sig-proxy tty use-api-socket",
	Leading: true,
}

// Flag is a flag as it was given, by its long name. Value is "true" for one without a value.
type Flag struct{ Name, Value string }

// Split separates the flags from the words.
func (g Grammar) Split(args []string) (flags []Flag, words []string, err error) {
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		switch {
		case word == "--":
			return flags, append(words, args...), nil
		case len(word) < 2 || word[0] != '-':
			words = append(words, word)
			if g.Leading {
				return flags, append(words, args...), nil
			}
		case strings.HasPrefix(word, "--"):
			name, value, has := strings.Cut(word[2:], "=")
			if flags, args, err = g.add(flags, name, value, has, args); err != nil {
				return nil, nil, err
			}
		default:
			if flags, args, err = g.cluster(flags, word[1:], args); err != nil {
				return nil, nil, err
			}
		}
	}
	return flags, words, nil
}

// cluster reads short flags that are written together; the last one may have a value.
func (g Grammar) cluster(flags []Flag, letters string, args []string) ([]Flag, []string, error) {
	for letters != "" {
		name := g.long(letters[0])
		if name == "" {
			return nil, nil, fmt.Errorf("unknown shorthand flag: %q in -%s", letters[0], letters)
		}
		letters = letters[1:]
		if g.takesValue(name) {
			return g.add(flags, name, strings.TrimPrefix(letters, "="), letters != "", args)
		}
		if value, has := strings.CutPrefix(letters, "="); has {
			return g.add(flags, name, value, true, args)
		}
		flags = append(flags, Flag{name, "true"})
	}
	return flags, args, nil
}

func (g Grammar) add(flags []Flag, name, value string, has bool, args []string) ([]Flag, []string, error) {
	switch {
	case has:
	case !g.takesValue(name):
		value = "true"
	case len(args) == 0:
		return nil, nil, fmt.Errorf("flag needs an argument: --%s", name)
	default:
		value, args = args[0], args[1:]
	}
	return append(flags, Flag{name, value}), args, nil
}

func (g Grammar) takesValue(name string) bool { return !slices.Contains(strings.Fields(g.Bools), name) }

// long is the long name of a short flag, or "".
func (g Grammar) long(short byte) string {
	for f := range strings.FieldsSeq(g.Shorts) {
		if f[0] == short && f[1] == '/' {
			return f[2:]
		}
	}
	return ""
}

// Short is the short form of a flag, or "".
func (g Grammar) Short(name string) string {
	for f := range strings.FieldsSeq(g.Shorts) {
		if f[2:] == name {
			return f[:1]
		}
	}
	return ""
}
