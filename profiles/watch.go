package profiles

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/watch"
)

// WatchOptions configures [Store.Watch]. A duration of 0 means the default.
type WatchOptions struct {
	// Notify must be set. It is called for each event, one at a time, by the watcher's goroutine. It may block, which delays the
	// next scan. It must not call Rescan or Find, because these methods wait until Notify returns.
	Notify func(Event)
	// Known lists the profiles that the caller knows from the boot. No Appeared is reported for them.
	Known []Profile
	// Poll is the time between full scans while inotify sees too little: on network and virtual file systems, and at the limits of
	// inotify. Default 5 s.
	Poll time.Duration
	// IdlePoll is the time between full scans while inotify works. They find what a lost notification would have shown, and don't
	// read unchanged files again. Default 1 h.
	IdlePoll time.Duration
	// Settle is how long the watcher waits after a notification before it scans, so that a single scan handles a burst of
	// notifications. Default 100 ms.
	Settle time.Duration
	// SettleEarly takes the place of Settle for changes that a client or the next gateway may wait for. Such a change is a profile
	// that appears or disappears, or a change of a state file whose profile was not scanned during the last Settle. Default 5 ms,
	// at most Settle.
	SettleEarly time.Duration
	// MaxSettle limits the wait while notifications keep coming. Default 1 s.
	MaxSettle time.Duration

	// openNotifications creates the inotify instance. Tests replace it.
	openNotifications func(*watch.Set) error
}

// Watcher reports changes to the profiles of a volume.
//
// It never trusts a notification: a notification only starts a scan, which compares the files with the last scan. So a lost, late
// or false notification costs only a delay or a needless scan. Periodic scans find changes without notifications.
//
// One goroutine does all scans, one disk operation at a time.
type Watcher struct {
	store    *Store
	options  WatchOptions
	requests chan request
	wake     chan struct{} // wakes the goroutine after Interest was called; capacity 1
	done     chan struct{}

	mu          sync.Mutex // guards the fields in this group; never held during disk operations
	interest    map[string]Hash
	interestNew map[string]bool // profiles for which Interest was called since their inputs were last scanned
	warned      warnings

	// Only the watcher's goroutine uses the fields from here on.
	known      map[string]*scanned
	candidates map[string]bool // directories in profiles/ without the marker; at most as many as the limit on profiles
	notifications
	lastScan
	pending
}

// warnings holds the warnings whose cause still exists. The mutex of the watcher guards it.
type warnings struct {
	listed []Warning          // warnings of the last full scan
	byKey  map[string]Warning // last warning of warnOnce by kind of problem, while the warning holds
}

// notifications is the state of the inotify watches, and of directories without a watch.
type notifications struct {
	inotify          dirWatches
	unmarkedWatches  []string // candidates with a watch, oldest first
	partial          bool     // some directories are not watched, or only in part
	notifyErr        error    // why a watch failed in the last full scan; the first such error
	remote           bool     // the volume can be changed by other machines
	exhausted        bool     // the kernel allows no more watches; firstUnwatched is the first directory without one
	firstUnwatched   string
	firstUnwatchedID fsutil.ID
}

// lastScan is what the watcher remembers of the last full scan.
type lastScan struct {
	scannedAt time.Time // start of the scan
	notBefore time.Time // earliest time at which a notification may start the next full scan
	dir       stamp     // metadata of profiles/ at that time, which changes if the names in it do; zero if the scan may have missed names
	silent    bool      // some directories did not answer in time
}

// pending is what notifications have asked the watcher to scan, and when.
type pending struct {
	changedHomes map[string]bool // profiles whose homes must be scanned
	changedNames map[string]bool // names in profiles/ that have changed
	scanAllNext  bool
	earlyScan    bool      // an early scan is due, see WatchOptions.SettleEarly
	firstNotice  time.Time // time of the first notification since the last scan; zero if there was none
	scanAt       time.Time // when to scan because of notifications
	nextPoll     time.Time
}

// request is a call of Rescan or Find that waits for a scan.
type request struct {
	profile string // profile that Find looks for; "" for Rescan
	reply   chan error
}

// scanned is the watcher's record of the last scan of one profile.
type scanned struct {
	profile       Profile
	scannedAt     time.Time // start of the last scan
	nextScan      time.Time // notifications cause no other scan of the profile before
	state         State
	lastHeartbeat time.Time // time of the last Beat event
	stateStamp    stamp     // stamp of the state file
	stateComplete bool      // if stateStamp is still the same, state is, too
	inputs        [3]stamp
	inputsSure    bool
}

// Watch starts a watcher and returns at once. The first scan reports every profile that isn't in o.Known. The watcher ends when ctx
// ends.
func (s *Store) Watch(ctx context.Context, o WatchOptions) *Watcher {
	o.Poll = cmp.Or(o.Poll, 5*time.Second)
	o.IdlePoll = cmp.Or(o.IdlePoll, time.Hour)
	o.Settle = cmp.Or(o.Settle, 100*time.Millisecond)
	o.SettleEarly = cmp.Or(o.SettleEarly, min(5*time.Millisecond, o.Settle))
	o.MaxSettle = cmp.Or(o.MaxSettle, time.Second)
	if o.openNotifications == nil {
		o.openNotifications = (*watch.Set).Open
	}
	w := &Watcher{
		store:    s,
		options:  o,
		requests: make(chan request, 64), // while 64 requests wait, other callers block
		wake:     make(chan struct{}, 1),
		done:     make(chan struct{}),
		interest: make(map[string]Hash), interestNew: make(map[string]bool),
		known:      make(map[string]*scanned),
		candidates: make(map[string]bool),
		warned:     warnings{byKey: make(map[string]Warning)},
		pending:    pending{changedHomes: make(map[string]bool), changedNames: make(map[string]bool)},
	}
	for _, p := range o.Known {
		w.known[p.Name] = &scanned{profile: p}
	}
	guard.Go("watching the profiles", func() { w.run(ctx) })
	return w
}

// Rescan scans the whole volume now and waits until Notify has returned for every event of the scan. Simultaneous calls share a
// scan. An error means that the volume can't be used. If ctx ends first, its error is returned and the scan goes on. After the end
// of the watcher the error wraps [context.Canceled].
func (w *Watcher) Rescan(ctx context.Context) error { return w.requestScan(ctx, "") }

// Find is a Rescan for a profile that the watcher doesn't know yet, for example one that a command has just created. If possible it
// scans only the directory of that name.
func (w *Watcher) Find(ctx context.Context, profile string) error {
	if _, err := homeOf(profile); err != nil {
		return nil //nolint:nilerr // no profile can have that name, so there is nothing to find
	}
	return w.requestScan(ctx, profile)
}

// requestScan asks the watcher's goroutine to scan one profile, or all profiles if profile is "", and waits for the end of the
// scan.
func (w *Watcher) requestScan(ctx context.Context, profile string) error {
	asked, reply := w.requests, make(chan error, 1)
	for {
		select {
		case asked <- request{profile, reply}:
			asked = nil // a nil channel is never ready, so the request is sent once
		case err := <-reply:
			return err
		case <-ctx.Done():
			return fmt.Errorf("cannot look at the profiles: %w", context.Cause(ctx))
		case <-w.done:
			return fmt.Errorf("cannot look at the profiles: the watcher has ended: %w", context.Canceled)
		}
	}
}

// Interest asks for an [InputsChanged] event when the inputs (config.yaml, .env, marker) of a profile no longer have the hash
// since, from [Store.InputsHash]. If since is "", the hash at the next scan takes its place. [Watcher.EndInterest] ends it.
// Interest doesn't block, so the supervisor's loop may call it.
func (w *Watcher) Interest(profile string, since Hash) {
	w.mu.Lock()
	w.interest[profile], w.interestNew[profile] = since, true
	w.mu.Unlock()
	pause.Wake(w.wake)
}

// EndInterest ends what Interest has begun. One more event may follow. It doesn't block.
func (w *Watcher) EndInterest(profile string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.interest, profile)
	delete(w.interestNew, profile)
}

// interested returns the hash that Interest was called with for a profile, or false without Interest.
func (w *Watcher) interested(profile string) (Hash, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h, ok := w.interest[profile]
	return h, ok
}

// run is the goroutine of the watcher.
func (w *Watcher) run(ctx context.Context) {
	defer close(w.done)
	defer w.inotify.Close()
	_ = w.scanAll(ctx) // the error was reported as a warning
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case ev, ok := <-w.inotify.Events:
			if ok {
				w.markChanged(ev)
			} else { // the inotify instance has failed; the next scan makes another
				w.inotify.Close()
				w.markAll()
			}
		case <-w.inotify.Lost: //nolint:errcheck // the next full scan finds what the lost events were about; an instance that fails closes both channels
			w.markAll()
		case <-w.wake:
			w.scanInputs(ctx)
		case r := <-w.requests:
			w.answerRequests(ctx, r)
		case <-time.After(time.Until(w.deadline())):
		}
		switch now := time.Now(); {
		case ctx.Err() != nil:
		case w.isDue(now) && w.scanAllNext:
			_ = w.scanAll(ctx)
		case !now.Before(w.nextPoll) && !w.scanAllNext:
			w.poll(ctx)
		case w.isDue(now):
			w.scanDirty(ctx)
		}
	}
}

// answerRequests does one scan for all waiting requests and answers them.
func (w *Watcher) answerRequests(ctx context.Context, first request) {
	asked, all := []request{first}, first.profile == ""
	for len(w.requests) > 0 { // only this goroutine receives requests
		r := <-w.requests
		asked, all = append(asked, r), all || r.profile == ""
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

func (w *Watcher) isDue(now time.Time) bool { return !w.firstNotice.IsZero() && !now.Before(w.scanAt) }

// deadline returns when the watcher must scan next, for a notification or a poll.
func (w *Watcher) deadline() time.Time {
	if !w.firstNotice.IsZero() && (w.scanAllNext || w.scanAt.Before(w.nextPoll)) {
		return w.scanAt
	}
	return w.nextPoll
}

// scheduleScan schedules a scan because of a notification: in the time after, at most MaxSettle after the first notification, and a
// full scan never before notBefore.
func (w *Watcher) scheduleScan(after time.Duration) {
	now := time.Now()
	if w.firstNotice.IsZero() {
		w.firstNotice = now
	}
	w.scanAt = now.Add(after)
	if latest := w.firstNotice.Add(w.options.MaxSettle); latest.Before(w.scanAt) {
		w.scanAt = latest
	}
	if w.scanAllNext && w.scanAt.Before(w.notBefore) {
		w.scanAt = w.notBefore
	}
}

// clearPending forgets the notifications so far, at the beginning of a scan that will see their changes.
func (w *Watcher) clearPending() {
	w.firstNotice = time.Time{}
	w.scanAllNext, w.earlyScan = false, false
	clear(w.changedHomes)
	clear(w.changedNames)
}

// markChanged records what must be scanned because of the notification ev. Homes contain busy files such as databases, so it
// ignores files that hinit doesn't use.
func (w *Watcher) markChanged(ev watch.Event) {
	self := w.inotify.IsDir(ev)
	dir, file := filepath.Split(ev.Name)
	dir = filepath.Clean(dir)
	profilesPath := filepath.Join(w.store.root, profilesDir)
	if ev.Op == watch.Chmod && self && !(dir == profilesPath && (w.candidates[file] || w.isWarned(file))) { // the directory may have become readable
		return
	}
	name := Default
	switch {
	case dir == profilesPath && strings.HasPrefix(file, "."):
		return // a temporary directory of hinit or of another program
	case dir == profilesPath && (!self || ev.Has(watch.Create) || w.candidates[file]): // also if a candidate was removed or renamed
		w.changedNames[file] = true
		w.scheduleSoon()
		return
	case self && !ev.Has(watch.Create), ev.Name == profilesPath: // a directory that was created may already be scanned and watched
		w.markAll()
		return
	case dir != w.store.root:
		name = filepath.Base(dir)
	}
	if w.isRelevantFile(name, file) {
		w.changedHomes[name] = true
		switch {
		case file == w.store.marker, file == StateFile && ev.Has(watch.Create) && w.isQuiet(name):
			w.scheduleSoon()
		case !w.earlyScan: // a scheduled early scan also handles this change
			w.scheduleScan(w.options.Settle)
		}
	}
}

// isQuiet reports whether a profile was not scanned during the last Settle. Then its change is probably no part of a burst.
func (w *Watcher) isQuiet(name string) bool {
	k := w.known[name]
	return k != nil && time.Since(k.scannedAt) >= w.options.Settle
}

func (w *Watcher) markAll() {
	w.scanAllNext = true
	w.scheduleSoon()
}

// scheduleSoon schedules a scan after [WatchOptions].SettleEarly.
func (w *Watcher) scheduleSoon() {
	w.earlyScan = true
	w.scheduleScan(w.options.SettleEarly)
}

// isRelevantFile reports whether a change of this file in a home can matter to hinit.
func (w *Watcher) isRelevantFile(profile, file string) bool {
	switch file {
	case StateFile, w.store.marker:
		return true
	case configFile, envFile:
		_, ok := w.interested(profile)
		return ok
	}
	return false
}

// Event is what [Store.Watch] reports to WatchOptions.Notify: [Appeared], [Disappeared], [StateChanged], [Heartbeat],
// [InputsChanged] or [Warned].
type Event interface{ isEvent() }

// Appeared reports a new profile: a directory with the marker and a valid name.
type Appeared struct{ Profile Profile }

// Disappeared reports that the directory of a profile is gone, or was replaced by a symbolic link. The removal of the marker alone
// isn't reported, because an editor may be replacing the marker. A directory that is removed and made again between two scans isn't
// reported either.
type Disappeared struct {
	Profile Profile
	// DirChanged is when the names in profiles/ last changed, by the clock of the volume. The agent can set it to any time.
	DirChanged time.Time
}

// StateChanged reports that the content of gateway_state.json has changed, as [State.Equal] defines it. The first scan reports
// every such file. For a missing or unusable file, State is zero.
type StateChanged struct {
	Profile Profile
	State   State
}

// InputsChanged reports that config.yaml, .env or the marker of a profile has changed since the call of [Watcher.Interest].
type InputsChanged struct {
	Profile Profile
	Hash    Hash
}

// Warned reports a warning that the scan before did not have. An agent can make warnings come and go as often as it likes.
type Warned struct{ Warning Warning }

func (Appeared) isEvent()      {}
func (Disappeared) isEvent()   {}
func (StateChanged) isEvent()  {}
func (InputsChanged) isEvent() {}
func (Warned) isEvent()        {}

// Heartbeat reports that the gateway of a profile has written its state file, so it is alive. Other writers cause no Beat.
type Heartbeat struct{ Profile Profile }

func (Heartbeat) isEvent() {}

// heartbeatOf returns the time at which a gateway wrote its state file. The parameter is the value of updated_at in that file
// (contract, section 6). If that is a number, a command wrote the file and no gateway did; then the result is zero.
func heartbeatOf(value json.RawMessage) time.Time {
	var text string
	if json.Unmarshal(value, &text) != nil {
		return time.Time{}
	}
	at, _ := isoTime(text)
	return at
}

// isoTime parses an ISO 8601 time, with or without fractions of a second. Without a zone, it is UTC.
func isoTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		at, err = time.Parse("2006-01-02T15:04:05", text)
	}
	return at, err
}
