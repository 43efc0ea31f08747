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

// WatchOptions are the settings of [Store.Watch]. A duration of 0 means the default.
type WatchOptions struct {
	// Notify must be set. The watcher's goroutine calls it for each event, one at a time. It may block, which delays the next
	// scan. It must not call Rescan or Find, which wait until Notify returns.
	Notify func(Event)
	// Known lists the profiles that the caller already knows from the boot. The watcher doesn't report them as Appeared.
	Known []Profile
	// Mounts receives after file systems were mounted or unmounted, see [watch.Mounts]. A nil channel never receives.
	Mounts <-chan struct{}
	// Poll is the time between full scans if inotify can't report all changes: on network and virtual file systems, and at the
	// limits of inotify. Default 5 s.
	Poll time.Duration
	// IdlePoll is the time between full scans if inotify can report all changes. These scans find changes whose notification was
	// lost. They don't read unchanged files again. Default 1 h.
	IdlePoll time.Duration
	// SettleTime is how long the watcher waits after a notification before it scans. So a single scan handles a burst of
	// notifications. Default 100 ms.
	SettleTime time.Duration
	// EarlySettleTime replaces SettleTime for changes for which a client or the next gateway may be waiting. Such a change is a
	// profile that appears or disappears, or a state file whose profile was not scanned during the last SettleTime. Default 5 ms,
	// at most SettleTime.
	EarlySettleTime time.Duration
	// MaxSettleTime is the longest wait while notifications keep coming. Default 1 s.
	MaxSettleTime time.Duration

	// openNotifications creates the inotify instance. Tests replace it.
	openNotifications func(*watch.Set) error
}

// Watcher reports changes to the profiles of a volume.
//
// A notification is only a reason to scan: the scan compares the files with the last scan. So a lost, late or false notification
// costs only a delay or a needless scan. Periodic scans find changes that cause no notification.
//
// One goroutine does all scans, one disk operation at a time.
type Watcher struct {
	store    *Store
	options  WatchOptions
	requests chan request
	wake     chan struct{} // Wakes the goroutine after a call of WatchInputs; capacity 1.
	done     chan struct{}

	mu              sync.Mutex // Guards the fields in this group; never held during disk operations.
	inputHashes     map[string]InputHash
	newInputWatches map[string]bool // Profiles for which WatchInputs was called since the last scan of their inputs.
	currentWarnings currentWarnings

	// Only the watcher's goroutine uses the fields from here on.
	known      map[string]*scannedProfile
	candidates map[string]bool // Directories in profiles/ without the marker file; no more than the limit on profiles.
	notifications
	lastScan
	pendingScans
}

// currentWarnings holds the warnings that are in effect. The mutex of the watcher guards it.
type currentWarnings struct {
	listed []Warning          // Warnings of the last full scan.
	byKey  map[string]Warning // Warnings of warnOnce that are in effect, by kind of problem.
}

// notifications is the state of the inotify watches. It also says which directories have no watch.
type notifications struct {
	inotify           dirWatches
	unmarkedWatches   []string // Candidates that have a watch, oldest first.
	someUnwatched     bool     // Whether some directories are not watched, or only in part.
	notifyErr         error    // First error of a watch in the last full scan.
	changedByOthers   bool     // Whether other machines can change the volume.
	watchLimitReached bool     // Whether the kernel allows no more watches; firstUnwatched is then the first directory without one.
	firstUnwatched    string
	firstUnwatchedID  fsutil.ID
}

// lastScan describes the last full scan.
type lastScan struct {
	scannedAt  time.Time // Start of the scan.
	notBefore  time.Time // Earliest time at which a notification may start the next full scan.
	dir        stamp     // Metadata of profiles/ at that time, which changes if a name in it does; zero if the scan may have missed names.
	someSilent bool      // Whether some directories did not answer in time.
}

// pendingScans says what the watcher must scan because of notifications, and when.
type pendingScans struct {
	changedHomes map[string]bool // Profiles whose homes must be scanned.
	changedNames map[string]bool // Names in profiles/ that have changed.
	scanAllNext  bool
	earlyScan    bool      // Whether an early scan is due, see WatchOptions.EarlySettleTime.
	firstNotice  time.Time // Time of the first notification since the last scan; zero if none has come.
	scanAt       time.Time // Time of the scan that notifications have scheduled.
	nextPoll     time.Time
}

// request is a call of Rescan or Find that waits for a scan.
type request struct {
	profile string // Profile that Find looks for; "" for Rescan.
	reply   chan error
}

// scannedProfile is the result of the last scan of one profile.
type scannedProfile struct {
	profile       Profile
	scannedAt     time.Time // Start of the last scan.
	nextScan      time.Time // Earliest time at which a notification may scan the profile again.
	state         State
	lastHeartbeat time.Time // Time of the last Heartbeat event.
	stateStamp    stamp     // Stamp of the state file.
	stateComplete bool      // Whether state belongs to stateStamp.
	inputs        [3]stamp
	inputsCurrent bool
}

// Watch starts a watcher and returns at once. The first scan reports every profile that isn't in o.Known. The watcher ends when
// ctx ends.
func (s *Store) Watch(ctx context.Context, o WatchOptions) *Watcher {
	o.Poll = cmp.Or(o.Poll, 5*time.Second)
	o.IdlePoll = cmp.Or(o.IdlePoll, time.Hour)
	o.SettleTime = cmp.Or(o.SettleTime, 100*time.Millisecond)
	o.EarlySettleTime = cmp.Or(o.EarlySettleTime, min(5*time.Millisecond, o.SettleTime))
	o.MaxSettleTime = cmp.Or(o.MaxSettleTime, time.Second)
	if o.openNotifications == nil {
		o.openNotifications = (*watch.Set).Open
	}
	w := &Watcher{
		store:       s,
		options:     o,
		requests:    make(chan request, 64), // If 64 requests are waiting, further callers block.
		wake:        make(chan struct{}, 1),
		done:        make(chan struct{}),
		inputHashes: make(map[string]InputHash), newInputWatches: make(map[string]bool),
		known:           make(map[string]*scannedProfile),
		candidates:      make(map[string]bool),
		currentWarnings: currentWarnings{byKey: make(map[string]Warning)},
		pendingScans:    pendingScans{changedHomes: make(map[string]bool), changedNames: make(map[string]bool)},
	}
	for _, p := range o.Known {
		w.known[p.Name] = &scannedProfile{profile: p}
	}
	guard.Go("watching the profiles", func() { w.run(ctx) })
	return w
}

// Rescan scans the whole volume now. It waits until Notify has returned for every event of the scan. Calls at the same time share
// one scan. An error means that the volume can't be used. If ctx ends first, Rescan returns the error of ctx, and the scan
// continues. After the end of the watcher, the error wraps [context.Canceled].
func (w *Watcher) Rescan(ctx context.Context) error { return w.requestScan(ctx, "") }

// Find is a Rescan for one profile that the watcher doesn't know yet, for example because a command has just created it. If
// possible, it scans only the directory with that name.
func (w *Watcher) Find(ctx context.Context, profile string) error {
	if _, err := homeOf(profile); err != nil {
		return nil //nolint:nilerr // no profile can have this name
	}
	return w.requestScan(ctx, profile)
}

// requestScan asks the watcher's goroutine to scan one profile, or all if profile is "". It waits until the scan ends.
func (w *Watcher) requestScan(ctx context.Context, profile string) error {
	asked, reply := w.requests, make(chan error, 1)
	for {
		select {
		case asked <- request{profile, reply}:
			asked = nil // A nil channel is never ready, so the request is sent only once.
		case err := <-reply:
			return err
		case <-ctx.Done():
			return fmt.Errorf("cannot look at the profiles: %w", context.Cause(ctx))
		case <-w.done:
			return fmt.Errorf("cannot look at the profiles: the watcher has ended: %w", context.Canceled)
		}
	}
}

// WatchInputs asks for an [InputsChanged] event when the inputs (config.yaml, .env, marker) of a profile no longer have the hash
// since, from [Store.InputsHash]. If since is "", the hash at the next scan is used instead. [Watcher.StopWatchingInputs] revokes
// the call. WatchInputs doesn't block, so the supervisor's loop may call it.
func (w *Watcher) WatchInputs(profile string, since InputHash) {
	w.mu.Lock()
	w.inputHashes[profile], w.newInputWatches[profile] = since, true
	w.mu.Unlock()
	pause.Wake(w.wake)
}

// StopWatchingInputs revokes a call of WatchInputs. One more event may follow. It doesn't block.
func (w *Watcher) StopWatchingInputs(profile string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.inputHashes, profile)
	delete(w.newInputWatches, profile)
}

// watchedInputs returns the hash of the last call of WatchInputs for a profile. The second result is false without such a call.
func (w *Watcher) watchedInputs(profile string) (InputHash, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h, ok := w.inputHashes[profile]
	return h, ok
}

// run is the goroutine of the watcher.
func (w *Watcher) run(ctx context.Context) {
	defer close(w.done)
	defer w.inotify.Close()
	_ = w.scanAll(ctx) // Ignore the error: warnOnce has already reported it.
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-w.options.Mounts: // The volume may have been unmounted, or mounted again.
			w.scheduleScanAll()
		case ev, ok := <-w.inotify.Events:
			if ok {
				w.markChanged(ev)
			} else { // The inotify instance has failed; the next scan makes a new one.
				w.inotify.Close()
				w.scheduleScanAll()
			}
		case <-w.inotify.Lost: //nolint:errcheck // the next full scan finds the changes of lost events; an instance that fails closes both channels
			w.scheduleScanAll()
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
			w.pollChanges(ctx)
		case w.isDue(now):
			w.scanDirty(ctx)
		}
	}
}

// answerRequests does one scan for all waiting requests, and answers them.
func (w *Watcher) answerRequests(ctx context.Context, first request) {
	asked, all := []request{first}, first.profile == ""
	for len(w.requests) > 0 { // Only this goroutine receives requests.
		r := <-w.requests
		asked, all = append(asked, r), all || r.profile == ""
	}
	var err error
	if all {
		err = w.scanAll(ctx)
	}
	for _, r := range asked {
		if !all {
			err = w.scanForFind(ctx, r.profile)
		}
		r.reply <- err
	}
}

func (w *Watcher) isDue(now time.Time) bool { return !w.firstNotice.IsZero() && !now.Before(w.scanAt) }

// deadline returns when the watcher must scan next, because of notifications or for a poll.
func (w *Watcher) deadline() time.Time {
	if !w.firstNotice.IsZero() && (w.scanAllNext || w.scanAt.Before(w.nextPoll)) {
		return w.scanAt
	}
	return w.nextPoll
}

// scheduleScan schedules a scan because of a notification, when the time after has passed. The scan comes at most MaxSettleTime
// after the first notification, and a full scan never before notBefore.
func (w *Watcher) scheduleScan(after time.Duration) {
	now := time.Now()
	if w.firstNotice.IsZero() {
		w.firstNotice = now
	}
	w.scanAt = now.Add(after)
	if latest := w.firstNotice.Add(w.options.MaxSettleTime); latest.Before(w.scanAt) {
		w.scanAt = latest
	}
	if w.scanAllNext && w.scanAt.Before(w.notBefore) {
		w.scanAt = w.notBefore
	}
}

// clearPending forgets all notifications so far. It is called at the beginning of a scan that will see their changes.
func (w *Watcher) clearPending() {
	w.firstNotice = time.Time{}
	w.scanAllNext, w.earlyScan = false, false
	clear(w.changedHomes)
	clear(w.changedNames)
}

// markChanged records what must be scanned because of the notification ev. It ignores files that hinit doesn't use, because homes
// contain busy files such as databases.
func (w *Watcher) markChanged(ev watch.Event) {
	self := w.inotify.IsDir(ev)
	dir, file := filepath.Split(ev.Name)
	dir = filepath.Clean(dir)
	profilesPath := filepath.Join(w.store.root, profilesDir)
	if ev.Op == watch.Chmod && self && !(dir == profilesPath && (w.candidates[file] || w.isWarned(file))) { // This directory may have become readable.
		return
	}
	name := Default
	switch {
	case dir == profilesPath && strings.HasPrefix(file, "."):
		return // A temporary directory of hinit or of another program.
	case dir == profilesPath && (!self || ev.Has(watch.Create) || w.candidates[file]): // The removal of a candidate is also a change.
		w.changedNames[file] = true
		w.scheduleSoon()
		return
	case self && !ev.Has(watch.Create), ev.Name == profilesPath: // A new directory may already be scanned and watched.
		w.scheduleScanAll()
		return
	case dir != w.store.root:
		name = filepath.Base(dir)
	}
	if w.isRelevantFile(name, file) {
		w.changedHomes[name] = true
		switch {
		case file == w.store.marker, file == StateFile && ev.Has(watch.Create) && w.isQuiet(name):
			w.scheduleSoon()
		case !w.earlyScan: // An early scan that is already scheduled also handles this change.
			w.scheduleScan(w.options.SettleTime)
		}
	}
}

// isQuiet reports whether the last scan of a profile is at least SettleTime ago. A change is then probably not part of a burst.
func (w *Watcher) isQuiet(name string) bool {
	k := w.known[name]
	return k != nil && time.Since(k.scannedAt) >= w.options.SettleTime
}

func (w *Watcher) scheduleScanAll() {
	w.scanAllNext = true
	w.scheduleSoon()
}

// scheduleSoon schedules a scan after [WatchOptions].EarlySettleTime.
func (w *Watcher) scheduleSoon() {
	w.earlyScan = true
	w.scheduleScan(w.options.EarlySettleTime)
}

// isRelevantFile reports whether hinit uses a file with this name in a home, so that its change matters.
func (w *Watcher) isRelevantFile(profile, file string) bool {
	switch file {
	case StateFile, w.store.marker:
		return true
	case configFile, envFile:
		_, ok := w.watchedInputs(profile)
		return ok
	}
	return false
}

// Event is a report of [Store.Watch] to WatchOptions.Notify: [Appeared], [Disappeared],
// [StateChanged], [Heartbeat], [InputsChanged] or [Warned].
type Event interface{ isEvent() }

// Appeared reports a new profile: a directory that has the marker and a valid name.
type Appeared struct{ Profile Profile }

// Disappeared reports that the directory of a profile is gone, or that a symbolic link has replaced
// it. The removal of the marker alone isn't reported, because an editor may be replacing the
// marker. A directory that is removed and recreated between two scans isn't reported either.
type Disappeared struct {
	Profile Profile
	// DirChanged is when the names in profiles/ last changed, by the clock of the volume. The agent can set this time.
	DirChanged time.Time
}

// StateChanged reports that the content of gateway_state.json has changed, in the sense of [State.Equal]. The first scan reports
// every such file. For a missing or unusable file, State is zero.
type StateChanged struct {
	Profile Profile
	State   State
}

// InputsChanged reports that config.yaml, .env or the marker of a profile has changed since the call of [Watcher.WatchInputs].
type InputsChanged struct {
	Profile Profile
	Hash    InputHash
}

// Warned reports a warning that the scan before did not have. An agent can make warnings appear and disappear at any rate.
type Warned struct{ Warning Warning }

func (Appeared) isEvent()      {}
func (Disappeared) isEvent()   {}
func (StateChanged) isEvent()  {}
func (InputsChanged) isEvent() {}
func (Warned) isEvent()        {}

// Heartbeat reports that the gateway of a profile has written its state file, so that it is alive. Other writers cause no
// Heartbeat.
type Heartbeat struct{ Profile Profile }

func (Heartbeat) isEvent() {}

// heartbeatOf returns the time at which a gateway wrote its state file. value is the key updated_at in this file (contract,
// section 6). If it is a number, a command and not the gateway has written the file; then the result is zero.
func heartbeatOf(value json.RawMessage) time.Time {
	var text string
	if json.Unmarshal(value, &text) != nil {
		return time.Time{}
	}
	at, _ := parseISOTime(text)
	return at
}

// parseISOTime parses an ISO 8601 time, with or without fractions of a second. A time without a zone is in UTC.
func parseISOTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		at, err = time.Parse("2006-01-02T15:04:05", text)
	}
	return at, err
}
