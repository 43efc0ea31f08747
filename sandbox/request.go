package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"

	"hinit/sandbox/mux"
)

// Request is a command to run. Exactly one of Command and Argv is set.
type Request struct {
	Command string   // line for the session's shell, which keeps the directory and the exported variables, see [Sandbox.Exec]
	Argv    []string // program and its arguments, run without a shell

	Dir string            // Working directory; "" for the session's (with Command) or the container's (with Argv).
	Env map[string]string // additional variables, which appear in no command line and not in docker inspect

	Stdin  io.Reader // standard input of the command; nil for /dev/null
	Stdout io.Writer // standard output of the command; nil drops it
	Stderr io.Writer // standard error of the command; nil merges it into Stdout, in the order of the writes

	TTY     bool // Use a terminal for all streams. Stderr is not used.
	Size    TerminalSize
	Resizes <-chan TerminalSize // later sizes of the terminal; may be nil

	Timeout    time.Duration // time limit of the command; 0 for Options.Timeout; negative for no limit
	Repeatable bool          // Whether to repeat the command after a lost connection, because running it twice does no harm.
}

// FlagVariables returns the variables that docker's -e options set. An option is NAME=value, or only NAME; the value is then in
// callers.
func FlagVariables(list []string, callers map[string]string) map[string]string {
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

// InheritedVariables returns the variables that docker's -e options in list name without a value. It takes the values from this
// process's environment.
func InheritedVariables(list []string) map[string]string {
	return lo.FilterSliceToMap(list, func(name string) (string, string, bool) {
		value, set := os.LookupEnv(name) // An option NAME=value is never found, because no name contains "=".
		return name, value, set
	})
}

// SortedAssignments returns variables in the form NAME=value, sorted.
func SortedAssignments(env map[string]string) []string {
	list := lo.MapToSlice(env, func(name, value string) string { return name + "=" + value })
	slices.Sort(list)
	return list
}

// Streams are the standard streams of a command line.
type Streams struct {
	In       io.Reader // standard input; nil for no input
	Out, Err io.Writer
	Resizes  <-chan TerminalSize
}

// KeepNewestSize returns a function that sends a size to the channel sizes, which must have a buffer for one value. If the buffer
// still has an older size, the function replaces it. Only one goroutine may call the function.
func KeepNewestSize(sizes chan TerminalSize) func(columns, rows uint16) {
	return func(columns, rows uint16) {
		select {
		case <-sizes:
		default:
		}
		sizes <- TerminalSize{Columns: columns, Rows: rows}
	}
}

// Result says how a command ended. The exit code is 128+n after the signal n, 124 after the time limit, 130 after a
// cancellation, and 126 if the directory could not be entered. After the time limit or a cancellation, the command's whole
// process tree has ended.
type Result struct {
	mux.End
	Duration time.Duration // time from the first try to the end
}

// Job is a background command.
type Job = mux.Job

// Description describes a sandbox and its container. [Sandbox.Describe] and [Manager.List] return
// it.
type Description struct {
	Container
	Task     string `json:"task"`
	Profile  string `json:"profile"`
	Exec     string `json:"exec"`           // "direct": commands run over a socket; "attached": each client runs its commands through one "docker exec" of its own
	Reason   string `json:"reason"`         // reason why Exec is not "direct"
	Root     string `json:"root,omitempty"` // user of the machine to which root in the container is mapped
	Dir      string `json:"dir"`            // directory in which the next command starts
	Jobs     []Job  `json:"jobs"`
	Clients  int    `json:"clients"`  // processes that are connected to the helper, including this one
	Commands int    `json:"commands"` // Number of commands that this process is running.
}

// Causes of failure, which callers recognise with errors.Is.
var (
	// ErrGone means that the engine has no such container.
	ErrGone = errors.New("no such container")
	// ErrNoImage means that the engine has no such image and could not fetch it.
	ErrNoImage = errors.New("no such image")
	// ErrNoEngine means that no engine answers.
	ErrNoEngine = errors.New("no container engine answers")
	// ErrClosed means that the sandbox was removed or closed. Call [Manager.Open] again.
	ErrClosed = errors.New("the sandbox is closed")
	// ErrNoJob means that the sandbox has no background command with that id.
	ErrNoJob = errors.New("no such background command")
	// ErrLost means that a command may have begun and that its end is unknown. Every *LostError wraps it.
	ErrLost = errors.New("the command may have begun and its end is not known")
	// ErrRefused means that the engine or the policy has refused the request. Trying again does not help.
	ErrRefused = errors.New("refused by the engine")
	// ErrNameTaken means that another container already has the name.
	ErrNameTaken = fmt.Errorf("%w: a container has the name", ErrRefused)

	errFrozen = errors.New("it is frozen, though the engine says that it runs (a docker pause that failed half way)")
)

// GoneError adds details to [ErrGone]: the failed request (What), and the engine's explanation of why the container is gone
// (Why).
type GoneError struct{ What, Why string }

// Error implements error.
func (e *GoneError) Error() string { return "cannot " + e.What + ": " + ErrGone.Error() + ": " + e.Why }

// Unwrap makes errors.Is(err, ErrGone) true.
func (e *GoneError) Unwrap() error { return ErrGone }

// OptionError means that an option is invalid. Nothing was made.
type OptionError struct {
	Name  string // name of the variable or option
	Value string
	Want  string // description of valid values
}

// Error implements error.
func (e *OptionError) Error() string {
	return fmt.Sprintf("cannot use %s=%q: it must be %s", e.Name, e.Value, e.Want)
}

// LostError means that a command began, or may have begun, and that its end is unknown. The command was not run again.
type LostError struct {
	Began     bool      // True if the command certainly began; false if it may have begun.
	Why       string    // error that ended the connection
	Container Container // Container after the loss. Its State is Gone if it was removed, and "" if the engine didn't answer.
}

// Error implements error.
func (e *LostError) Error() string {
	began := lo.Ternary(e.Began, "had begun", "may have begun")
	after := "it was not run again, because it is not known to be safe"
	return fmt.Sprintf("cannot tell how the command ended, which %s: %s; %s; %s", began, e.Why, describeState(e.Container), after)
}

// Unwrap makes errors.Is(err, ErrLost) true.
func (e *LostError) Unwrap() error { return ErrLost }

// StateError means that a command was not run because of its container's state, for instance because it is paused.
type StateError struct{ Container Container }

// Error implements error.
func (e *StateError) Error() string {
	text := "cannot run a command in the container " + e.Container.Name + ": " + describeState(e.Container)
	if e.Container.State == Paused {
		text += "; resume it with: docker unpause " + e.Container.Name
	}
	return text
}

// Unwrap makes errors.Is(err, ErrGone) true for a removed container.
func (e *StateError) Unwrap() error {
	if e.Container.State == Gone {
		return ErrGone
	}
	return nil
}

// describeState describes the state of a container in a sentence for people.
func describeState(c Container) string {
	if c.Reason != "" {
		return c.Reason
	}
	switch c.State {
	case Gone:
		return "the container was removed"
	case Exited, Dead:
		if c.OOMKilled {
			return fmt.Sprintf("the container was killed because it ran out of memory (exit code %d)", c.ExitCode)
		}
		return fmt.Sprintf("the container has ended with exit code %d", c.ExitCode)
	case Paused:
		return "the container is paused"
	case Running:
		return "the container runs"
	case "":
		return "the engine does not answer"
	case Created, Restarting, Removing:
	}
	return "the container is " + string(c.State)
}
