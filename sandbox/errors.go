package sandbox

import (
	"errors"
	"fmt"
)

// Errors for errors.Is.
var (
	// ErrGone: the engine has no such container.
	ErrGone = errors.New("no such container")
	// ErrNoImage: the engine has no such image, and could not fetch it.
	ErrNoImage = errors.New("no such image")
	// ErrNoEngine: no engine answers.
	ErrNoEngine = errors.New("no container engine answers")
	// ErrClosed: the sandbox was cleaned up or closed; ask the manager for it again.
	ErrClosed = errors.New("the sandbox is closed")
	// ErrNoJob: the sandbox knows no background command of that name.
	ErrNoJob = errors.New("no such background command")
	// ErrLost is wrapped by every *LostError.
	ErrLost = errors.New("the command may have begun and its end is not known")
	// ErrRefused: the engine understood and refused, as it would again.
	ErrRefused = errors.New("refused by the engine")
	// ErrTaken: another container has the name.
	ErrTaken = fmt.Errorf("%w: a container has the name", ErrRefused)

	errFrozen = errors.New("it is frozen, though the engine says that it runs (a docker pause that failed half way)")
)

// GoneError is an [ErrGone] of an engine that knows why the container is gone.
type GoneError struct{ What, Why string }

// Error implements error.
func (e *GoneError) Error() string { return "cannot " + e.What + ": " + ErrGone.Error() + ": " + e.Why }

// Unwrap makes errors.Is(err, ErrGone) true.
func (e *GoneError) Unwrap() error { return ErrGone }

// OptionError is an option that can't be used. Nothing was created.
type OptionError struct {
	Name  string // of the variable or option
	Value string
	Want  string // what it should be
}

// Error implements error.
func (e *OptionError) Error() string {
	return fmt.Sprintf("cannot use %s=%q: it must be %s", e.Name, e.Value, e.Want)
}

// LostError says that a command began, or may have begun, and that its end is unknown. It was not run again.
type LostError struct {
	Began     bool      // it did begin; else it may have
	Why       string    // what the connection said
	Container Container // what the engine says of the container; its State is Gone when it is gone, "" when the engine didn't answer
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

// StateError says that a command was not run because of what its container is in.
type StateError struct{ Container Container }

// Error implements error.
func (e *StateError) Error() string {
	text := "cannot run a command in the container " + e.Container.Name + ": " + describeState(e.Container)
	if e.Container.State == Paused {
		text += "; let it go on with: docker unpause " + e.Container.Name
	}
	return text
}

// Unwrap makes errors.Is(err, ErrGone) true for a container that is gone.
func (e *StateError) Unwrap() error {
	if e.Container.State == Gone {
		return ErrGone
	}
	return nil
}

// describeState says in words what a container is in.
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
