package sandbox

import (
	"io"
	"slices"
	"strings"
	"time"

	"hinit/sandbox/mux"
)

// Request is a command. Either Command or Argv is set.
type Request struct {
	Command string   // for the shell: working directory and exported variables are carried forward, see [Sandbox.Exec]
	Argv    []string // as it is: no shell, nothing is carried forward

	Dir string            // "" is the tracked directory for Command, the container's own for Argv
	Env map[string]string // on top; never on a command line, never in what inspect shows

	Stdin  io.Reader // nil is /dev/null
	Stdout io.Writer // nil drops it
	Stderr io.Writer // nil joins it with Stdout, in the order in which it was written

	TTY     bool // all of it is one terminal, and Stderr is not used
	Size    Size
	Resizes <-chan Size // further sizes, may be nil

	Timeout time.Duration // 0 is Options.Timeout, negative is none
	Grace   time.Duration // between TERM and KILL of what has run out of time or was cancelled; 0 is two seconds
	Safe    bool          // it may be run again if it was lost while it ran: running it twice does no harm
}

// Named are the names in what -e takes whose values are the caller's.
func Named(list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(e string) bool { return strings.Contains(e, "=") })
}

// Environment makes variables of what -e takes: NAME=value, or NAME for the caller's value.
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
	In       io.Reader // nil is none
	Out, Err io.Writer
	Resizes  <-chan Size
}

// Result is how a command ended. Its code is 128+n for a signal, 124 out of time, 130 cancelled, and 126 when the directory could not be
// entered. A command that ran out of time, or whose context was cancelled, ended with its whole tree.
type Result struct {
	mux.End
	Duration time.Duration // of all tries
}

// Job is a background command.
type Job = mux.Job

// Description is what is known of a sandbox.
type Description struct {
	Container
	Task     string `json:"task"`
	Profile  string `json:"profile"`
	Exec     string `json:"exec"`           // how commands run: "direct" (socket) or "attached" (one exec a client)
	Reason   string `json:"reason"`         // why it is not "direct"
	Root     string `json:"root,omitempty"` // what root inside is outside
	Dir      string `json:"dir"`
	Jobs     []Job  `json:"jobs"`
	Clients  int    `json:"clients"`  // processes that are connected to the program inside, this one too
	Commands int    `json:"commands"` // that run now, of this process
}
