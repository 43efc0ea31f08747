package profiles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/watch"
)

// dirWatches is the set of watched directories. It also knows their file systems.
type dirWatches struct {
	watch.Set

	remotes map[uint64]bool // results of isRemote by device number; nil before the first call
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

// watchDir watches a directory of the volume: the root, profiles/, or the home of a profile. rel is its path relative to d, and
// path is its absolute path. If rel is not a directory, watchDir does nothing.
func (w *Watcher) watchDir(d *fsutil.Dir, rel, path string) {
	if info, err := d.Lstat(rel); err == nil && info.IsDir() {
		w.watchAt(path, stampOf(info), true)
	}
}

// watchHomes adds watches on the directories in the listing l: first on the homes of profiles, then on some of the directories
// without the marker file.
func (w *Watcher) watchHomes(d *fsutil.Dir, l listing) {
	if w.inotify.Events == nil {
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
			w.watchAt(w.store.profile(name).Home, id, true)
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
	if !w.watchAt(w.store.profile(name).Home, id, false) || slices.Contains(w.unmarkedWatches, name) {
		return
	}
	w.unmarkedWatches = append(w.unmarkedWatches, name)
	if len(w.unmarkedWatches) > maxUnmarkedWatches {
		w.inotify.Remove(w.store.profile(w.unmarkedWatches[0]).Home)
		w.unmarkedWatches = w.unmarkedWatches[1:]
	}
}

// watchAt watches the directory at path and reports whether it succeeded. id is the directory's metadata. If the kernel's limit
// of watches is reached and the parameter needed is true, watchAt first removes the watches on directories without the marker.
// Once the limit has refused a watch, watchAt adds no other watch during the same scan. Without an inotify instance it adds none.
func (w *Watcher) watchAt(path string, id stamp, needed bool) bool {
	if w.inotify.Events == nil || w.exhausted && w.inotify.ID(path) != id.ID {
		return false
	}
	err := w.inotify.Add(path, id.ID)
	if needed && len(w.unmarkedWatches) > 0 && errors.Is(err, unix.ENOSPC) {
		for _, name := range w.unmarkedWatches {
			w.inotify.Remove(w.store.profile(name).Home)
		}
		w.unmarkedWatches = nil
		err = w.inotify.Add(path, id.ID)
	}
	w.notifyErr = cmp.Or(w.notifyErr, err)
	if errors.Is(err, unix.ENOSPC) {
		w.exhausted, w.lacking, w.lackingID = true, path, id.ID
	}
	if err != nil || w.inotify.isRemote(path, id.Dev) {
		w.partial = true
		w.remote = w.remote || err == nil
	}
	return err == nil
}

// startNotifications prepares a full scan. It forgets which directories the last full scan could not watch, and creates an
// inotify instance unless one exists.
func (w *Watcher) startNotifications() {
	w.partial, w.exhausted, w.remote, w.notifyErr = false, false, false, nil
	if w.inotify.Events == nil {
		w.unmarkedWatches = nil
		w.notifyErr = w.o.openNotifications(&w.inotify.Set)
		w.partial = w.notifyErr != nil
	}
}

// canWatchMore retries the creation of the inotify instance or of the watch, whichever failed during the last full scan. It
// reports whether the retry succeeded.
func (w *Watcher) canWatchMore() bool {
	switch {
	case w.inotify.Events == nil:
		w.unmarkedWatches = nil
		return w.o.openNotifications(&w.inotify.Set) == nil
	case w.exhausted:
		return w.inotify.Add(w.lacking, w.lackingID) == nil
	}
	return false
}

// warnNotifications reports a warning that says why inotify notifications are missing or incomplete.
func (w *Watcher) warnNotifications() {
	err := w.notifyErr
	if err != nil {
		err = fmt.Errorf("%w; looking every %v instead%s", err, w.o.Poll, watch.Advice(err))
	}
	w.warnOnce("notifications", "", err)
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

// warnOnce reports err as a warning about a profile, unless the last error with this key had the same text. If the parameter
// profile is "", the warning isn't about a single one. A nil err means that the problem is gone. If the same error comes back later,
// warnOnce reports it again.
func (w *Watcher) warnOnce(key, profile string, err error) {
	if err == nil {
		delete(w.warned, key)
		return
	}
	text := err.Error()
	if w.warned[key] == text || errors.Is(err, context.Canceled) {
		return
	}
	w.warned[key] = text
	w.o.Notify(Warned{Warning: Warning{Profile: profile, Message: text}})
}

// warnVolume reports an error that concerns the whole volume, through warnOnce.
func (w *Watcher) warnVolume(err error) { w.warnOnce("volume", "", err) }
