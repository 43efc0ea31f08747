package kanban

import (
	"errors"
	"fmt"
)

// ErrNoTask says that no task has that id.
var ErrNoTask = errors.New("no such task")

// ErrRunning says that a task is being worked on, and that the operation must wait or reclaim it first.
var ErrRunning = errors.New("currently running")

// ValueError is input that the board refuses: nothing was changed.
type ValueError struct{ Text string }

func (e *ValueError) Error() string { return e.Text }

func refuse(format string, args ...any) error { return &ValueError{fmt.Sprintf(format, args...)} }

// HostError says that no worker can be started now, for any task. The claim is released, and counts no failure. Unsure: the
// worker may start all the same, so the claim stays until that is known.
type HostError struct {
	Err    error
	Unsure bool
}

func (e *HostError) Error() string { return e.Err.Error() }

// Unwrap implements [errors.Unwrap].
func (e *HostError) Unwrap() error { return e.Err }

// CorruptError says that a file isn't a sound database. The file is as it was.
type CorruptError struct {
	Path   string
	Backup string // a copy for whoever repairs it; empty where none was made
	Reason string
}

func (e *CorruptError) Error() string {
	s := fmt.Sprintf("cannot open board %s: %s", e.Path, e.Reason)
	if e.Backup != "" {
		s += "; a copy is in " + e.Backup
	}
	return s
}

// PhantomError says that a worker named tasks as its own that it didn't create. The completion was refused.
type PhantomError struct {
	Task     string
	Phantoms []string
}

func (e *PhantomError) Error() string {
	return fmt.Sprintf("cannot complete %s: it did not create %q; name only tasks that it created", e.Task, e.Phantoms)
}
