package profiles

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
	"hinit/internal/fsutil"
)

// dirWatches watches a set of directories by inotify, not recursively. A nil hints watches nothing. Only one goroutine may use
// it.
//
// The agent can replace a watched path by a link. That does no harm, because a notification only causes a scan, and scans follow
// no link.
type dirWatches struct {
	notify   *fsnotify.Watcher
	addWatch func(path string) error // notify.Add; tests replace this function
	watched  map[string]watched
	remotes  map[uint64]bool // results of the function remote by device; nil before the first call
}

// isRemote reports whether another machine, a daemon or a hypervisor may change the file system of path. It checks each file
// system only once.
func (h *dirWatches) isRemote(path string, dev uint64) bool {
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

// watched identifies a watched directory.
type watched struct {
	dev, ino uint64
	remote   bool
}

func newDirWatches() (*dirWatches, error) {
	err := faultinject.Before(faultinject.Watch, "")
	var n *fsnotify.Watcher
	if err == nil {
		n, err = fsnotify.NewWatcher()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot get change notifications: %w", err)
	}
	return &dirWatches{notify: n, addWatch: n.Add, watched: make(map[string]watched)}, nil
}

func (h *dirWatches) changes() <-chan fsnotify.Event {
	if h == nil {
		return nil
	}
	return h.notify.Events
}

// errors returns a channel of errors. After an error, notifications may be missing.
func (h *dirWatches) errors() <-chan error {
	if h == nil {
		return nil
	}
	return h.notify.Errors
}

func (h *dirWatches) close() {
	if h != nil {
		_ = h.notify.Close() // after an error nothing stays open either
	}
}

// add watches the directory at path, unless a watch exists already. complete is false on a file system that other machines can
// change, because this kernel reports only its own changes.
func (h *dirWatches) add(path string, id stamp) (complete bool, err error) {
	old, ok := h.watched[path]
	if ok && old.dev == id.dev && old.ino == id.ino {
		return !old.remote, nil
	}
	// An old directory may still have a watch under this path, which would prevent the new watch.
	_ = h.notify.Remove(path)
	delete(h.watched, path)
	err = faultinject.Before(faultinject.Watch, path)
	if err == nil {
		err = h.addWatch(path)
	}
	if err != nil {
		return false, fmt.Errorf("cannot watch %q for changes: %w", path, err)
	}
	w := watched{dev: id.dev, ino: id.ino, remote: h.isRemote(path, id.dev)}
	h.watched[path] = w
	return !w.remote, nil
}

// watches reports whether a directory has a watch under any path.
func (h *dirWatches) watches(id stamp) bool {
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

// watchesAt reports whether the watch of path is on the directory with the identity id.
func (h *dirWatches) watchesAt(path string, id stamp) bool {
	if h == nil {
		return false
	}
	w, ok := h.watched[path]
	return ok && w.dev == id.dev && w.ino == id.ino
}

// forget removes the watch of a path, if any.
func (h *dirWatches) forget(path string) {
	if h == nil {
		return
	}
	if _, ok := h.watched[path]; ok {
		_ = h.notify.Remove(path) // an error means that the watch is already gone
		delete(h.watched, path)
	}
}

// retain removes the watches for which keep returns false.
func (h *dirWatches) retain(keep func(path string) bool) {
	if h == nil {
		return
	}
	for path := range h.watched {
		if !keep(path) {
			_ = h.notify.Remove(path) // an error means that the watch is already gone
			delete(h.watched, path)
		}
	}
}

// handleGone handles an event that a watched directory itself was removed or renamed, and reports whether ev is such an event.
//
// For a renamed directory, the event of the parent comes before the event of the directory. Between the two the old watch still
// exists. A new watch under the new name would be the same kernel object, and the second event would remove it.
func (h *dirWatches) handleGone(ev fsnotify.Event) bool {
	path := filepath.Clean(ev.Name)
	if _, ok := h.watched[path]; !ok {
		return false
	}
	if ev.Has(fsnotify.Remove) || ev.Has(fsnotify.Rename) {
		_ = h.notify.Remove(path) // an error means that the watch is already gone
		delete(h.watched, path)
	}
	return true
}

// watchDir watches a directory: the root, profiles/, or the home of a profile. It ignores other files.
func (w *Watcher) watchDir(d *fsutil.Dir, rel, path string) {
	if w.hints == nil {
		return
	}
	if info, err := d.Lstat(rel); err == nil && info.IsDir() {
		w.watchAt(path, stampOf(info), true)
	}
}

// watchHomes watches the homes of a listing: first the profiles, then some of the directories without the marker.
func (w *Watcher) watchHomes(d *fsutil.Dir, l listing) {
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
			w.watchAt(w.store.namedProfile(name).Home, id, true)
		}
	}
	for _, name := range others {
		if slices.Contains(w.unmarkedWatches, name) || len(w.unmarkedWatches) < mostUnmarkedWatches {
			w.watchUnmarked(name, ids[name])
		}
	}
}

// mostUnmarkedWatches limits the watched directories without the marker. In the other directories only the poll finds a new
// marker, later.
const mostUnmarkedWatches = 256

// watchUnmarked watches a directory without the marker. Beyond mostUnmarkedWatches it removes the oldest such watch.
func (w *Watcher) watchUnmarked(name string, id stamp) {
	if w.hints == nil || !w.watchAt(w.store.namedProfile(name).Home, id, false) || slices.Contains(w.unmarkedWatches, name) {
		return
	}
	w.unmarkedWatches = append(w.unmarkedWatches, name)
	if len(w.unmarkedWatches) > mostUnmarkedWatches {
		w.hints.forget(w.store.namedProfile(w.unmarkedWatches[0]).Home)
		w.unmarkedWatches = w.unmarkedWatches[1:]
	}
}

// watchAt watches a directory, and reports whether it succeeded. For a needed directory it may remove the watches of directories
// without the marker. After the kernel has refused a watch, watchAt tries no other watch in the same scan.
func (w *Watcher) watchAt(path string, id stamp, needed bool) bool {
	if w.exhausted && !w.hints.watchesAt(path, id) {
		return false
	}
	complete, err := w.hints.add(path, id)
	if needed && len(w.unmarkedWatches) > 0 && errors.Is(err, unix.ENOSPC) {
		for _, name := range w.unmarkedWatches {
			w.hints.forget(w.store.namedProfile(name).Home)
		}
		w.unmarkedWatches = nil
		complete, err = w.hints.add(path, id)
	}
	if w.hintErr == nil {
		w.hintErr = err
	}
	if errors.Is(err, unix.ENOSPC) {
		w.exhausted, w.lacking, w.lackingID = true, path, id
	}
	if !complete {
		w.partial = true
		w.remote = w.remote || err == nil
	}
	return err == nil
}

// startNotifications makes an inotify instance unless one exists.
func (w *Watcher) startNotifications() {
	w.partial, w.exhausted, w.remote, w.hintErr = false, false, false, nil
	if w.hints == nil {
		w.hints, w.hintErr = w.o.hints()
		w.unmarkedWatches = nil
	}
	if w.hints == nil {
		w.partial = true
	}
}

// canWatchMore reports whether a resource for notifications that was missing at the last full scan is available now.
func (w *Watcher) canWatchMore() bool {
	switch {
	case w.hints == nil:
		w.hints, _ = w.o.hints()
		w.unmarkedWatches = nil
		return w.hints != nil
	case w.exhausted:
		_, err := w.hints.add(w.lacking, w.lackingID)
		return err == nil
	}
	return false
}

// warnNotifications reports why notifications are missing or incomplete.
func (w *Watcher) warnNotifications() {
	err := w.hintErr
	if err != nil {
		err = fmt.Errorf("%w; looking every %v instead%s", err, w.o.Poll, inotifyAdvice(err))
	}
	w.warnOnce("notifications", Warning{Path: w.store.root}, err)
}

// inotifyAdvice returns advice for an exhausted limit of inotify(7).
func inotifyAdvice(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return "; raise the machine's sysctl fs.inotify.max_user_watches"
	case errors.Is(err, unix.EMFILE):
		return "; raise the machine's sysctl fs.inotify.max_user_instances"
	}
	return ""
}

// reportWarnings reports the warnings of a full scan that the previous full scan did not have.
func (w *Watcher) reportWarnings(warnings []Warning) {
	now := make(map[string]bool, len(warnings))
	for _, warning := range warnings {
		now[warning.Message] = true
		if !w.listWarned[warning.Message] {
			w.o.Notify(Warned{Warning: warning})
		}
	}
	w.listWarned = now
}

// warnOnce reports an error unless it is the same as the last error for that key. A nil error forgets the last error.
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

// warnVolume calls warnOnce for an error of the whole volume.
func (w *Watcher) warnVolume(err error) {
	w.warnOnce("volume", Warning{Path: w.store.root}, err)
}
