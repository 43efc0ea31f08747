package mux

import (
	_ "embed"
	"maps"
	"slices"
)

// Snapshot is the script with which a login shell starts a session. Its arguments are the session's first directory, the base
// file to write, and the file in which it records the directory. The directory is an argument because login scripts may change
// it.
//
//go:embed snapshot.sh
var Snapshot string

// commandScript runs a command in a session. Its exit code is the exit code of the command, or 126 if the directory could not be
// entered.
//
//go:embed command.sh
var commandScript string

// Script describes a command that a shell runs with the state of a session.
type Script struct {
	State   string // the directory with the session's files, "" for none
	Command string
	Dir     string            // "" for the current directory of the shell
	Exports string            // the file to which the exported variables are written afterwards, "" for none
	Where   string            // the file to which the working directory is written afterwards
	Env     map[string]string // variables for this command only
}

// Names of a session's files in its directory.
const (
	BaseFile    = "base.sh" // the state after the login shell: variables, functions, aliases
	ExportsFile = "env.sh"  // the exported variables after the last command
	WhereFile   = "cwd"
)

// Argv returns the command line of the shell that runs the command.
func (s Script) Argv(shell string) []string {
	argv := []string{shell, "-c", commandScript, shell, s.State, s.Command, s.Dir, s.Exports, s.Where}
	return append(argv, slices.Sorted(maps.Keys(s.Env))...)
}

// Environ returns the command's own variables, with the prefix that the script expects. The script first restores the session's
// variables, and then removes the prefix. Without the prefix, the session's variables would replace the command's. Values never
// appear on a command line.
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
