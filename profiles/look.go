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

// lookAtAll looks at the whole volume. The error is about the volume; what was known of its profiles stays known then,
// because a volume that can't be read says nothing about them.
func (w *Watcher) lookAtAll(ctx context.Context) error {
	w.settled()
	err := w.lookAtVolume(ctx)
	w.warnVolume(err)
	w.nextPoll = time.Now().Add(w.o.IdlePoll)
	if w.partial || err != nil {
		w.nextPoll = time.Now().Add(w.o.Poll)
	}
	return err
}

func (w *Watcher) lookAtVolume(ctx context.Context) error {
	w.startHints()
	defer func() { w.warnHints() }()
	d, err := w.store.open()
	if err != nil {
		return err
	}
	defer d.Close()
	w.hint(d, ".", w.store.root) // before looking, so that what changes later isn't missed
	w.store.ask(profilesDir)
	if w.store.isSilent(profilesDir) {
		return errSilent
	}
	if _, err := d.Lstat(profilesDir); err == nil {
		w.hint(d, profilesDir, filepath.Join(w.store.root, profilesDir))
	}
	var l listing
	err = d.Together(func(d *fsutil.Dir) (err error) {
		l, err = w.store.list(d)
		return err
	})
	if err != nil {
		return err
	}
	w.tellList(l.warnings)
	here := make(map[string]bool, len(l.marked)+len(l.unmarked))
	for _, name := range slices.Concat(l.marked, l.unmarked) {
		here[name] = true
	}
	w.drop(d, here)
	for _, name := range slices.Concat(l.marked, l.unmarked) {
		w.hint(d, filepath.Join(profilesDir, name), w.store.named(name).Home)
	}
	clear(w.candidates)
	for _, name := range l.unmarked {
		w.candidates[name] = w.known[name] == nil
	}

	w.lookAt(ctx, d, Default, true)
	for _, name := range l.marked {
		w.lookAt(ctx, d, name, true)
	}
	for _, name := range l.unmarked { // lookAt sees the marker if it came since
		w.lookAt(ctx, d, name, false)
	}
	return ctx.Err()
}

// drop tells of the profiles that are gone. Watches of what is gone go first: a directory that was only renamed keeps its
// inode, whose watch would otherwise end later, when the new name needs it.
func (w *Watcher) drop(d *fsutil.Dir, here map[string]bool) {
	var gone []string
	for name := range w.known {
		if name == Default || here[name] {
			continue
		}
		// The list leaves out more than what is gone, for example a directory that can't be read just now.
		info, err := d.Lstat(filepath.Join(profilesDir, name))
		if err == nil && info.IsDir() || err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		gone = append(gone, name)
	}
	w.hints.retain(func(path string) bool {
		return path == w.store.root || filepath.Dir(path) == w.store.root || here[filepath.Base(path)]
	})
	slices.Sort(gone)
	for _, name := range gone {
		p := w.known[name].profile
		delete(w.known, name)
		w.Disinterest(name)
		delete(w.warned, "state of "+name)
		w.o.Notify(Disappeared{Profile: p})
	}
}

// lookAtDirty looks at the homes that were hinted at, and at what has come to profiles/.
func (w *Watcher) lookAtDirty(ctx context.Context) {
	fresh := slices.Sorted(maps.Keys(w.fresh))
	names := make([]string, 0, len(w.dirty))
	for name := range w.dirty {
		if w.known[name] != nil || w.candidates[name] {
			names = append(names, name)
		}
	}
	w.settled()
	d, err := w.store.open()
	w.warnVolume(err)
	if err != nil {
		w.nextPoll = time.Now().Add(w.o.Poll)
		return
	}
	defer d.Close()
	for _, name := range fresh {
		if !w.lookAtNew(ctx, d, name) {
			_ = w.lookAtAll(ctx) // which sees the others too; its error has become a warning
			return
		}
	}
	slices.Sort(names)
	for _, name := range names {
		w.lookAt(ctx, d, name, false)
	}
}

// lookFor looks for one profile, see [Watcher.Find].
func (w *Watcher) lookFor(ctx context.Context, name string) error {
	if w.dirtyAll {
		return w.lookAtAll(ctx) // it is due
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
	if w.lookAtNew(ctx, d, name) {
		return ctx.Err()
	}
	return w.lookAtAll(ctx)
}

// lookAtNew looks at one name in profiles/ that something has happened to, and reports whether that tells all. Where it
// doesn't (something else was there before, it has another name by now, it is a link, can't be a profile, does not answer or
// can't be watched) only a look at everything keeps profiles, watches and warnings in step.
func (w *Watcher) lookAtNew(ctx context.Context, d *fsutil.Dir, name string) bool {
	if usable(name) != nil {
		return false
	}
	rel, path := filepath.Join(profilesDir, name), w.store.named(name).Home
	w.store.ask(rel)
	if w.store.isSilent(rel) {
		return false
	}
	info, err := d.Lstat(rel)
	if err != nil || !info.IsDir() {
		w.store.forgetAnswer(rel) // names that come and go must not be kept for ever
	}
	switch {
	case w.known[name] != nil, w.candidates[name]:
		if err != nil || !info.IsDir() || !w.hints.watchesAt(path, stampOf(info)) {
			return false
		}
		w.lookAt(ctx, d, name, false) // it was seen already
		return true
	case errors.Is(err, fs.ErrNotExist):
		return true // it came and went
	case err != nil, info.Mode()&fs.ModeSymlink != 0:
		return false
	case !info.IsDir():
		return true
	case w.hints.watches(stampOf(info)):
		return false // a directory that was renamed
	}
	complete := !w.partial
	w.hint(d, rel, path) // before looking, so that what changes later isn't missed
	if complete && w.partial {
		return false
	}
	w.candidates[name] = true
	w.lookAt(ctx, d, name, false)
	return true
}

// lookAt looks at one home and tells what is new about it. A profile that isn't known appears if it has the marker, which
// marked says to be certain.
func (w *Watcher) lookAt(ctx context.Context, d *fsutil.Dir, name string, marked bool) {
	if ctx.Err() != nil {
		return
	}
	home, err := homeOf(name)
	if err != nil {
		return
	}
	k := w.known[name]
	if k == nil {
		if !marked {
			if _, err := d.Lstat(filepath.Join(home, w.store.marker)); err != nil {
				return
			}
		}
		p := Profile{Name: name, Home: filepath.Join(w.store.root, home)}
		k = &lookedAt{profile: p}
		w.known[name] = k
		delete(w.candidates, name)
		w.o.Notify(Appeared{Profile: p})
	}
	var st State
	err = d.Together(func(d *fsutil.Dir) (err error) { // not more than this: what is told of it is not the agent's doing
		st, err = readState(d, home)
		return err
	})
	if err != nil {
		err = stateError(name, err)
	}
	w.warnOnce("state of "+name, Warning{Profile: name, Path: filepath.Join(k.profile.Home, stateFile)}, err)
	if !st.Equal(k.state) {
		k.state = st
		w.o.Notify(StateChanged{Profile: k.profile, State: st})
	}
	w.lookAtInput(d, home, k.profile)
}

// lookAtInputs looks at the inputs of every profile that somebody is interested in.
func (w *Watcher) lookAtInputs(ctx context.Context) {
	w.mu.Lock()
	names := make([]string, 0, len(w.interest))
	for name := range w.interest {
		names = append(names, name)
	}
	w.mu.Unlock()
	d, err := w.store.open()
	w.warnVolume(err)
	if err != nil {
		return // the next poll does it
	}
	defer d.Close()
	slices.Sort(names)
	for _, name := range names {
		if k := w.known[name]; k != nil && ctx.Err() == nil {
			home, err := homeOf(name)
			if err == nil {
				w.lookAtInput(d, home, k.profile)
			}
		}
	}
}

func (w *Watcher) lookAtInput(d *fsutil.Dir, home string, p Profile) {
	since, ok := w.interested(p.Name)
	if !ok || homeExists(d, home) != nil { // one that is going away has no news
		return
	}
	h := w.store.inputsHash(d, home)
	if h == since {
		return
	}
	w.mu.Lock()
	if now, ok := w.interest[p.Name]; !ok || now != since { // asked anew meanwhile: that has its own look
		w.mu.Unlock()
		return
	}
	w.interest[p.Name] = h
	w.mu.Unlock()
	if since != "" {
		w.o.Notify(InputsChanged{Profile: p, Hash: h})
	}
}

// hint asks for notifications about a directory, if it is one.
func (w *Watcher) hint(d *fsutil.Dir, rel, path string) {
	if w.hints == nil {
		return
	}
	info, err := d.Lstat(rel)
	if err != nil || !info.IsDir() {
		return
	}
	complete, err := w.hints.add(path, stampOf(info))
	if w.hintErr == nil {
		w.hintErr = err
	}
	if !complete {
		w.partial = true
	}
}

// startHints makes sure that there is a source of notifications, if there can be one.
func (w *Watcher) startHints() {
	w.partial, w.hintErr = false, nil
	if w.hints == nil {
		w.hints, w.hintErr = w.o.hints()
	}
	if w.hints == nil {
		w.partial = true
	}
}

// warnHints tells why there are no notifications, or not all.
func (w *Watcher) warnHints() {
	err := w.hintErr
	if err != nil {
		err = fmt.Errorf("%w; looking every %v instead", err, w.o.Poll)
	}
	w.warnOnce("notifications", Warning{Path: w.store.root}, err)
}

// tellList tells the warnings of a full look that the one before didn't have.
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
