package sandbox

import (
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"

	"hinit/sandbox/mux"
)

// Request describes a command. Exactly one of Command and Argv is set.
type Request struct {
	Command string   // a line for the session's shell, which keeps the directory and exported variables, see [Sandbox.Exec]
	Argv    []string // a program and its arguments, run without a shell

	Dir string            // "" for the session's directory (Command) or the container's (Argv)
	Env map[string]string // more variables; they are not visible in a command line or by docker inspect

	Stdin  io.Reader // standard input of the command; nil for /dev/null
	Stdout io.Writer // receives the output; nil drops the output
	Stderr io.Writer // nil merges standard error into Stdout, in the order of the writes

	TTY     bool // use a terminal for all streams; Stderr is not used
	Size    Size
	Resizes <-chan Size // later sizes of the terminal; may be nil

	Timeout    time.Duration // 0 for Options.Timeout, negative for no limit
	Grace      time.Duration // between TERM and KILL after the time limit or a cancellation; 0 is two seconds
	Repeatable bool          // running the command twice is harmless, so the command is repeated if the connection is lost
}

// Environment returns the variables that a list of docker's -e options sets. An option is NAME=value, or only NAME. The value for
// NAME then comes from the map callers.
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

// OwnEnvironment returns the variables that the list names without a value, with their values from this process's environment.
// The list holds docker's -e options.
func OwnEnvironment(list []string) map[string]string {
	return lo.FilterSliceToMap(list, func(name string) (string, string, bool) {
		value, set := os.LookupEnv(name) // no variable's name contains the sign of NAME=value
		return name, value, set
	})
}

// Assignments returns variables in the form NAME=value, sorted.
func Assignments(env map[string]string) []string {
	list := lo.MapToSlice(env, func(name, value string) string { return name + "=" + value })
	slices.Sort(list)
	return list
}

// Streams are the standard streams of a command line.
type Streams struct {
	In       io.Reader // nil for no input
	Out, Err io.Writer
	Resizes  <-chan Size
}

// NewestSize returns a function that sends a size to a channel with a buffer for one. The function replaces an older size that
// was not read yet. Only one goroutine may call the function.
func NewestSize(sizes chan Size) func(columns, rows uint16) {
	return func(columns, rows uint16) {
		select {
		case <-sizes:
		default:
		}
		sizes <- Size{Columns: columns, Rows: rows}
	}
}

// Result says how a command ended. Its exit code is 128+n after a signal, 124 after the time limit, 130 after a cancellation, and
// 126 if the directory could not be entered. After the time limit or a cancellation, the command's whole process tree is
// terminated.
type Result struct {
	mux.End
	Duration time.Duration // duration of all attempts together
}

// Job is a background command.
type Job = mux.Job

// Description describes a sandbox and its container.
type Description struct {
	Container
	Task     string `json:"task"`
	Profile  string `json:"profile"`
	Exec     string `json:"exec"`           // "direct" (commands run over a socket) or "attached" (over an engine exec for each client)
	Reason   string `json:"reason"`         // why Exec is not "direct"
	Root     string `json:"root,omitempty"` // text about the machine's user to which root in the container corresponds
	Dir      string `json:"dir"`
	Jobs     []Job  `json:"jobs"`
	Clients  int    `json:"clients"`  // number of processes that are connected to the helper, including this one
	Commands int    `json:"commands"` // running commands of this process
}
