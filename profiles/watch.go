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

// WatchOptions configures [Store.Watch]. A zero duration selects the default.
type WatchOptions struct {
	// The watcher calls Notify for each event, one after the other, on its goroutine. Notify may block, which delays the next
	// scan. It must not call Rescan or Find: these wait for Notify to return, so the call would never end.
	Notify func(Event)
	// Known lists the profiles that the caller already knows, usually from the boot. The watcher doesn't report Appeared for
	// them.
	Known []Profile
	// Poll is the time between full scans while notifications are unavailable or incomplete (network and virtual file systems,
	// limits of inotify). Default 5 s.
	Poll time.Duration
	// IdlePoll is the time between full scans while notifications work. The scans are needed because the kernel may lose a
	// notification. Default 1 h. No scan reads unchanged files again.
	IdlePoll time.Duration
	// Settle is the time that the watcher waits for more notifications before it scans, so that a single scan handles a burst.
	// Default 100 ms.
	Settle time.Duration
	// SettleEarly is a wait that is shorter than Settle. It is used in place of Settle when a profile appears or disappears. It
	// is also used when a state file changes and its profile was not scanned during the last Settle. A client or the next
	// gateway may wait for such a change. Default 5 ms, at most Settle.
	SettleEarly time.Duration
	// MaxSettle limits the total wait while notifications keep coming. Default 1 s.
	MaxSettle time.Duration

	// openNotifications creates the inotify instance. Tests replace this function.
	openNotifications func(*watch.Set) error
}

// Watcher reports changes to the profiles of a volume.
//
// A notification from the kernel only starts a scan. The scan compares the files with the result of the last scan. So a lost,
// late or misleading notification only causes a delay or a needless scan, and periodic scans find changes without notifications.
//
// One goroutine does all scans, one disk operation at a time.
type Watcher struct {
	store *Store
	o     WatchOptions
	asked chan request
	wake  chan struct{} // capacity 1; wakes the goroutine after Interest was called
	done  chan struct{}

	mu          sync.Mutex // guards interest and interestNew; never held during disk operations
	interest    map[string]Hash
	interestNew map[string]bool // profiles whose inputs must be scanned because Interest was called

	// Only the watcher's goroutine uses the fields from here on.
	known      map[string]*scanned
	candidates map[string]bool   // directories in profiles/ without the marker, at most as many as the limit on profiles
	listWarned map[string]bool   // warnings of the last full scan, by message
	warned     map[string]string // the last error of each kind that warnOnce has reported, by its key
	notifications
	lastScan
	pending
}

// notifications is the state of the inotify watches. It also tells which directories they don't cover.
type notifications struct {
	inotify         dirWatches
	unmarkedWatches []string // candidates with a watch, the oldest first
	partial         bool     // some directories are not watched completely
	notifyErr       error    // the first error in the last full scan that prevented a watch
	remote          bool     // other machines can change the volume
	exhausted       bool     // the kernel allows no more watches; lacking is the first directory without one
	lacking         string
	lackingID       fsutil.ID
}

// lastScan describes the last full scan of the volume.
type lastScan struct {
	scannedAt   time.Time // when the last full scan began
	notBefore   time.Time // a notification must not start a full scan before this time
	dir         stamp     // metadata of profiles/ at the last scan
	dirComplete bool      // an unchanged dir proves that the names in profiles/ are unchanged
}

// pending says what the watcher must scan next because of notifications, and when.
type pending struct {
	changedHomes map[string]bool // names of the profiles whose homes must be scanned
	changedNames map[string]bool // changed names in profiles/
	dirtyAll     bool
	soon         bool      // an early scan is pending, see WatchOptions.SettleEarly
	first        time.Time // time of the first notification since the last scan; zero if none came
	due          time.Time // when to scan because of these notifications
	nextPoll     time.Time
}

// request is a waiting call of Rescan or Find.
type request struct {
	profile string // name of the profile to look for; "" for all profiles
	reply   chan error
}

// scanned is the watcher's record of a profile: the results of its last scan.
type scanned struct {
	profile       Profile
	scannedAt     time.Time // when the last scan of the profile began
	nextScan      time.Time // a notification does not cause another scan before this time
	state         State
	beat          time.Time // time of the last Beat event
	stateStamp    stamp     // stamp of the state file
	stateComplete bool      // an unchanged stateStamp proves that state is unchanged
	inputs        [3]stamp
	inputsSure    bool
}

// Watch starts a watcher and returns immediately. The first scan reports every profile that isn't in o.Known. The watcher ends
// when ctx ends.
func (s *Store) Watch(ctx context.Context, o WatchOptions) *Watcher {
	o.Poll = cmp.Or(o.Poll, 5*time.Second)
	o.IdlePoll = cmp.Or(o.IdlePoll, time.Hour)
	o.Settle = cmp.Or(o.Settle, 100*time.Millisecond)
	o.SettleEarly = cmp.Or(o.SettleEarly, min(5*time.Millisecond, o.Settle))
	o.MaxSettle = cmp.Or(o.MaxSettle, time.Second)
	if o.openNotifications == nil {
		o.openNotifications = (*watch.Set).Open
	}
	if o.Notify == nil {
		o.Notify = func(Event) {}
	}
	w := &Watcher{
		store:    s,
		o:        o,
		asked:    make(chan request, 64), // when 64 requests wait, more callers block
		wake:     make(chan struct{}, 1),
		done:     make(chan struct{}),
		interest: make(map[string]Hash), interestNew: make(map[string]bool),
		known:      make(map[string]*scanned),
		candidates: make(map[string]bool),
		warned:     make(map[string]string),
		pending:    pending{changedHomes: make(map[string]bool), changedNames: make(map[string]bool)},
	}
	for _, p := range o.Known {
		w.known[p.Name] = &scanned{profile: p}
	}
	guard.Go("watching the profiles", func() { w.run(ctx) })
	return w
}

// Rescan scans everything now; simultaneous callers share one scan. When Rescan returns nil, Notify has returned for every event
// of that scan. An error means that the volume can't be used. If ctx ends first, its error is returned and the scan continues.
// After the end of the watcher the error wraps [context.Canceled].
func (w *Watcher) Rescan(ctx context.Context) error { return w.requestScan(ctx, "") }

// Find scans for one profile that the watcher doesn't know yet. Like Rescan, it waits for the scan. It scans only the directory
// of that name, or the whole volume if that directory does not show what has changed.
func (w *Watcher) Find(ctx context.Context, profile string) error {
	if _, err := homeOf(profile); err != nil {
		return nil //nolint:nilerr // no profile can have that name, so there is nothing to find
	}
	return w.requestScan(ctx, profile)
}

func (w *Watcher) requestScan(ctx context.Context, profile string) error {
	asked, reply := w.asked, make(chan error, 1)
	for {
		select {
		case asked <- request{profile, reply}:
			asked = nil // nil blocks for ever, so the request is sent once
		case err := <-reply:
			return err
		case <-ctx.Done():
			return fmt.Errorf("cannot look at the profiles: %w", context.Cause(ctx))
		case <-w.done:
			return fmt.Errorf("cannot look at the profiles: the watcher has ended: %w", context.Canceled)
		}
	}
}

// Interest requests an [InputsChanged] event whenever the inputs of a profile change, until [Watcher.EndInterest] is called. The
// parameter since is a hash from [Store.InputsHash]: as long as the inputs have this hash, they count as unchanged. If the
// parameter since is "", the hash at the next scan takes its place, so earlier changes are not reported. Interest doesn't block,
// and the supervisor's loop may call it.
func (w *Watcher) Interest(profile string, since Hash) {
	w.mu.Lock()
	w.interest[profile], w.interestNew[profile] = since, true
	w.mu.Unlock()
	pause.Wake(w.wake)
}

// EndInterest ends the events that Interest has requested for a profile. One more event may follow. It doesn't block.
func (w *Watcher) EndInterest(profile string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.interest, profile)
	delete(w.interestNew, profile)
}

// interested returns the hash that counts as unchanged for a profile's inputs. The second result is false if Interest was not
// called.
func (w *Watcher) interested(profile string) (Hash, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h, ok := w.interest[profile]
	return h, ok
}

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
			} else { // the instance has failed, so the next scan makes another
				w.inotify.Close()
				w.markAll()
			}
		case <-w.inotify.Lost: //nolint:errcheck // whatever was lost, all is looked at again; an instance that fails closes both channels
			w.markAll()
		case <-w.wake:
			w.scanInputs(ctx)
		case r := <-w.asked:
			w.answerRequests(ctx, r)
		case <-time.After(time.Until(w.deadline())):
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

// answerRequests collects all waiting requests, scans for them together, and answers them.
func (w *Watcher) answerRequests(ctx context.Context, first request) {
	asked, all := []request{first}, first.profile == ""
	for len(w.asked) > 0 { // only this goroutine receives
		r := <-w.asked
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

func (w *Watcher) isDue(now time.Time) bool { return !w.first.IsZero() && !now.Before(w.due) }

func (w *Watcher) deadline() time.Time {
	if !w.first.IsZero() && (w.dirtyAll || w.due.Before(w.nextPoll)) {
		return w.due
	}
	return w.nextPoll
}

// scheduleScan schedules the scan for a notification that has just come. The parameter after is the delay. The scan begins at
// most MaxSettle after the first notification, but a full scan never before notBefore.
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

// clearPending forgets the notifications so far, because the scan that begins now will see their changes.
func (w *Watcher) clearPending() {
	w.first = time.Time{}
	w.dirtyAll, w.soon = false, false
	clear(w.changedHomes)
	clear(w.changedNames)
}

// markChanged records what must be scanned because of the notification ev. Homes also contain busy files such as databases,
// so markChanged ignores files that hinit doesn't use.
func (w *Watcher) markChanged(ev watch.Event) {
	self := w.inotify.IsDir(ev)
	dir, file := filepath.Split(ev.Name)
	dir = filepath.Clean(dir)
	profilesPath := filepath.Join(w.store.root, profilesDir)
	if ev.Op == watch.Chmod && self && !(dir == profilesPath && w.candidates[file]) { // a candidate may have become readable
		return
	}
	name := Default
	switch {
	case self && w.candidates[file] && dir == profilesPath && !ev.Has(watch.Create): // the candidate was removed or renamed
		w.changedNames[file] = true
		w.scheduleSoon()
		return
	case self && !ev.Has(watch.Create), ev.Name == profilesPath: // a created directory may already be scanned and watched
		w.markAll()
		return
	case dir == profilesPath && strings.HasPrefix(file, "."):
		return // a temporary directory of hinit or of another program
	case dir == profilesPath:
		w.changedNames[file] = true
		w.scheduleSoon()
		return
	case dir != w.store.root:
		name = filepath.Base(dir)
	}
	if w.isRelevantFile(name, file) {
		w.changedHomes[name] = true
		switch {
		case file == w.store.marker, file == stateFile && ev.Has(watch.Create) && w.isQuiet(name):
			w.scheduleSoon()
		case !w.soon: // if soon is set, the early scan also handles this change
			w.scheduleScan(w.o.Settle)
		}
	}
}

// isQuiet reports whether a profile was last scanned at least Settle ago, so the change is probably not part of a burst.
func (w *Watcher) isQuiet(name string) bool {
	k := w.known[name]
	return k != nil && time.Since(k.scannedAt) >= w.o.Settle
}

func (w *Watcher) markAll() {
	w.dirtyAll = true
	w.scheduleSoon()
}

// scheduleSoon schedules a scan after the short wait [WatchOptions].SettleEarly.
func (w *Watcher) scheduleSoon() {
	w.soon = true
	w.scheduleScan(w.o.SettleEarly)
}

func (w *Watcher) isRelevantFile(profile, file string) bool {
	switch file {
	case stateFile, w.store.marker:
		return true
	case configFile, envFile:
		_, ok := w.interested(profile)
		return ok
	}
	return false
}

// Event is a change that [Store.Watch] reports to WatchOptions.Notify. It is one of [Appeared], [Disappeared], [StateChanged],
// [Beat], [InputsChanged], [Warned].
type Event interface{ event() }

// Appeared reports a new profile: a directory that has the marker and a valid name.
type Appeared struct{ Profile Profile }

// Disappeared reports that the directory of a profile no longer exists, or was replaced by a symbolic link. The removal of
// the marker alone is not reported, because an editor may replace the marker file. A directory that is removed and created
// again between two scans is also not reported.
type Disappeared struct {
	Profile Profile
	// Changed is when the names in profiles/ last changed, by the clock of the volume. An agent can set it to any time.
	Changed time.Time
}

// StateChanged reports that gateway_state.json changed in a way that [State.Equal] detects. The first scan reports every file
// that exists. State is zero for a missing or unusable file.
type StateChanged struct {
	Profile Profile
	State   State
}

// InputsChanged reports that config.yaml, .env or the marker of a profile changed. The watcher reports this event only after a
// call of [Watcher.Interest] for the profile.
type InputsChanged struct {
	Profile Profile
	Hash    Hash
}

// Warned reports a warning that the previous scan of the volume did not find.
type Warned struct{ Warning Warning }

func (Appeared) event()      {}
func (Disappeared) event()   {}
func (StateChanged) event()  {}
func (InputsChanged) event() {}
func (Warned) event()        {}

// Beat reports that the gateway of a profile has written its state file, which shows that it is alive. Writes by hinit or by the
// agent's commands cause no Beat.
type Beat struct{ Profile Profile }

func (Beat) event() {}

// beatOf parses the value of updated_at in a state file: the time of the last write (contract, section 6). Only a gateway writes
// this time as text. A command writes a number, for which beatOf returns the zero time.
func beatOf(value json.RawMessage) time.Time {
	var text string
	if json.Unmarshal(value, &text) != nil {
		return time.Time{}
	}
	at, _ := isoTime(text)
	return at
}

// isoTime parses an ISO 8601 time, with or without fractions of a second. A time without a zone is taken as UTC.
func isoTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		at, err = time.Parse("2006-01-02T15:04:05", text)
	}
	return at, err
}
