package sandbox

import (
	"io"
	"slices"
	"strings"
	"time"

	"hinit/sandbox/mux"
)

// Request describes a command. Either Command or Argv is set.
type Request struct {
	Command string   // for the shell, which keeps the working directory and exported variables, see [Sandbox.Exec]
	Argv    []string // without a shell, so that nothing is kept

	Dir string            // "" for the tracked directory (Command) or the container's own (Argv)
	Env map[string]string // further variables; they appear on no command line and in no inspect

	Stdin  io.Reader // nil for /dev/null
	Stdout io.Writer // nil drops the output
	Stderr io.Writer // nil joins standard error with Stdout, in the order of the writes

	TTY     bool // all streams are one terminal, and Stderr is not used
	Size    Size
	Resizes <-chan Size // further sizes; may be nil

	Timeout    time.Duration // 0 for Options.Timeout, negative for no limit
	Grace      time.Duration // between TERM and KILL after the time limit or a cancellation; 0 is two seconds
	Repeatable bool          // running the command twice does no harm, so it is repeated if its connection is lost
}

// Named returns the names in values of -e that take the caller's value.
func Named(list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(e string) bool { return strings.Contains(e, "=") })
}

// Environment returns the variables in values of -e: NAME=value, or NAME for the caller's value.
func Environment(list []string, callers map[string]string) map[string]string {
	env := make(map[string]string, len(list))
	for _, e := range list {
		name, value, has := strings.Cut(e, "=")
		if !has {
			value, has = callers[name]
		}
		if has {
			env[name] = value
		}
	}
	return env
}

// Streams are the streams of a command line.
type Streams struct {
	In       io.Reader // nil for no input
	Out, Err io.Writer
	Resizes  <-chan Size
}

// Result says how a command ended. Its code is 128+n for a signal, 124 after the time limit, 130 after a cancellation, and 126 if
// the directory could not be entered. At the time limit, or when its context is cancelled, the whole process tree of a command is
// ended.
type Result struct {
	mux.End
	Duration time.Duration // with all attempts
}

// Job is a background command.
type Job = mux.Job

// Description describes a sandbox.
type Description struct {
	Container
	Task     string `json:"task"`
	Profile  string `json:"profile"`
	Exec     string `json:"exec"`           // "direct" (commands run over a socket) or "attached" (over one exec of the engine for each client)
	Reason   string `json:"reason"`         // why Exec is not "direct"
	Root     string `json:"root,omitempty"` // which user root inside is on the machine
	Dir      string `json:"dir"`
	Jobs     []Job  `json:"jobs"`
	Clients  int    `json:"clients"`  // processes that are connected to the helper, including this one
	Commands int    `json:"commands"` // running commands of this process
}
