package mux

import (
	_ "embed"
	"maps"
	"slices"
)

// Snapshot is the script with which a login shell begins a session. Its arguments are the first directory, the base file to
// write, and the file for the first directory. Login scripts may have changed the directory.
//
//go:embed snapshot.sh
var Snapshot string

// command.sh runs a command in a session. Its exit code is the command's, or 126 if the directory could not be entered.
//
//go:embed command.sh
var commandScript string

// Script describes a command that a shell runs in a session.
type Script struct {
	State   string // directory of the session, "" for none
	Command string
	Dir     string            // "" for the shell's present directory
	Exports string            // file to which the variables are written afterwards, "" for none
	Where   string            // file to which the working directory is written afterwards
	Env     map[string]string // the command's own variables
}

// The files of a session in its directory.
const (
	BaseFile    = "base.sh" // state after the login shell: variables, functions, aliases
	ExportsFile = "env.sh"  // variables after the last command
	WhereFile   = "cwd"
)

// Argv returns the command line of the shell.
func (s Script) Argv(shell string) []string {
	argv := []string{shell, "-c", commandScript, shell, s.State, s.Command, s.Dir, s.Exports, s.Where}
	return append(argv, slices.Sorted(maps.Keys(s.Env))...)
}

// Environ returns the command's own variables with the names that the script expects. The script renames them after it has
// restored the session's variables, which would replace them otherwise. A value never appears on a command line.
func (s Script) Environ() map[string]string {
	out := make(map[string]string, len(s.Env))
	for name, value := range s.Env {
		out["hinit_env_"+name] = value
	}
	return out
}

// ValidName reports whether a shell accepts the name for a variable.
func ValidName(name string) bool {
	for i, c := range []byte(name) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
