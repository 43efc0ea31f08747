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

// dirWatches is a set of inotify watches on directories. The watches are not recursive. A nil *dirWatches watches nothing. Only
// one goroutine may use it.
//
// The agent can replace a watched path with a symbolic link. That does no harm, because a notification only causes a scan, and
// scans never follow links.
type dirWatches struct {
	notify   *fsnotify.Watcher
	addWatch func(path string) error // notify.Add, except in tests
	watched  map[string]watched
	remotes  map[uint64]bool // results of isRemote by device number; nil before the first call
}

// isRemote reports whether path is on a file system that can be changed from outside this kernel: by another machine, a daemon or
// a hypervisor. inotify doesn't report such changes. The parameter dev is the device of the file system. isRemote checks each
// device only once.
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

// watched identifies the directory that a watch is on.
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

// errors returns the channel of inotify errors. After an error, some notifications may have been lost.
func (h *dirWatches) errors() <-chan error {
	if h == nil {
		return nil
	}
	return h.notify.Errors
}

func (h *dirWatches) close() {
	if h != nil {
		_ = h.notify.Close() // Close closes everything even if it returns an error
	}
}

// add watches the directory at path, unless it is already watched. id is the directory's metadata. The result complete tells
// whether the watch sees all changes. It is false on a file system that other machines can change, because this kernel reports
// only its own changes.
func (h *dirWatches) add(path string, id stamp) (complete bool, err error) {
	old, ok := h.watched[path]
	if ok && old.dev == id.dev && old.ino == id.ino {
		return !old.remote, nil
	}
	// A different directory may still be watched under this path, which would prevent the new watch.
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

// watches reports whether the directory with the metadata id is watched, under any path.
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

// watchesAt reports whether path is watched and the watched directory has the metadata id.
func (h *dirWatches) watchesAt(path string, id stamp) bool {
	if h == nil {
		return false
	}
	w, ok := h.watched[path]
	return ok && w.dev == id.dev && w.ino == id.ino
}

// forget removes the watch on a path, if there is one.
func (h *dirWatches) forget(path string) {
	if h == nil {
		return
	}
	if _, ok := h.watched[path]; ok {
		_ = h.notify.Remove(path) // an error means that the watch is already gone
		delete(h.watched, path)
	}
}

// retain removes the watches for which the function keep returns false.
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

// handleGone reports whether the event ev is about a watched directory itself, and not about a file in it. If the directory was
// removed or renamed, handleGone also removes its watch.
//
// A rename causes two events. The first event comes from the parent directory, and the second from the directory itself.
// Between the two events, the old watch still exists. A new watch under the new name would be the same kernel object, and
// handling the second event would remove it.
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

// watchDir watches a directory of the volume: the root, profiles/, or the home of a profile. rel is its path relative to d, and
// path is its absolute path. If rel is not a directory, watchDir does nothing.
func (w *Watcher) watchDir(d *fsutil.Dir, rel, path string) {
	if w.inotify == nil {
		return
	}
	if info, err := d.Lstat(rel); err == nil && info.IsDir() {
		w.watchAt(path, stampOf(info), true)
	}
}

// watchHomes adds watches on the directories in the listing l: first on the homes of profiles, then on some of the directories
// without the marker file.
func (w *Watcher) watchHomes(d *fsutil.Dir, l listing) {
	if w.inotify == nil {
		return
	}
	ids := make(map[string]stamp, len(l.marked)+len(l.unmarked))
	_ = d.WithIdentity(func(d *fsutil.Dir) error {
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
		if slices.Contains(w.unmarkedWatches, name) || len(w.unmarkedWatches) < maxUnmarkedWatches {
			w.watchUnmarked(name, ids[name])
		}
	}
}

// maxUnmarkedWatches is the maximum number of watched directories without the marker file. In the directories that are not
// watched, only the next poll finds a new marker file.
const maxUnmarkedWatches = 256

// watchUnmarked watches a directory without the marker. It removes the oldest watch of this kind if there are more than
// maxUnmarkedWatches.
func (w *Watcher) watchUnmarked(name string, id stamp) {
	if w.inotify == nil || !w.watchAt(w.store.namedProfile(name).Home, id, false) || slices.Contains(w.unmarkedWatches, name) {
		return
	}
	w.unmarkedWatches = append(w.unmarkedWatches, name)
	if len(w.unmarkedWatches) > maxUnmarkedWatches {
		w.inotify.forget(w.store.namedProfile(w.unmarkedWatches[0]).Home)
		w.unmarkedWatches = w.unmarkedWatches[1:]
	}
}

// watchAt watches the directory at path and reports whether it succeeded. id is the directory's metadata. If the kernel's limit
// of watches is reached and the parameter needed is true, watchAt first removes the watches on directories without the marker.
// Once the limit has refused a watch, watchAt adds no other watch during the same scan.
func (w *Watcher) watchAt(path string, id stamp, needed bool) bool {
	if w.exhausted && !w.inotify.watchesAt(path, id) {
		return false
	}
	complete, err := w.inotify.add(path, id)
	if needed && len(w.unmarkedWatches) > 0 && errors.Is(err, unix.ENOSPC) {
		for _, name := range w.unmarkedWatches {
			w.inotify.forget(w.store.namedProfile(name).Home)
		}
		w.unmarkedWatches = nil
		complete, err = w.inotify.add(path, id)
	}
	if w.notifyErr == nil {
		w.notifyErr = err
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

// startNotifications prepares a full scan. It forgets which directories the last full scan could not watch, and creates an
// inotify instance unless one exists.
func (w *Watcher) startNotifications() {
	w.partial, w.exhausted, w.remote, w.notifyErr = false, false, false, nil
	if w.inotify == nil {
		w.inotify, w.notifyErr = w.o.newNotifications()
		w.unmarkedWatches = nil
	}
	if w.inotify == nil {
		w.partial = true
	}
}

// canWatchMore retries the creation of the inotify instance or of the watch, whichever failed during the last full scan. It
// reports whether the retry succeeded.
func (w *Watcher) canWatchMore() bool {
	switch {
	case w.inotify == nil:
		w.inotify, _ = w.o.newNotifications()
		w.unmarkedWatches = nil
		return w.inotify != nil
	case w.exhausted:
		_, err := w.inotify.add(w.lacking, w.lackingID)
		return err == nil
	}
	return false
}

// warnNotifications reports a warning that says why inotify notifications are missing or incomplete.
func (w *Watcher) warnNotifications() {
	err := w.notifyErr
	if err != nil {
		err = fmt.Errorf("%w; looking every %v instead%s", err, w.o.Poll, inotifyAdvice(err))
	}
	w.warnOnce("notifications", Warning{Path: w.store.root}, err)
}

// inotifyAdvice returns advice for the operator if err means that a limit of inotify(7) is exhausted. Otherwise it returns "".
func inotifyAdvice(err error) string {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return "; raise the machine's sysctl fs.inotify.max_user_watches"
	case errors.Is(err, unix.EMFILE):
		return "; raise the machine's sysctl fs.inotify.max_user_instances"
	}
	return ""
}

// reportWarnings reports the warnings of a full scan, except those that the previous full scan also had.
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

// warnOnce reports err as a warning, unless the last error with this key had the same text. A nil err means that the problem is
// gone. If the same error comes back later, warnOnce reports it again.
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

// warnVolume reports an error that concerns the whole volume, through warnOnce.
func (w *Watcher) warnVolume(err error) {
	w.warnOnce("volume", Warning{Path: w.store.root}, err)
}
