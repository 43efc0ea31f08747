// Package watch reports that directories have changed. It is the only package that uses inotify(7).
//
// A [Set] watches directories for one goroutine, which reads the events itself. Package shared serves several goroutines with one
// Set.
//
// An event is a hint and never the truth. The caller must examine the directory, and must do so without events at intervals
// where inotify sees too little. That is the case in these situations:
//
//   - Another machine, a daemon or a hypervisor can change the file system. The kernel reports only its own changes.
//   - A limit of the kernel is reached. Then [Set.Open] or [Set.Add] fails, and [LimitAdvice] names the limit.
//   - The kernel's queue has overflowed, because processes make changes faster than the caller reads events. Then the
//     channel Set.Lost receives, and every directory may have changed.
//
// A flood of changes needs no memory and little time in this process. It reads at most ten thousand events a second, and the others
// stay in the kernel's queue (fs.inotify.max_queued_events). A process that makes changes never waits for the caller.
//
// Watches are not recursive. The watch of a directory ends when the directory is removed or renamed. An agent can replace a watched
// path with a symbolic link. That does no harm: after an event, the caller examines the directory without following links.
//
// The inotify instance of a Set has two goroutines, which end when the Set is closed. Between events they sleep and use no
// processor time.
package watch

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// Event is a change of the file Name, which is in a watched directory or is itself a watched directory.
type Event = fsnotify.Event

// The kinds of changes. A file that is renamed causes Rename under its old name and Create under its new name.
const (
	Create = fsnotify.Create
	Write  = fsnotify.Write
	Remove = fsnotify.Remove
	Rename = fsnotify.Rename
	Chmod  = fsnotify.Chmod
)

// Set is a set of watched directories. Its zero value has no inotify instance and watches nothing. Only one goroutine may use it.
type Set struct {
	Events <-chan Event // changes in watched directories; nil without an inotify instance
	Lost   <-chan error // receives when events are lost; nil without an instance
	// AddPath makes the kernel watch the directory that is now at path. Unlike Add, it stores no ID of the directory. AddPath
	// is nil without an instance. Tests replace AddPath, Events and Lost.
	AddPath func(path string) error

	notify       *fsnotify.Watcher
	passedEvents <-chan Event         // events from forward; a test may replace the channel
	ids          map[string]fsutil.ID // the directories watched by Add
}

// Open creates the inotify instance, unless the Set already has one.
func (s *Set) Open() error {
	if s.notify != nil {
		return nil
	}
	err := faultinject.BeforeCall(faultinject.CallWatch, "")
	var n *fsnotify.Watcher
	if err == nil {
		n, err = fsnotify.NewWatcher()
	}
	if err != nil {
		return fmt.Errorf("cannot get change notifications: %w", err)
	}
	events := make(chan Event)
	guard.Go("passing changes of directories on", func() { forwardLimited(n.Events, events) })
	*s = Set{Events: events, passedEvents: events, Lost: n.Errors, AddPath: n.Add, notify: n, ids: make(map[string]fsutil.ID)}
	return nil
}

// Close ends all watches. The Set can be opened again.
func (s *Set) Close() {
	if s.notify != nil {
		_ = s.notify.Close()       // Close closes everything even if it returns an error
		for range s.passedEvents { // receive the last events, so that forward can end
		}
	}
	*s = Set{}
}

// forwardLimited passes at most burst events on in burstTime, until the instance is closed. An agent can change files faster than
// this process can follow, and would make it use a whole processor. The other events stay in the kernel's queue.
func forwardLimited(from <-chan Event, to chan<- Event) {
	const burst, burstTime = 256, 25 * time.Millisecond
	defer close(to)
	n, began := 0, time.Now()
	for ev := range from {
		to <- ev
		n++
		if n%burst == 0 {
			<-time.After(burstTime - time.Since(began))
			began = time.Now()
		}
	}
}

// Add watches the directory at path, unless it is already watched. id is the directory's ID. Add waits for the file system, but
// not for other processes. The Set must be open.
func (s *Set) Add(path string, id fsutil.ID) error {
	if old, watched := s.ids[path]; watched && old == id {
		return nil
	}
	s.Remove(path) // another directory may still be watched under this path, which would prevent the new watch
	if err := faultinject.RunCall(faultinject.CallWatch, path, func() error { return s.AddPath(path) }); err != nil {
		return fmt.Errorf("cannot watch %q for changes: %w", path, err)
	}
	s.ids[path] = id
	return nil
}

// Remove ends the watch on a path, if any.
func (s *Set) Remove(path string) {
	if s.notify != nil {
		_ = s.notify.Remove(path) // an error means that the watch is already gone
		delete(s.ids, path)
	}
}

// Retain ends the watch of each directory for which keep returns false.
func (s *Set) Retain(keep func(path string) bool) {
	for path := range s.ids {
		if !keep(path) {
			s.Remove(path)
		}
	}
}

// ID returns the ID of the directory that is watched under path, or zero.
func (s *Set) ID(path string) fsutil.ID { return s.ids[path] }

// Watches reports whether the directory id is watched, under any path.
func (s *Set) Watches(id fsutil.ID) bool {
	for _, other := range s.ids { // search without an index, because callers ask only when a directory appears
		if other == id {
			return true
		}
	}
	return false
}

// IsDir reports whether the event ev is about a watched directory itself, and not about a file in it. If the directory was
// removed or renamed, IsDir also ends its watch. Call it for each event.
//
// A rename causes two events. The first event comes from the parent directory, and the second from the directory itself.
// Between the two events, the old watch still exists. A new watch under the new name would be the same kernel object, and
// handling the second event would remove it.
func (s *Set) IsDir(ev Event) bool {
	path := filepath.Clean(ev.Name)
	_, is := s.ids[path]
	if is && (ev.Has(Remove) || ev.Has(Rename)) {
		s.Remove(path)
	}
	return is
}

// LimitAdvice returns advice for the operator if err shows that a limit of inotify(7) is reached. Otherwise it returns "".
func LimitAdvice(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return "; raise the machine's sysctl fs.inotify.max_user_watches"
	case errors.Is(err, unix.EMFILE):
		return "; raise the machine's sysctl fs.inotify.max_user_instances"
	}
	return ""
}
