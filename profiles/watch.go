package profiles

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"hinit/internal/guard"
)

// WatchOptions says how [Store.Watch] scans the volume. Zero durations are the defaults.
type WatchOptions struct {
	// Notify gets the events, one after the other, on the watcher's goroutine. It may block, which delays the next scan. It must
	// not call Rescan or Find, which wait for it.
	Notify func(Event)
	// Known are the profiles that the caller has already, usually from the boot pass: they don't appear once more.
	Known []Profile
	// Poll is how often everything is scanned where change notifications don't work (network and virtual file systems, limits of
	// inotify). Default 5 s.
	Poll time.Duration
	// IdlePoll is the same where they do work. Default 60 s. Neither reads unchanged files again.
	IdlePoll time.Duration
	// Settle is how long after a notification the scan waits for more of them. Default 100 ms.
	Settle time.Duration
	// Appear is the same for a profile that comes or goes. It also holds for a state file that is replaced after a pause of
	// Settle: a client or the next gateway waits for it. Default 5 ms, at most Settle.
	Appear time.Duration
	// MaxSettle is how long it waits at most while they keep coming. Default 1 s.
	MaxSettle time.Duration

	// hints replaces the source of notifications in tests.
	hints func() (*hints, error)
}

// Watcher reports changes of the profiles of a volume.
//
// Notifications of the kernel only say that it is time to scan. The content is then compared with the last scan. So a lost, late
// or misleading notification costs time only, and a periodic scan finds changes without a notification.
//
// One goroutine scans, one disk operation at a time.
type Watcher struct {
	store *Store
	o     WatchOptions
	asked chan request
	wake  chan struct{} // capacity 1: interest has changed
	done  chan struct{}

	mu          sync.Mutex // guards interest and interestNew; never held while the disk is used
	interest    map[string]Hash
	interestNew map[string]bool // what the goroutine has not scanned yet

	// All below belongs to the goroutine.
	known      map[string]*scanned
	candidates map[string]bool   // directories without the marker, as many as the limit allows
	listWarned map[string]bool   // warnings of the last full scan, by message
	warned     map[string]string // other warnings that persist, by their subject
	notifications
	lastScan
	pending
}

// notifications holds the watches of the kernel, and the places without one.
type notifications struct {
	hints     *hints
	spare     []string // candidates that have a watch, the oldest first
	partial   bool     // notifications don't cover everything
	hintErr   error    // why, the first reason of the last full scan
	remote    bool     // others change the volume, too
	short     bool     // the kernel has no more watches, so that there is none of lacking
	lacking   string
	lackingID stamp
}

// lastScan is about the last full scan.
type lastScan struct {
	scannedAt time.Time // when it began
	rests     time.Time // earliest time of the next scan that a notification starts
	dir       stamp     // profiles/ at that scan
	sure      bool      // while dir stays the same, all names are known
}

// pending is what to scan next, and when.
type pending struct {
	dirty    map[string]bool // homes to scan
	fresh    map[string]bool // names in profiles/ that have changed
	dirtyAll bool
	soon     bool      // a client waits for the scan that is due
	first    time.Time // of the notifications since the last scan; zero none
	due      time.Time // when they are scanned
	nextPoll time.Time
}

// request asks for a scan now.
type request struct {
	profile string // "" for all of them
	reply   chan error
}

// scanned is the result of the last scan of a profile.
type scanned struct {
	profile    Profile
	scannedAt  time.Time // when it began
	state      State
	beat       time.Time // the last one
	seen       stamp     // its file
	sure       bool      // while seen stays the same, the state does
	inputs     [3]stamp
	inputsSure bool
}

// Watch starts watching and returns at once. The first scan tells of every profile that isn't in Known. The watcher ends when ctx
// does; [Watcher.Done] tells when it has.
func (s *Store) Watch(ctx context.Context, o WatchOptions) *Watcher {
	defaultTo(&o.Poll, 5*time.Second)
	defaultTo(&o.IdlePoll, 60*time.Second)
	defaultTo(&o.Settle, 100*time.Millisecond)
	defaultTo(&o.Appear, min(5*time.Millisecond, o.Settle))
	defaultTo(&o.MaxSettle, time.Second)
	if o.hints == nil {
		o.hints = newHints
	}
	if o.Notify == nil {
		o.Notify = func(Event) {}
	}
	w := &Watcher{
		store:    s,
		o:        o,
		asked:    make(chan request, 64), // more than these wait to be among them
		wake:     make(chan struct{}, 1),
		done:     make(chan struct{}),
		interest: make(map[string]Hash), interestNew: make(map[string]bool),
		known:      make(map[string]*scanned),
		candidates: make(map[string]bool),
		warned:     make(map[string]string),
		pending:    pending{dirty: make(map[string]bool), fresh: make(map[string]bool)},
	}
	for _, p := range o.Known {
		w.known[p.Name] = &scanned{profile: p}
	}
	guard.Go("watching the profiles", func() { w.run(ctx) })
	return w
}

func defaultTo(d *time.Duration, value time.Duration) {
	if *d <= 0 {
		*d = value
	}
}

// Done is closed when the watcher has ended and holds nothing any more. On a hung disk that takes as long as the disk does.
func (w *Watcher) Done() <-chan struct{} { return w.done }

// Rescan scans everything now; callers at the same time share one scan. When it returns nil, Notify has returned for every
// event of that scan. The error is about the volume as a whole. It is ctx's error when the caller has no more time (the scan goes
// on), or [context.Canceled] when the watcher has ended.
func (w *Watcher) Rescan(ctx context.Context) error { return w.look(ctx, "") }

// Find is Rescan for one profile that isn't known: it scans the directory of that name, and at everything only where that is not
// enough.
func (w *Watcher) Find(ctx context.Context, profile string) error {
	if _, err := homeOf(profile); err != nil {
		return nil //nolint:nilerr // there can be none of that name, which is a good answer
	}
	return w.look(ctx, profile)
}

func (w *Watcher) look(ctx context.Context, profile string) error {
	reply := make(chan error, 1)
	select {
	case w.asked <- request{profile, reply}:
	case <-ctx.Done():
		return fmt.Errorf("cannot look at the profiles: %w", context.Cause(ctx))
	case <-w.done:
		return fmt.Errorf("cannot look at the profiles: the watcher has ended: %w", context.Canceled)
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return fmt.Errorf("cannot look at the profiles: %w", context.Cause(ctx))
	case <-w.done:
		return fmt.Errorf("cannot look at the profiles: the watcher has ended: %w", context.Canceled)
	}
}

// Interest asks for [InputsChanged] events about profile, until Disinterest. since is the hash that counts as unchanged, from
// [Store.InputsHash]; "" means the hash of the next scan, so an earlier change isn't noticed. It doesn't block: the supervisor's
// loop may call it.
func (w *Watcher) Interest(profile string, since Hash) {
	w.mu.Lock()
	w.interest[profile], w.interestNew[profile] = since, true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // the goroutine is going to scan already
	}
}

// Disinterest ends what Interest began; one event may still be on its way. It doesn't block.
func (w *Watcher) Disinterest(profile string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.interest, profile)
	delete(w.interestNew, profile)
}

// interested returns the hash that counts as unchanged.
func (w *Watcher) interested(profile string) (Hash, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h, ok := w.interest[profile]
	return h, ok
}

func (w *Watcher) run(ctx context.Context) {
	defer close(w.done)
	defer func() { w.hints.close() }()
	_ = w.scanAll(ctx) // its error has become a warning
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		timer.Reset(time.Until(w.deadline()))
		select {
		case <-ctx.Done():
		case ev, ok := <-w.hints.changes():
			if ok {
				w.mark(ev)
			} else {
				w.endHints()
			}
		case _, ok := <-w.hints.lost():
			if ok {
				w.markAll()
			} else {
				w.endHints()
			}
		case <-w.wake:
			w.scanInputs(ctx)
		case r := <-w.asked:
			w.answer(ctx, r)
		case <-timer.C:
		}
		switch now := time.Now(); {
		case ctx.Err() != nil:
		case w.isDue(now) && w.dirtyAll:
			_ = w.scanAll(ctx)
		case !now.Before(w.nextPoll) && !w.dirtyAll:
			w.poll(ctx)
		case w.isDue(now):
			w.scanDirty(ctx)
		}
	}
}

// answer scans for all clients that wait: one scan that begins after their requests answers all of them.
func (w *Watcher) answer(ctx context.Context, first request) {
	asked, all := []request{first}, first.profile == ""
	for more := true; more; {
		select {
		case r := <-w.asked:
			asked, all = append(asked, r), all || r.profile == ""
		default:
			more = false
		}
	}
	var err error
	if all {
		err = w.scanAll(ctx)
	}
	for _, r := range asked {
		if !all {
			err = w.scanFor(ctx, r.profile)
		}
		r.reply <- err
	}
}

func (w *Watcher) isDue(now time.Time) bool { return !w.first.IsZero() && !now.Before(w.due) }

func (w *Watcher) deadline() time.Time {
	if !w.first.IsZero() && (w.dirtyAll || w.due.Before(w.nextPoll)) {
		return w.due
	}
	return w.nextPoll
}

// settle sets the time of the next scan: soon, after a burst of notifications, and within MaxSettle in an endless one.
func (w *Watcher) settle(after time.Duration) {
	now := time.Now()
	if w.first.IsZero() {
		w.first = now
	}
	w.due = now.Add(after)
	if latest := w.first.Add(w.o.MaxSettle); latest.Before(w.due) {
		w.due = latest
	}
	if w.dirtyAll && w.due.Before(w.rests) {
		w.due = w.rests
	}
}

// settled forgets the notifications so far, because a scan has begun that sees all changes.
func (w *Watcher) settled() {
	w.first = time.Time{}
	w.dirtyAll, w.soon = false, false
	clear(w.dirty)
	clear(w.fresh)
}

// mark notes the scan that a notification asks for. Homes also have busy files such as databases: mark ignores notifications about
// files without a meaning for hinit.
func (w *Watcher) mark(ev fsnotify.Event) {
	self := w.hints.gone(ev)
	dir, file := filepath.Split(ev.Name)
	dir = filepath.Clean(dir)
	profilesPath := filepath.Join(w.store.root, profilesDir)
	if ev.Op == fsnotify.Chmod && self && !(dir == profilesPath && w.candidates[file]) { // a candidate may be given to the agent only now
		return
	}
	name := Default
	switch {
	case self && w.candidates[file] && dir == profilesPath && !ev.Has(fsnotify.Create): // only its own name has changed
		w.fresh[file] = true
		w.settleSoon()
		return
	case self && !ev.Has(fsnotify.Create), ev.Name == profilesPath: // what is created may have been seen and be watched by now
		w.markAll()
		return
	case dir == profilesPath && strings.HasPrefix(file, "."):
		return // temporary directories, of ours and of others
	case dir == profilesPath:
		w.fresh[file] = true
		w.settleSoon()
		return
	case dir != w.store.root:
		name = filepath.Base(dir)
	}
	if w.matters(name, file) {
		w.dirty[name] = true
		switch {
		case file == w.store.marker, file == stateFile && ev.Has(fsnotify.Create) && w.isQuiet(name):
			w.settleSoon()
		case !w.soon: // else a scan comes sooner, and sees this too
			w.settle(w.o.Settle)
		}
	}
}

// isQuiet reports whether the last scan of a profile is long enough ago that no burst is under way.
func (w *Watcher) isQuiet(name string) bool {
	k := w.known[name]
	return k != nil && time.Since(k.scannedAt) >= w.o.Settle
}

// endHints records that the source of notifications has ended. The next scan makes a new one.
func (w *Watcher) endHints() {
	w.hints.close()
	w.hints = nil
	w.markAll()
}

func (w *Watcher) markAll() {
	w.dirtyAll = true
	w.settleSoon()
}

// settleSoon is settle with the short pause of Appear.
func (w *Watcher) settleSoon() {
	w.soon = true
	w.settle(w.o.Appear)
}

func (w *Watcher) matters(profile, file string) bool {
	switch file {
	case stateFile, w.store.marker:
		return true
	case configFile, envFile:
		_, ok := w.interested(profile)
		return ok
	}
	return false
}
