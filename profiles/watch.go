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
	"hinit/internal/pause"
)

// WatchOptions configure [Store.Watch]. A zero duration means its default.
type WatchOptions struct {
	// Notify gets the events, one after the other, on the watcher's goroutine. It may block, which delays the next scan. It must
	// not call Rescan or Find, because they would wait for Notify for ever.
	Notify func(Event)
	// Known lists the profiles that the caller already knows, usually from the boot. The watcher sends no Appeared for them.
	Known []Profile
	// Poll is the time between full scans while notifications are unavailable or incomplete (network and virtual file systems,
	// limits of inotify). Default 5 s.
	Poll time.Duration
	// IdlePoll is the time between full scans while notifications work, because the kernel may lose one. Default 1 h. No scan
	// reads unchanged files again.
	IdlePoll time.Duration
	// Settle is the time that a scan waits for further notifications after the first one. Default 100 ms.
	Settle time.Duration
	// Appear replaces Settle for a profile that comes or goes. It also replaces Settle for a state file that changes after a
	// pause of Settle, because a client or the next gateway may wait for the change. Default 5 ms, at most Settle.
	Appear time.Duration
	// MaxSettle limits the wait if notifications keep coming. Default 1 s.
	MaxSettle time.Duration

	// hints makes the source of notifications; tests replace this function.
	hints func() (*dirWatches, error)
}

// Watcher reports changes of the profiles of a volume.
//
// A notification of the kernel only starts a scan. The scan compares the content with the last scan. So a lost, late or
// misleading notification costs only time, and a periodic scan finds changes without a notification.
//
// One goroutine scans, with one disk operation at a time.
type Watcher struct {
	store *Store
	o     WatchOptions
	asked chan request
	wake  chan struct{} // capacity 1; wakes the goroutine after a call of Interest
	done  chan struct{}

	mu          sync.Mutex // guards interest and interestNew; never held during disk operations
	interest    map[string]Hash
	interestNew map[string]bool // profiles to scan after a call of Interest

	// Only the goroutine uses the fields below.
	known      map[string]*scanned
	candidates map[string]bool   // directories without the marker, up to the limit
	listWarned map[string]bool   // warnings of the last full scan, by message
	warned     map[string]string // other lasting warnings, by a key
	notifications
	lastScan
	pending
}

// notifications holds the inotify watches, and the gaps in their coverage.
type notifications struct {
	hints           *dirWatches
	unmarkedWatches []string // candidates with a watch, the oldest first
	partial         bool     // some directories are not watched completely
	hintErr         error    // the first reason in the last full scan for an incomplete watch
	remote          bool     // other machines can change the volume
	exhausted       bool     // the kernel has no more watches; lacking is the first directory without one
	lacking         string
	lackingID       stamp
}

// lastScan describes the last full scan.
type lastScan struct {
	scannedAt   time.Time // when the scan began
	notBefore   time.Time // before this time no notification starts a scan
	dir         stamp     // state of the directory profiles/ at the last scan
	dirComplete bool      // an unchanged dir means unchanged names
}

// pending says which scans come next, and when.
type pending struct {
	dirty    map[string]bool // homes to scan
	fresh    map[string]bool // changed names in profiles/
	dirtyAll bool
	soon     bool      // an early scan is pending, see WatchOptions.Appear
	first    time.Time // time of the first notification since the last scan; zero for none
	due      time.Time // time of the scan for these notifications
	nextPoll time.Time
}

// request is a waiting call of Rescan or Find.
type request struct {
	profile string // "" for all profiles
	reply   chan error
}

// scanned is the result of the last scan of a profile.
type scanned struct {
	profile       Profile
	scannedAt     time.Time // when the scan began
	state         State
	beat          time.Time // time of the last beat
	seen          stamp     // stamp of the state file
	stateComplete bool      // an unchanged seen means an unchanged state
	inputs        [3]stamp
	inputsSure    bool
}

// Watch starts a watcher and returns at once. The first scan reports every profile that isn't in Known. The watcher ends with
// ctx; [Watcher.Done] says when it has ended.
func (s *Store) Watch(ctx context.Context, o WatchOptions) *Watcher {
	defaultTo(&o.Poll, 5*time.Second)
	defaultTo(&o.IdlePoll, time.Hour)
	defaultTo(&o.Settle, 100*time.Millisecond)
	defaultTo(&o.Appear, min(5*time.Millisecond, o.Settle))
	defaultTo(&o.MaxSettle, time.Second)
	if o.hints == nil {
		o.hints = newDirWatches
	}
	if o.Notify == nil {
		o.Notify = func(Event) {}
	}
	w := &Watcher{
		store:    s,
		o:        o,
		asked:    make(chan request, 64), // further callers block until there is room
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

// Rescan scans everything now; simultaneous callers share one scan. When Rescan returns nil, Notify has returned for every event
// of that scan. The error says that the volume can't be used, or is the error of ctx (the scan continues), or [context.Canceled]
// after the end of the watcher.
func (w *Watcher) Rescan(ctx context.Context) error { return w.requestScan(ctx, "") }

// Find scans for one unknown profile, and waits like Rescan. It scans only the directory of that name, and the whole volume only
// if that is not enough.
func (w *Watcher) Find(ctx context.Context, profile string) error {
	if _, err := homeOf(profile); err != nil {
		return nil //nolint:nilerr // no profile can have that name, so there is nothing to find
	}
	return w.requestScan(ctx, profile)
}

func (w *Watcher) requestScan(ctx context.Context, profile string) error {
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

// Interest requests [InputsChanged] events about a profile, until Disinterest. since is a hash from [Store.InputsHash]; inputs
// with this hash count as unchanged. "" means the hash at the next scan, so earlier changes are not reported. Interest doesn't
// block, and the supervisor's loop may call it.
func (w *Watcher) Interest(profile string, since Hash) {
	w.mu.Lock()
	w.interest[profile], w.interestNew[profile] = since, true
	w.mu.Unlock()
	pause.Wake(w.wake)
}

// Disinterest ends Interest; one more event may follow. It doesn't block.
func (w *Watcher) Disinterest(profile string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.interest, profile)
	delete(w.interestNew, profile)
}

// interested returns the hash of unchanged inputs. ok is false without Interest.
func (w *Watcher) interested(profile string) (Hash, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h, ok := w.interest[profile]
	return h, ok
}

func (w *Watcher) run(ctx context.Context) {
	defer close(w.done)
	defer func() { w.hints.close() }()
	_ = w.scanAll(ctx) // the error was reported as a warning
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		timer.Reset(time.Until(w.deadline()))
		select {
		case <-ctx.Done():
		case ev, ok := <-w.hints.changes():
			if ok {
				w.markChanged(ev)
			} else {
				w.endNotifications()
			}
		case _, ok := <-w.hints.errors():
			if ok {
				w.markAll()
			} else {
				w.endNotifications()
			}
		case <-w.wake:
			w.scanInputs(ctx)
		case r := <-w.asked:
			w.answerRequests(ctx, r)
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

// answerRequests scans once for all waiting requests, and answers them.
func (w *Watcher) answerRequests(ctx context.Context, first request) {
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

// scheduleScan sets the time of the next scan: after the pause, or MaxSettle after the first notification.
func (w *Watcher) scheduleScan(after time.Duration) {
	now := time.Now()
	if w.first.IsZero() {
		w.first = now
	}
	w.due = now.Add(after)
	if latest := w.first.Add(w.o.MaxSettle); latest.Before(w.due) {
		w.due = latest
	}
	if w.dirtyAll && w.due.Before(w.notBefore) {
		w.due = w.notBefore
	}
}

// clearPending forgets the earlier notifications, because the scan that begins now sees their changes.
func (w *Watcher) clearPending() {
	w.first = time.Time{}
	w.dirtyAll, w.soon = false, false
	clear(w.dirty)
	clear(w.fresh)
}

// markChanged records what to scan because of a notification. Homes also have busy files such as databases, so markChanged
// ignores notifications about files that hinit doesn't use.
func (w *Watcher) markChanged(ev fsnotify.Event) {
	self := w.hints.handleGone(ev)
	dir, file := filepath.Split(ev.Name)
	dir = filepath.Clean(dir)
	profilesPath := filepath.Join(w.store.root, profilesDir)
	if ev.Op == fsnotify.Chmod && self && !(dir == profilesPath && w.candidates[file]) { // for a candidate the owner matters, because it may have become the agent
		return
	}
	name := Default
	switch {
	case self && w.candidates[file] && dir == profilesPath && !ev.Has(fsnotify.Create): // the candidate itself was removed or renamed
		w.fresh[file] = true
		w.scheduleSoon()
		return
	case self && !ev.Has(fsnotify.Create), ev.Name == profilesPath: // a created directory may have been scanned, and may have a watch by now
		w.markAll()
		return
	case dir == profilesPath && strings.HasPrefix(file, "."):
		return // temporary directories of hinit and of other programs
	case dir == profilesPath:
		w.fresh[file] = true
		w.scheduleSoon()
		return
	case dir != w.store.root:
		name = filepath.Base(dir)
	}
	if w.matters(name, file) {
		w.dirty[name] = true
		switch {
		case file == w.store.marker, file == stateFile && ev.Has(fsnotify.Create) && w.isQuiet(name):
			w.scheduleSoon()
		case !w.soon: // otherwise an earlier scan handles this change too
			w.scheduleScan(w.o.Settle)
		}
	}
}

// isQuiet reports whether the last scan of a profile is older than Settle, so that the change belongs to no burst.
func (w *Watcher) isQuiet(name string) bool {
	k := w.known[name]
	return k != nil && time.Since(k.scannedAt) >= w.o.Settle
}

// endNotifications drops an inotify instance that has failed. The next scan makes a new one.
func (w *Watcher) endNotifications() {
	w.hints.close()
	w.hints = nil
	w.markAll()
}

func (w *Watcher) markAll() {
	w.dirtyAll = true
	w.scheduleSoon()
}

// scheduleSoon calls settle with the short pause WatchOptions.Appear.
func (w *Watcher) scheduleSoon() {
	w.soon = true
	w.scheduleScan(w.o.Appear)
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
