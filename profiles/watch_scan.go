package profiles

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"hinit/internal/fsutil"
)

// scanAll scans the whole volume. An error means that the volume can't be used; then the known profiles stay known.
func (w *Watcher) scanAll(ctx context.Context) error {
	began := time.Now()
	w.clearPending()
	w.dir = stamp{}
	err := w.scanVolume(ctx)
	if ctx.Err() == nil {
		w.warnVolume(err)
	}
	w.scannedAt = began
	w.scheduleNext(began, err)
	return err
}

// Limits on the share of time that scans take, for large volumes on which a scan takes long.
const (
	pollPauseFactor = 20                    // The pause before a poll is pollPauseFactor times as long as the last scan.
	scanPauseFactor = 10                    // After a scan of longScanTime or more, the next full scan for a notification must wait scanPauseFactor times as long.
	longScanTime    = 20 * time.Millisecond // Shorter scans are not limited by scanPauseFactor.
)

// blindPollInterval is the longest time between full scans while changes may be missed. This is so if some directories without
// the marker have no inotify watch, or if a directory did not answer during the last scan.
const blindPollInterval = time.Minute

// scheduleNext sets the time of the next poll. It is called after a full scan that began at began and ended with err. After a
// long scan it also delays the next full scan that a notification causes.
func (w *Watcher) scheduleNext(began time.Time, err error) {
	now := time.Now()
	took := now.Sub(began)
	pause := w.options.IdlePoll
	switch {
	case w.someUnwatched || err != nil:
		pause = w.options.Poll
	case w.someSilent || len(w.unmarkedWatches) < len(w.candidates):
		pause = min(pause, blindPollInterval)
	}
	w.nextPoll = now.Add(max(pause, pollPauseFactor*took))
	if took > longScanTime {
		w.notBefore = now.Add(scanPauseFactor * took)
	}
}

// scanVolume is scanAll without scheduling the next scan.
func (w *Watcher) scanVolume(ctx context.Context) error {
	w.startNotifications()
	defer func() { w.warnNotifications() }()
	began := time.Now()
	d, err := w.store.open()
	if err != nil {
		return err
	}
	defer d.Close()
	w.watchDir(d, ".", w.store.root) // Watch first: otherwise a change between scan and watch would be missed.
	if !w.store.answersInTime(profilesDir) {
		return errNoAnswer
	}
	w.watchDir(d, profilesDir, filepath.Join(w.store.root, profilesDir))
	l, err := w.store.list(func(name string, marked bool) bool { return w.known[name] != nil || !marked && w.candidates[name] })
	if err != nil {
		return err
	}
	w.reportWarnings(l.warnings)
	if !l.profilesLeftOut {
		w.warnOnce(limitKey, "", nil)
	}
	here := make(map[string]bool, len(l.marked)+len(l.unmarked))
	for _, name := range slices.Concat(l.marked, l.unmarked) {
		here[name] = true
	}
	w.reportDisappeared(d, here, l.dir.mtime)
	w.candidates = make(map[string]bool, len(l.unmarked))
	for _, name := range l.unmarked {
		if w.known[name] == nil {
			w.candidates[name] = true
		}
	}
	w.unmarkedWatches = slices.DeleteFunc(w.unmarkedWatches, func(name string) bool { return !w.candidates[name] })
	w.watchHomes(d, l)

	w.scanHome(ctx, d, Default, true)
	for _, name := range l.marked {
		w.scanHome(ctx, d, name, true)
	}
	for _, name := range l.unmarked {
		if w.known[name] != nil { // The directory still exists, but has lost its marker file.
			w.scanHome(ctx, d, name, false)
		}
	}
	for _, name := range w.newlyMarked(d) { // Directories that got the marker file after profiles/ was listed.
		w.scanHome(ctx, d, name, true)
	}
	w.someSilent = len(l.silentDirs) > 0
	if !w.someSilent && l.dir.settledBefore(began) {
		w.dir = l.dir
	}
	return ctx.Err()
}

// newlyMarked returns the candidates (directories without the marker at the last scan) that have the marker now.
func (w *Watcher) newlyMarked(d *fsutil.Dir) (names []string) {
	_ = d.WithIdentity(func(d *fsutil.Dir) error {
		for name := range w.candidates {
			if rel := filepath.Join(profilesDir, name); !w.store.isSilent(rel) && d.CheckExists(filepath.Join(rel, w.store.marker)) == nil {
				names = append(names, name)
			}
		}
		return nil
	})
	slices.Sort(names)
	return names
}

// pollChanges finds changes that have caused no notification. It compares the metadata of the important files with the last scan.
// It scans the whole volume only if this comparison can't show every change.
func (w *Watcher) pollChanges(ctx context.Context) {
	began := time.Now()
	// Changes by another machine may not show in the timestamps of directories.
	remotely := w.changedByOthers && began.Sub(w.scannedAt) >= w.options.IdlePoll
	changed, all := w.changedTimes()
	if all || remotely {
		_ = w.scanAll(ctx) // Ignore the error: warnOnce has already reported it.
		return
	}
	if len(changed) > 0 {
		d, err := w.store.open()
		w.warnVolume(err)
		if err != nil {
			w.scheduleNext(began, err)
			return
		}
		defer d.Close()
		for _, name := range changed {
			w.scanHome(ctx, d, name, false)
		}
	}
	w.scheduleNext(began, nil)
}

// changedTimes compares the metadata of the important files with the last scan. changed lists the profiles with changed files and
// the directories that have the marker now. If all is true, only a full scan can find the changes.
func (w *Watcher) changedTimes() (changed []string, all bool) {
	if w.dir == (stamp{}) || w.canWatchMore() || w.store.isSilent(profilesDir) {
		return nil, true
	}
	d, err := w.store.open()
	if err != nil {
		return nil, true
	}
	defer d.Close()
	w.mu.Lock()
	interest := maps.Clone(w.inputHashes)
	w.mu.Unlock()
	_ = d.WithIdentity(func(d *fsutil.Dir) error {
		root, err := d.Lstat(".")
		all = err != nil || w.inotify.Events != nil && w.inotify.ID(w.store.root) != stampOf(root).ID && !w.watchLimitReached ||
			stampAt(d, profilesDir) != w.dir
		if all {
			return nil
		}
		for name, k := range w.known {
			home := homeOfValidName(name)
			if w.store.isSilent(home) {
				continue
			}
			same := k.stateComplete && stampAt(d, filepath.Join(home, StateFile)) == k.stateStamp
			if _, asked := interest[name]; asked && same {
				same = k.inputsCurrent && w.store.inputStamps(d, home) == k.inputs
			}
			if !same {
				changed = append(changed, name)
			}
		}
		changed = append(changed, w.newlyMarked(d)...)
		return nil
	})
	slices.Sort(changed)
	return changed, all
}

// reportDisappeared reports the known profiles whose directories no longer exist. here has the names in the present listing, and
// changed is when the names in profiles/ last changed. First it removes the watches of all missing directories: a renamed
// directory keeps its inode, and could otherwise not be watched under its new name.
func (w *Watcher) reportDisappeared(d *fsutil.Dir, here map[string]bool, changed time.Time) {
	var gone []string
	for name := range w.known {
		if rel := filepath.Join(profilesDir, name); name == Default || here[name] || w.store.isSilent(rel) {
			continue
		}
		// An existing directory may be missing in the listing, for example because it can't be read at this moment.
		info, err := d.Lstat(filepath.Join(profilesDir, name))
		if err == nil && info.IsDir() || err != nil && !errors.Is(err, fs.ErrNotExist) {
			here[name] = true
			continue
		}
		gone = append(gone, name)
	}
	w.inotify.Retain(func(path string) bool {
		return path == w.store.root || filepath.Dir(path) == w.store.root || here[filepath.Base(path)]
	})
	slices.Sort(gone)
	for _, name := range gone {
		p := w.known[name].profile
		delete(w.known, name)
		w.StopWatchingInputs(name)
		w.warnOnce("state of "+name, name, nil)
		w.options.Notify(Disappeared{Profile: p, DirChanged: changed})
	}
}

// scanDirty scans the homes for which notifications came, and the names in profiles/ that are new or have changed.
func (w *Watcher) scanDirty(ctx context.Context) {
	fresh := slices.Sorted(maps.Keys(w.changedNames))
	names := make([]string, 0, len(w.changedHomes))
	for name := range w.changedHomes {
		if (w.known[name] != nil || w.candidates[name]) && !w.store.isSilent(homeOfValidName(name)) {
			names = append(names, name)
		}
	}
	w.clearPending()
	d, err := w.store.open()
	w.warnVolume(err)
	if err != nil {
		w.nextPoll = time.Now().Add(w.options.Poll)
		return
	}
	defer d.Close()
	for _, name := range fresh {
		if w.scanNew(ctx, d, name) {
			continue
		}
		w.scheduleScanAll()
		if !w.isDue(time.Now()) { // The last full scan took so long that the next one must wait.
			break
		}
		_ = w.scanAll(ctx) // This also scans the remaining names; warnOnce has already reported an error.
		return
	}
	slices.Sort(names)
	for _, name := range names {
		if k := w.known[name]; k != nil && time.Now().Before(k.nextScan) {
			w.changedHomes[name] = true
			w.scheduleScan(time.Until(k.nextScan))
			continue
		}
		w.scanHome(ctx, d, name, false)
	}
}

// scanForFind does the scan for [Watcher.Find].
func (w *Watcher) scanForFind(ctx context.Context, name string) error {
	if w.scanAllNext {
		return w.scanAll(ctx) // A full scan is due anyway.
	}
	if w.known[name] != nil {
		return nil
	}
	d, err := w.store.open()
	w.warnVolume(err)
	if err != nil {
		return err
	}
	defer d.Close()
	err = ctx.Err()
	if !w.scanNew(ctx, d, name) {
		err = w.scanAll(ctx)
	}
	if err == nil && w.known[name] == nil && w.isAtProfileLimit() && d.CheckExists(filepath.Join(profilesDir, name, w.store.marker)) == nil {
		return w.store.limitError()
	}
	return err
}

// scanNew scans the directory name in profiles/ after a change. It returns false if a full scan is needed. The reasons are: the
// name belonged to another directory before, is a link, or can't be a profile; or the directory doesn't answer or can't be
// watched.
func (w *Watcher) scanNew(ctx context.Context, d *fsutil.Dir, name string) bool {
	rel, path := filepath.Join(profilesDir, name), w.store.profile(name).Home
	if NameProblem(name) != nil || !w.store.answersInTime(rel) {
		return false
	}
	info, err := d.Lstat(rel)
	switch {
	case w.known[name] != nil && (err != nil || !info.IsDir() || w.inotify.ID(path) != stampOf(info).ID):
		return false
	case errors.Is(err, fs.ErrNotExist), err == nil && !info.IsDir() && info.Mode()&fs.ModeSymlink == 0:
		w.forgetCandidate(name)
		return !w.isWarned(name) // The new directory was already removed or replaced.
	case err != nil, !info.IsDir():
		return false
	case (w.known[name] != nil || w.candidates[name]) && w.inotify.ID(path) == stampOf(info).ID:
		w.scanHome(ctx, d, name, false)
		return true
	case w.inotify.Watches(stampOf(info).ID):
		return false // This directory is already watched under another name: it was renamed.
	}
	complete := !w.someUnwatched
	w.makeRoomForCandidate()
	w.candidates[name] = true
	w.watchUnmarked(name, stampOf(info)) // Watch first: otherwise a change between scan and watch would be missed.
	if complete && w.someUnwatched {
		return false
	}
	w.scanHome(ctx, d, name, false)
	return true
}

// removeCandidate forgets a candidate (a directory without the marker). Its watch stays.
func (w *Watcher) removeCandidate(name string) {
	delete(w.candidates, name)
	w.unmarkedWatches = slices.DeleteFunc(w.unmarkedWatches, func(other string) bool { return other == name })
}

// forgetCandidate forgets a candidate and removes its watch.
func (w *Watcher) forgetCandidate(name string) {
	w.removeCandidate(name)
	w.inotify.Remove(w.store.profile(name).Home)
}

// makeRoomForCandidate drops one candidate if there are as many as the limit on profiles, to make room for another.
func (w *Watcher) makeRoomForCandidate() {
	if len(w.candidates) < w.store.maxProfiles {
		return
	}
	for name := range w.candidates {
		if !slices.Contains(w.unmarkedWatches, name) { // Candidates with a watch are newer, so drop one without a watch.
			w.forgetCandidate(name)
			return
		}
	}
	if len(w.unmarkedWatches) > 0 {
		w.forgetCandidate(w.unmarkedWatches[0])
	}
}

// isAtProfileLimit reports whether the volume has as many profiles as the limit.
func (w *Watcher) isAtProfileLimit() bool {
	named := len(w.known)
	if w.known[Default] != nil {
		named--
	}
	return named >= w.store.maxProfiles
}

// limitKey is the key of the warning about too many profiles, for warnOnce.
const limitKey = "limit"

// After the scan of a home, notifications start no other scan of it for a time that is proportional to the size of its files.
// Otherwise a home with large files that change all the time would delay the other homes.
const (
	parsedBytesPerSecond = 64 << 10 // Parsing a state file of this many bytes causes a pause of one second.
	hashedBytesPerSecond = 1 << 20  // Hashing inputs of this many bytes causes a pause of one second.
)

// scanHome scans one home and reports changes of the state file. It also reports changes of the inputs, if WatchInputs was called.
// An unknown directory that has the marker becomes a profile. marked says that the caller has found the marker.
func (w *Watcher) scanHome(ctx context.Context, d *fsutil.Dir, name string, marked bool) {
	if ctx.Err() != nil {
		return
	}
	k, home := w.known[name], homeOfValidName(name)
	if k == nil {
		if !marked {
			if _, err := d.Lstat(filepath.Join(home, w.store.marker)); err != nil {
				return
			}
		}
		if name != Default && w.isAtProfileLimit() {
			w.warnOnce(limitKey, "", w.store.limitError())
			return
		}
		p := w.store.profile(name)
		k = &scannedProfile{profile: p}
		w.known[name] = k
		w.removeCandidate(name)
		if name != Default && w.inotify.ID(p.Home) == (fsutil.ID{}) {
			w.watchDir(d, home, p.Home)
		}
		w.options.Notify(Appeared{Profile: p})
	}
	var st State
	began, first := time.Now(), k.scannedAt.IsZero()
	k.scannedAt = began
	err := d.WithIdentity(func(d *fsutil.Dir) (err error) { // Only the file operations need the agent's identity.
		if first {
			makeReserve(d, home)
		}
		k.stateStamp = stampAt(d, filepath.Join(home, StateFile))
		k.stateComplete = k.stateStamp.settledBefore(began)
		st, err = readState(d, home)
		return err
	})
	if err != nil {
		err = fmt.Errorf("cannot use the state of profile %q: %w", name, err)
	}
	w.warnOnce("state of "+name, name, err)
	if !st.Heartbeat.IsZero() && !st.Heartbeat.Equal(k.lastHeartbeat) {
		k.lastHeartbeat = st.Heartbeat
		w.options.Notify(Heartbeat{Profile: k.profile})
	}
	if !st.Equal(k.state) {
		k.state = st
		w.options.Notify(StateChanged{Profile: k.profile, State: st})
	}
	k.nextScan = began.Add(time.Duration(st.size) * time.Second / parsedBytesPerSecond)
	w.scanInput(d, home, k)
}
