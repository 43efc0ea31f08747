package profiles

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/watch"
)

// dirWatches is the watcher's set of inotify watches on directories of the volume. It also stores facts about their file systems.
type dirWatches struct {
	watch.Set

	remoteDevices map[uint64]bool // Results of isRemote, by device number; nil before the first call.
}

// isRemote reports whether the file system of path can change without this kernel: by another machine, a daemon or a hypervisor.
// inotify doesn't report such changes, so the volume must be polled. dev is the device number of the file system. The result is
// stored for each device.
func (h *dirWatches) isRemote(path string, dev uint64) bool {
	is, known := h.remoteDevices[dev]
	if !known {
		is = !fsutil.IsLocal(path)
		if h.remoteDevices == nil || len(h.remoteDevices) > 1000 {
			h.remoteDevices = make(map[uint64]bool)
		}
		h.remoteDevices[dev] = is
	}
	return is
}

// watchDir watches a directory of the volume: the root, profiles/, or the home of a profile. rel is the path relative to d, and
// path is the absolute path. If rel is not a directory, watchDir does nothing.
func (w *Watcher) watchDir(d *fsutil.Dir, rel, path string) {
	if info, err := d.Lstat(rel); err == nil && info.IsDir() {
		w.watchAt(path, stampOf(info), true)
	}
}

// watchHomes adds watches on the directories in l. Homes of profiles come first, because the kernel's limit may not leave enough
// watches for directories without the marker file.
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

// maxUnmarkedWatches is the maximum number of watches on directories without the marker file. Without a watch, only the next poll
// finds a new marker.
const maxUnmarkedWatches = 256

// watchUnmarked watches a directory without the marker, so that a new marker is noticed at once. If that makes more than
// maxUnmarkedWatches such watches, it removes the oldest.
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

// watchAt watches the directory at path, whose metadata is id, and reports whether it has succeeded. If the kernel allows no more
// watches and needed is true, it first removes the watches on directories without the marker. After the kernel has refused a
// watch, it tries no other watch during the same scan.
func (w *Watcher) watchAt(path string, id stamp, needed bool) bool {
	if w.inotify.Events == nil || w.watchLimitReached && w.inotify.ID(path) != id.ID {
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
		w.watchLimitReached, w.firstUnwatched, w.firstUnwatchedID = true, path, id.ID
	}
	if err != nil || w.inotify.isRemote(path, id.Dev) {
		w.someUnwatched = true
		w.changedByOthers = w.changedByOthers || err == nil
	}
	return err == nil
}

// startNotifications is called at the beginning of a full scan. It creates an inotify instance if none exists. It also forgets
// which directories could not be watched during the last scan.
func (w *Watcher) startNotifications() {
	w.someUnwatched, w.watchLimitReached, w.changedByOthers, w.notifyErr = false, false, false, nil
	if w.inotify.Events == nil {
		w.unmarkedWatches = nil
		w.notifyErr = w.options.openNotifications(&w.inotify.Set)
		w.someUnwatched = w.notifyErr != nil
	}
}

// canWatchMore repeats what inotify has refused during the last full scan: to make an instance, or to add one watch. If it
// returns true, a new full scan can add watches.
func (w *Watcher) canWatchMore() bool {
	switch {
	case w.inotify.Events == nil:
		w.unmarkedWatches = nil
		return w.options.openNotifications(&w.inotify.Set) == nil
	case w.watchLimitReached:
		return w.inotify.Add(w.firstUnwatched, w.firstUnwatchedID) == nil
	}
	return false
}

// warnNotifications warns that inotify notifications are missing or incomplete, and why.
func (w *Watcher) warnNotifications() {
	err := w.notifyErr
	if err != nil {
		err = fmt.Errorf("%w; looking every %v instead%s", err, w.options.Poll, watch.LimitAdvice(err))
	}
	w.warnOnce("notifications", "", err)
}

// reportWarnings reports the warnings of a full scan that the previous full scan did not have.
func (w *Watcher) reportWarnings(warnings []Warning) {
	w.mu.Lock()
	before := w.currentWarnings.listed
	w.currentWarnings.listed = warnings
	w.mu.Unlock()
	for _, warning := range warnings {
		if !slices.Contains(before, warning) {
			w.options.Notify(Warned{Warning: warning})
		}
	}
}

// warnOnce reports err as a warning about profile, or about the volume if profile is "". It repeats the report for this key only
// if the text of the error changes. A nil err means that the problem is solved: if it comes back, it is reported again.
func (w *Watcher) warnOnce(key, profile string, err error) {
	w.mu.Lock()
	before := w.currentWarnings.byKey[key]
	delete(w.currentWarnings.byKey, key)
	if err != nil {
		w.currentWarnings.byKey[key] = Warning{profile, err.Error()}
	}
	now := w.currentWarnings.byKey[key]
	w.mu.Unlock()
	if err != nil && now != before {
		w.options.Notify(Warned{Warning: now})
	}
}

// isWarned reports whether a warning about the directory called name is in effect.
func (w *Watcher) isWarned(name string) bool {
	return slices.ContainsFunc(w.Warnings(), func(warning Warning) bool { return warning.Profile == name })
}

// Warnings returns the warnings that are in effect now. It doesn't block.
func (w *Watcher) Warnings() []Warning {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.AppendSeq(slices.Clone(w.currentWarnings.listed), maps.Values(w.currentWarnings.byKey))
}

// warnVolume is warnOnce for an error about the whole volume.
func (w *Watcher) warnVolume(err error) { w.warnOnce("volume", "", err) }
