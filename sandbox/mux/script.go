package mux

import (
	_ "embed"
	"maps"
	"slices"
	"strings"
)

// SessionSnapshotScript is the script with which a login shell starts a session. Its arguments are the session's first directory,
// the base file to write, and the file in which it records the directory. The directory is an argument because login scripts may
// change it.
//
//go:embed snapshot.sh
var SessionSnapshotScript string

// commandScript runs a command in a session. Its exit code is the exit code of the command, or 126 if the directory could not be
// entered.
//
//go:embed command.sh
var commandScript string

// Script is a command that a shell runs with the state of a session: its directory, variables, functions and aliases.
type Script struct {
	StateDir     string // directory with the session's files; "" for none
	Command      string
	Dir          string            // working directory; "" for the session's
	ExportsPath  string            // file to which the script writes the exported variables after the command; "" for none
	FinalDirPath string            // file to which the script writes the working directory after the command
	Env          map[string]string // variables for this command only
}

// Names of the files in a session's directory.
const (
	BaseFile    = "base.sh" // state after the login shell: variables, functions, aliases
	ExportsFile = "env.sh"  // exported variables after the last command
	CwdFile     = "cwd"
)

// Argv returns the command line of the shell that runs the command.
func (s Script) Argv(shell string) []string {
	argv := []string{shell, "-c", commandScript, shell, s.StateDir, s.Command, s.Dir, s.ExportsPath, s.FinalDirPath}
	return append(argv, slices.Sorted(maps.Keys(s.Env))...)
}

// Environ returns the command's own variables, with a prefix before each name. The script first restores the session's
// variables and then removes the prefix, so that the command's own values win. The variables are passed in the environment,
// because every user can read a command line.
func (s Script) Environ() map[string]string {
	out := make(map[string]string, len(s.Env))
	for name, value := range s.Env {
		out["hinit_env_"+name] = value
	}
	return out
}

// ValidName reports whether a shell accepts the name for a variable.
func ValidName(name string) bool {
	const letters = "_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	return name != "" && strings.Contains(letters, name[:1]) && strings.Trim(name, letters+"0123456789") == ""
}
