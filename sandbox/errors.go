package sandbox

import (
	"errors"
	"fmt"
)

// Callers recognise these errors by errors.Is.
var (
	// ErrGone means that the engine has no such container.
	ErrGone = errors.New("no such container")
	// ErrNoImage means that the engine has no such image and could not fetch it.
	ErrNoImage = errors.New("no such image")
	// ErrNoEngine means that no engine answers.
	ErrNoEngine = errors.New("no container engine answers")
	// ErrClosed means that the sandbox was removed or closed. Ask the manager for it again.
	ErrClosed = errors.New("the sandbox is closed")
	// ErrNoJob means that the sandbox has no background command with that id.
	ErrNoJob = errors.New("no such background command")
	// ErrLost is the error that every *LostError wraps.
	ErrLost = errors.New("the command may have begun and its end is not known")
	// ErrRefused means that the engine understood the request and refused it. Trying again does not help.
	ErrRefused = errors.New("refused by the engine")
	// ErrTaken means that another container already has the name.
	ErrTaken = fmt.Errorf("%w: a container has the name", ErrRefused)

	errFrozen = errors.New("it is frozen, though the engine says that it runs (a docker pause that failed half way)")
)

// GoneError wraps [ErrGone] and adds the engine's explanation why the container is gone. Its field What names the failed request.
type GoneError struct{ What, Why string }

// Error implements error.
func (e *GoneError) Error() string { return "cannot " + e.What + ": " + ErrGone.Error() + ": " + e.Why }

// Unwrap makes errors.Is(err, ErrGone) true.
func (e *GoneError) Unwrap() error { return ErrGone }

// OptionError reports an invalid option. Nothing was created.
type OptionError struct {
	Name  string // name of the variable or option
	Value string
	Want  string // description of a valid value
}

// Error implements error.
func (e *OptionError) Error() string {
	return fmt.Sprintf("cannot use %s=%q: it must be %s", e.Name, e.Value, e.Want)
}

// LostError means that a command began, or may have begun, and that its end is unknown. The command was not run again.
type LostError struct {
	Began     bool      // true if the command certainly began, false if it may have begun
	Why       string    // text of the error that ended the connection
	Container Container // state of the container; State is Gone for a removed container, and "" if the engine didn't answer
}

// Error implements error.
func (e *LostError) Error() string {
	began := "may have begun"
	if e.Began {
		began = "had begun"
	}
	after := "it was not run again, because it is not known to be safe"
	return fmt.Sprintf("cannot tell how the command ended, which %s: %s; %s; %s", began, e.Why, describeState(e.Container), after)
}

// Unwrap makes errors.Is(err, ErrLost) true.
func (e *LostError) Unwrap() error { return ErrLost }

// StateError means that a command was not run because of the state of its container.
type StateError struct{ Container Container }

// Error implements error.
func (e *StateError) Error() string {
	text := "cannot run a command in the container " + e.Container.Name + ": " + describeState(e.Container)
	if e.Container.State == Paused {
		text += "; let it go on with: docker unpause " + e.Container.Name
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

// describeState describes the state of a container in a sentence for the user.
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
