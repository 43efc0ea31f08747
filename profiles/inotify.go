package profiles

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"hinit/internal/fault"
	"hinit/internal/fsutil"
)

// hints are the kernel's change notifications about a set of directories, not recursive. A nil one gives none. It belongs to one
// goroutine.
//
// The agent can swap a watched path for a link. Nothing is read through a watch, so that causes a scan that finds nothing.
type hints struct {
	notify  *fsnotify.Watcher
	add1    func(path string) error // notify.Add; replaced in tests
	watched map[string]watched
	remotes map[uint64]bool // by device; nil before the first
}

// remote reports whether others than this kernel change the file system of path: a server, a daemon or a hypervisor. It asks once a file system.
func (h *hints) remote(path string, dev uint64) bool {
	is, known := h.remotes[dev]
	if !known {
		is = !fsutil.Local(path)
		if h.remotes == nil || len(h.remotes) > 1000 {
			h.remotes = make(map[uint64]bool)
		}
		h.remotes[dev] = is
	}
	return is
}

// watched is a directory with a watch.
type watched struct {
	dev, ino uint64
	remote   bool
}

func newHints() (*hints, error) {
	err := fault.Before(fault.Watch, "")
	var n *fsnotify.Watcher
	if err == nil {
		n, err = fsnotify.NewWatcher()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot get change notifications: %w", err)
	}
	return &hints{notify: n, add1: n.Add, watched: make(map[string]watched)}, nil
}

func (h *hints) changes() <-chan fsnotify.Event {
	if h == nil {
		return nil
	}
	return h.notify.Events
}

// lost tells when notifications may have been lost, with the reason.
func (h *hints) lost() <-chan error {
	if h == nil {
		return nil
	}
	return h.notify.Errors
}

func (h *hints) close() {
	if h != nil {
		_ = h.notify.Close() // it has no error that leaves anything open
	}
}

// add watches the directory at path, unless it does already. complete is false on a file system that other machines change without
// this kernel's knowledge.
func (h *hints) add(path string, id stamp) (complete bool, err error) {
	old, ok := h.watched[path]
	if ok && old.dev == id.dev && old.ino == id.ino {
		return !old.remote, nil
	}
	// A watch that an earlier directory at that path still has would keep the new watch from being made.
	_ = h.notify.Remove(path)
	delete(h.watched, path)
	err = fault.Before(fault.Watch, path)
	if err == nil {
		err = h.add1(path)
	}
	if err != nil {
		return false, fmt.Errorf("cannot watch %q for changes: %w", path, err)
	}
	w := watched{dev: id.dev, ino: id.ino, remote: h.remote(path, id.dev)}
	h.watched[path] = w
	return !w.remote, nil
}

// watches reports whether a directory has a watch, by whatever name.
func (h *hints) watches(id stamp) bool {
	if h == nil {
		return false
	}
	for _, w := range h.watched {
		if w.dev == id.dev && w.ino == id.ino {
			return true
		}
	}
	return false
}

// watchesAt reports whether the directory at path has a watch of that name.
func (h *hints) watchesAt(path string, id stamp) bool {
	if h == nil {
		return false
	}
	w, ok := h.watched[path]
	return ok && w.dev == id.dev && w.ino == id.ino
}

// forget removes the watch of a path, if it has one.
func (h *hints) forget(path string) {
	if h == nil {
		return
	}
	if _, ok := h.watched[path]; ok {
		_ = h.notify.Remove(path) // an error says that it is gone already
		delete(h.watched, path)
	}
}

// retain removes the watches of the paths that keep refuses.
func (h *hints) retain(keep func(path string) bool) {
	if h == nil {
		return
	}
	for path := range h.watched {
		if !keep(path) {
			_ = h.notify.Remove(path) // an error says that it is gone already
			delete(h.watched, path)
		}
	}
}

// gone handles the event that a watched directory itself was removed or renamed, and reports whether the event is one of those.
//
// The parent's event comes before the directory's own. The watch is still there then, under the old name. A new watch under the new
// name would be the same one, and be lost with the second event.
func (h *hints) gone(ev fsnotify.Event) bool {
	path := filepath.Clean(ev.Name)
	if _, ok := h.watched[path]; !ok {
		return false
	}
	if ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename) {
		_ = h.notify.Remove(path) // an error says that it is gone already
		delete(h.watched, path)
	}
	return true
}

// hint asks for notifications about a directory, if it is one: the root, profiles/, or the home of a profile.
func (w *Watcher) hint(d *fsutil.Dir, rel, path string) {
	if w.hints == nil {
		return
	}
	if info, err := d.Lstat(rel); err == nil && info.IsDir() {
		w.hintAt(path, stampOf(info), true)
	}
}

// hintHomes watches the homes of a listing: the profiles first, then some of the directories without the marker.
func (w *Watcher) hintHomes(d *fsutil.Dir, l listing) {
	if w.hints == nil {
		return
	}
	ids := make(map[string]stamp, len(l.marked)+len(l.unmarked))
	_ = d.Together(func(d *fsutil.Dir) error {
		for _, name := range slices.Concat(l.marked, l.unmarked) {
			if info, err := d.Lstat(filepath.Join(profilesDir, name)); err == nil && info.IsDir() {
				ids[name] = stampOf(info)
			}
		}
		return nil
	})
	var others []string
	for _, name := range slices.Concat(l.marked, l.unmarked) {
		id, there := ids[name]
		switch {
		case !there:
		case w.candidates[name]:
			others = append(others, name)
		default:
			w.hintAt(w.store.named(name).Home, id, true)
		}
	}
	for _, name := range others {
		if slices.Contains(w.spare, name) || len(w.spare) < mostSpare {
			w.hintSpare(name, ids[name])
		}
	}
}

// mostSpare is how many directories without the marker have a watch. Without one, the poll sees the marker later.
const mostSpare = 256

// hintSpare watches a directory without the marker. Where there are too many, it takes the oldest watch of another one.
func (w *Watcher) hintSpare(name string, id stamp) {
	if w.hints == nil || !w.hintAt(w.store.named(name).Home, id, false) || slices.Contains(w.spare, name) {
		return
	}
	w.spare = append(w.spare, name)
	if len(w.spare) > mostSpare {
		w.hints.forget(w.store.named(w.spare[0]).Home)
		w.spare = w.spare[1:]
	}
}

// hintAt watches a directory and reports whether it could. For one that is needed it gives up watches of directories without the
// marker. When watches have run out it does not try again in the same scan.
func (w *Watcher) hintAt(path string, id stamp, needed bool) bool {
	if w.short && !w.hints.watchesAt(path, id) {
		return false
	}
	complete, err := w.hints.add(path, id)
	if needed && len(w.spare) > 0 && errors.Is(err, unix.ENOSPC) {
		for _, name := range w.spare {
			w.hints.forget(w.store.named(name).Home)
		}
		w.spare = nil
		complete, err = w.hints.add(path, id)
	}
	if w.hintErr == nil {
		w.hintErr = err
	}
	if errors.Is(err, unix.ENOSPC) {
		w.short, w.lacking, w.lackingID = true, path, id
	}
	if !complete {
		w.partial = true
		w.remote = w.remote || err == nil
	}
	return err == nil
}

// startHints makes sure that there is a source of notifications, if there can be one.
func (w *Watcher) startHints() {
	w.partial, w.short, w.remote, w.hintErr = false, false, false, nil
	if w.hints == nil {
		w.hints, w.hintErr = w.o.hints()
		w.spare = nil
	}
	if w.hints == nil {
		w.partial = true
	}
}

// moreHints reports whether there can be more notifications than at the last full scan.
func (w *Watcher) moreHints() bool {
	switch {
	case w.hints == nil:
		w.hints, _ = w.o.hints()
		w.spare = nil
		return w.hints != nil
	case w.short:
		_, err := w.hints.add(w.lacking, w.lackingID)
		return err == nil
	}
	return false
}

// warnHints tells why there are no notifications, or not all.
func (w *Watcher) warnHints() {
	err := w.hintErr
	if err != nil {
		err = fmt.Errorf("%w; looking every %v instead%s", err, w.o.Poll, hintsStep(err))
	}
	w.warnOnce("notifications", Warning{Path: w.store.root}, err)
}

// hintsStep says what helps where the kernel has no more to give (inotify(7)).
func hintsStep(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return "; raise the machine's sysctl fs.inotify.max_user_watches"
	case errors.Is(err, unix.EMFILE):
		return "; raise the machine's sysctl fs.inotify.max_user_instances"
	}
	return ""
}

// tellList tells the warnings of a full scan that the one before didn't have.
func (w *Watcher) tellList(warnings []Warning) {
	now := make(map[string]bool, len(warnings))
	for _, warning := range warnings {
		now[warning.Message] = true
		if !w.listWarned[warning.Message] {
			w.o.Notify(Warned{Warning: warning})
		}
	}
	w.listWarned = now
}

// warnOnce tells an error under a key unless it was the last one there, and forgets that when there is none.
func (w *Watcher) warnOnce(key string, warning Warning, err error) {
	if err == nil {
		delete(w.warned, key)
		return
	}
	warning.Message = err.Error()
	if w.warned[key] == warning.Message || errors.Is(err, context.Canceled) {
		return
	}
	w.warned[key] = warning.Message
	w.o.Notify(Warned{Warning: warning})
}

// warnVolume is warnOnce for the volume as a whole.
func (w *Watcher) warnVolume(err error) {
	w.warnOnce("volume", Warning{Path: w.store.root}, err)
}
