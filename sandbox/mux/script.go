package mux

import (
	_ "embed"
	"maps"
	"slices"
)

// Snapshot is the script with which a login shell begins a session. Its arguments are the directory to begin in, the base file to be written,
// and the file for the first directory: login scripts may have gone elsewhere.
//
//go:embed snapshot.sh
var Snapshot string

// command.sh runs a command in a session. Its exit code is the command's, or 126 when the directory could not be entered.
//
//go:embed command.sh
var commandScript string

// Script is what a shell is given to run a command in a session.
type Script struct {
	State   string // directory of the session, "" for none
	Command string
	Dir     string            // "" is where the shell is
	Exports string            // file for the variables afterwards, "" for none
	Where   string            // file for the working directory afterwards
	Env     map[string]string // the command's own variables
}

// The files of a session, in its directory.
const (
	BaseFile    = "base.sh" // what the login shell set up: variables, functions, aliases
	ExportsFile = "env.sh"  // variables as the last command left them
	WhereFile   = "cwd"
)

// Argv is the command line of the shell.
func (s Script) Argv(shell string) []string {
	argv := []string{shell, "-c", commandScript, shell, s.State, s.Command, s.Dir, s.Exports, s.Where}
	return append(argv, slices.Sorted(maps.Keys(s.Env))...)
}

// Environ returns the command's own variables as the script expects them, under other names. It renames them after it has restored the
// session's variables, which would win otherwise. A value never stands in a command line.
func (s Script) Environ() map[string]string {
	out := make(map[string]string, len(s.Env))
	for name, value := range s.Env {
		out["hinit_env_"+name] = value
	}
	return out
}

// ValidName reports whether a shell takes it for the name of a variable.
func ValidName(name string) bool {
	for i, c := range []byte(name) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
