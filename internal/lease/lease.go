package lease

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// Where there is no lock, only time tells that a holder has died. A holder whose last renewal began at t has ended everything before
// t+expireAfter. Nobody else takes the lease before that: a renewal can be seen only after it began, and who waits counts from there.
const (
	renewEvery  = 2 * time.Second
	lookEvery   = 500 * time.Millisecond // of an init that waits
	giveUpAfter = 6 * time.Second        // without a renewal the holder gives up
	retakeTime  = 500 * time.Millisecond // in which it may try to take the lease anew before it does
	answerTime  = 2 * time.Second        // without an answer the volume counts as not answering
	expireAfter = 8 * time.Second        // without a change the lease may be taken

	// An init that claims an epoch renews it within claimTime, or does not have it. So an epoch that was claimed and never renewed may be
	// taken after unrenewedAfter.
	claimTime      = 3 * time.Second
	unrenewedAfter = 4 * time.Second
)

// On a local file system a holder does not give up because of the time. It ends everything when it sees a higher epoch, and may start
// nothing when it has not looked for noticeTime. So nobody serves before noticeTime after taking from a holder that may live.
const (
	checkEvery  = time.Second // of the holder
	noticeTime  = 3 * time.Second
	longestGap  = 2 * time.Second // between two looks; after a longer one, the process or the volume stood still
	promptWrite = time.Second     // what a write takes at most on a volume that is well
)

// keepEpochs is how many old ones are kept, for those who have looked long ago.
const keepEpochs = 16

// ErrElsewhere is wrapped by every error that says that this init does not have the lease.
var ErrElsewhere = errors.New("this hinit does not have the lease")

// HeldError says that another init has the lease, and lives.
type HeldError struct {
	Home   string
	Holder Holder
}

func (e *HeldError) Error() string {
	since := ""
	if !e.Holder.Since.IsZero() {
		since = " since " + e.Holder.Since.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("the profiles in %q are served by another hinit, %s%s", e.Home, e.Holder, since)
}

// Unwrap implements errors.Unwrap.
func (e *HeldError) Unwrap() error { return ErrElsewhere }

// ErrSlow is wrapped by what [Lease.Acquire] returns when the volume does not answer.
var ErrSlow = blocking.ErrSlow

// State is what an init has of the lease.
type State string

// The states.
const (
	None      State = "none"      // nobody has asked for it, or it can't be had here; Detail says why
	Waiting   State = "waiting"   // it is not known yet whether another holder lives, or the volume does not answer; Detail says which
	Held      State = "held"      //
	Elsewhere State = "elsewhere" // Holder has it
)

// Status is a State with what belongs to it.
type Status struct {
	State     State
	Since     time.Time
	Epoch     uint64
	Heartbeat bool   // only the heartbeat tells others that this init has died: it has no lock
	Holder    Holder // this init when Held, else the other one as far as known
	Detail    string // for people
}

// Lease is that of one volume, as one init sees it.
type Lease struct {
	home string
	self Holder
	vol  volume
	env  env
	say  func(string)

	// Of who is in Acquire, then of the goroutine that keeps the lease.
	inflight chan func() // a call that was begun; nil for none
	watch    watch
	complain string // last complaint that was said

	mu      sync.Mutex
	status  Status
	lock    io.Closer     // of the volume; nil for none. It is kept until what the lease was for has ended
	renewed time.Duration // when the last renewal began
	local   bool          // the lease is held on a local file system; only then the next ones mean something
	looked  time.Duration // when the last look began that saw no higher epoch
	ticked  time.Duration // when the last look was due
	paused  bool          // the process stood still since the last such look
	called  time.Duration // when a sign of somebody who waits was last seen
	calls   []byte        // that sign
	epoch   uint64        // of the last lease that was held
	beats   uint64
	lost    chan struct{} // closed when the lease is no longer held
	release chan chan struct{}
}

// env is the world beside the volume.
type env struct {
	now     func() time.Duration // of a clock that goes on while the machine sleeps
	after   func(time.Duration) <-chan time.Time
	run     func(func()) // in a goroutine of its own
	startOf func(pid int) string
}

// New returns a lease that is not held. It touches nothing. say is told what people should know; it must not block.
func New(home string, actor *fsutil.Actor, say func(string)) *Lease {
	return newLease(home, Self(), &disk{home: home, actor: actor}, env{now: now, after: time.After, run: run, startOf: startOf}, say)
}

func newLease(home string, self Holder, vol volume, e env, say func(string)) *Lease {
	return &Lease{home: home, self: self, vol: vol, env: e, say: say, status: Status{State: None, Since: time.Now()}}
}

// now is CLOCK_BOOTTIME (clock_gettime(2)): a machine that slept finds its lease old.
func now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // it is there on every Linux
	}
	return time.Duration(ts.Nano())
}

func run(f func()) {
	guard.Go("using the lease", func() {
		_ = blocking.Do(blocking.Volume, func() error { f(); return nil })
	})
}

// Status returns the present state. It doesn't block.
func (l *Lease) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status
}

// Lost returns a channel that is closed when the lease that is held now is lost. It is nil while none is.
func (l *Lease) Lost() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// Check says why nothing may be started or wished for because of the lease, nil when it may be. It doesn't block. A lease
// that can't be had, because the volume can't hold one, forbids nothing. One that nobody knows about, because the volume does not
// answer, forbids everything.
func (l *Lease) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.status.State {
	case None:
		return nil
	case Held:
		now := l.env.now()
		if l.local {
			if now-l.looked >= noticeTime && (l.paused || now-l.ticked >= longestGap) {
				return fmt.Errorf("this container was paused, and has to look whether another one has the lease of %q: %w", l.home, ErrElsewhere)
			}
			return nil
		}
		if age := now - l.renewed; age >= giveUpAfter {
			return fmt.Errorf("the lease of %q could not be renewed for %v: %w", l.home, age.Round(time.Second), ErrElsewhere)
		}
		return nil
	case Elsewhere:
		return &HeldError{l.home, l.status.Holder}
	case Waiting:
	}
	return fmt.Errorf("%s: %w", l.status.Detail, ErrElsewhere)
}

// Patience says how long [Lease.Acquire] tries.
type Patience int

// The patiences.
const (
	UntilKnown   Patience = iota // until it has the lease, another holder is known to live (*[HeldError]), or the volume refuses (any other error)
	UntilSettled                 // the same, but a volume that refuses may come round
	UntilTaken                   // until it has the lease
)

// Acquire takes the lease. Nothing that an earlier one was for may be alive. When ctx ends it returns the cause; what was begun then is not lost, and the next call goes on with it.
func (l *Lease) Acquire(ctx context.Context, patience Patience) error {
	l.unlock()
	for {
		var err error
		end := ctx.Done()
		if patience == UntilKnown {
			end = l.within(ctx, answerTime)
		}
		apply, finished := l.call(end, l.attempt(&err))
		switch {
		case finished:
			apply()
		case ctx.Err() != nil:
			return context.Cause(ctx)
		default:
			err = fmt.Errorf("cannot tell whether another hinit serves %q: %w", l.home, ErrSlow)
		}
		var held *HeldError
		switch {
		case err == nil && l.Status().State == Held:
			l.watch = watch{}
			return nil
		case errors.As(err, &held):
			l.enter(Status{State: Elsewhere, Holder: held.Holder, Detail: held.Error()})
			if patience != UntilTaken {
				return err
			}
		case err != nil && patience == UntilKnown:
			state := None
			if errors.Is(err, ErrSlow) { // another may have it
				state = Waiting
			}
			l.enter(Status{State: state, Detail: err.Error()})
			return err
		case err != nil:
			l.complainOf(err)
		}
		select {
		case <-l.env.after(lookEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// call begins f unless an earlier call goes on, and returns what the one that was begun wants to be done with its result, once
// it has one.
func (l *Lease) call(end <-chan struct{}, f func() (apply func())) (apply func(), finished bool) {
	l.begin(f)
	select {
	case apply := <-l.inflight:
		l.inflight = nil
		return apply, true
	case <-end:
		return nil, false
	}
}

// within returns a channel that is closed after a time, or when ctx ends.
func (l *Lease) within(ctx context.Context, d time.Duration) <-chan struct{} {
	end := make(chan struct{})
	over := l.env.after(d)
	guard.Go("waiting for the volume", func() {
		defer close(end)
		select {
		case <-over:
		case <-ctx.Done():
		}
	})
	return end
}

// begin begins a call unless an earlier one goes on.
func (l *Lease) begin(f func() (apply func())) {
	if l.inflight != nil {
		return
	}
	done := make(chan func(), 1)
	l.inflight = done
	l.env.run(func() { done <- f() })
}

// enter makes a state known, unless that is the one there is.
func (l *Lease) enter(s Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.State == l.status.State && s.Holder.Boot == l.status.Holder.Boot && s.Detail == l.status.Detail {
		return
	}
	s.Since = time.Now()
	l.status = s
}

// complainOf says what keeps a lease from being had, once.
func (l *Lease) complainOf(err error) {
	if text := err.Error(); text != l.complain {
		l.complain = text
		l.say(text)
	}
}

// unlock lets go of the lock of a lease that is held no more.
func (l *Lease) unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.status.State != Held && l.lock != nil {
		_ = l.lock.Close() // the kernel lets go of it in any case
		l.lock = nil
	}
}

// attempt looks at the lease, and takes it if it may. Nothing but watch is changed before apply is called.
func (l *Lease) attempt(failed *error) func() func() {
	return func() func() {
		lock, err := l.vol.lock()
		switch {
		case err == nil:
			return l.locked(lock, failed)
		case errors.Is(err, fsutil.ErrLocked):
			return l.contest(failed)
		case !errors.Is(err, fsutil.ErrNotLocal):
			return func() { *failed = err }
		}
		err = l.observe()
		switch {
		case err != nil:
			return func() { *failed = err }
		case l.watch.epoch == 0 && len(l.watch.raw) == 0 || l.over(l.watch.record) || l.silent():
			return l.take(failed)
		}
		return l.wait(failed, false)
	}
}

// wait says for what it waits, or that the holder lives.
func (l *Lease) wait(failed *error, local bool) (apply func()) {
	most := expireAfter + 2*lookEvery
	if local {
		most += noticeTime
	}
	other, alive := l.watch.record, l.watch.changes > 0 && !l.watch.record.Released
	soon := local && l.watch.claimed == nil && l.env.now()-l.watch.began < longestGap
	return func() {
		if alive && l.watch.claimed == nil {
			*failed = &HeldError{l.home, other.Holder}
			return
		}
		detail := fmt.Sprintf("waiting up to %v for the lease of %q: %s has it, and nobody can tell yet whether that one is alive", most, l.home, other.Holder)
		if !soon { // on a local file system a living holder answers soon
			l.complainOf(errors.New(detail))
		}
		l.enter(Status{State: Waiting, Holder: other.Holder, Epoch: other.Epoch, Detail: detail, Heartbeat: other.Heartbeat})
	}
}

// locked takes the lease for one who has the lock, when the newest holder had it before: that one's process is dead.
func (l *Lease) locked(lock io.Closer, failed *error) (apply func()) {
	w := &l.watch
	if l.observe() == nil {
		if r := w.record; r.Heartbeat && !l.over(r) || r.Epoch == 0 && w.epoch != 0 {
			_ = lock.Close() // the newest holder took it from one that was paused, or nobody knows
			return l.contest(failed)
		}
	} // else there is nothing to go by but the lock
	r, began, err := l.claim(w.epoch+1, lock)
	if errors.Is(err, fs.ErrExist) {
		_ = lock.Close()
		return l.beaten(failed)
	}
	// A volume that can't be written has a lock all the same.
	return func() {
		if *failed = l.inTime(began); *failed != nil {
			_ = lock.Close()
			return
		}
		l.hold(r, lock, began, true)
		l.sweep(r)
	}
}

// contest is an attempt on a local file system at a lease whose holder may live, because somebody has the lock, or because the
// holder never had it. Whatever fails, that holder may live.
func (l *Lease) contest(failed *error) (apply func()) {
	w := &l.watch
	elsewhere := func() func() {
		other := w.record.Holder
		w.known = false
		return func() { *failed = &HeldError{l.home, other} }
	}
	if w.claimed != nil {
		return l.confirm(failed)
	}
	if l.env.now()-w.probed >= renewEvery && l.probe() != nil || l.observe() != nil {
		if w.raw == nil {
			raw, _ := l.vol.read(current) // without it the holder is unknown
			w.record, _ = parse(raw)
		}
		return elsewhere()
	}
	over := l.over(w.record)
	if !over && l.silent() { // is the volume well?
		if began := l.env.now(); l.probe() != nil || l.env.now()-began >= promptWrite || l.observe() != nil {
			return elsewhere()
		}
	}
	if over = l.over(w.record); !over && !l.silent() { // of what the last look has seen
		return l.wait(failed, true)
	}
	r, began, err := l.claim(w.epoch+1, nil)
	switch {
	case errors.Is(err, fs.ErrExist):
		return l.beaten(failed)
	case err != nil:
		return elsewhere()
	case over:
		return func() {
			if *failed = l.inTime(began); *failed == nil {
				l.hold(r, nil, began, true)
				l.sweep(r)
			}
		}
	}
	w.claimed, w.began, w.since = &r, began, l.env.now()
	return l.wait(failed, true)
}

// probe writes, so that a volume that is frozen or full is noticed, and so that the holder knows that somebody waits.
func (l *Lease) probe() error {
	l.watch.probes++
	began := l.env.now()
	r := record{Version: recordVersion, Epoch: l.watch.epoch, Beat: l.watch.probes, Heartbeat: true, Holder: l.self}
	err := l.vol.write(waiting, r.encode())
	if err == nil {
		l.watch.probed = began
	}
	return err
}

// confirm ends the time that a holder that lives has to notice that another has taken the lease.
func (l *Lease) confirm(failed *error) (apply func()) {
	w := &l.watch
	if l.env.now()-w.since < noticeTime {
		return l.wait(failed, true)
	}
	r := *w.claimed
	began := l.env.now()
	highest, err := l.vol.highest()
	r.Beat++
	if err == nil && highest == r.Epoch {
		err = l.vol.write(epochName(r.Epoch), r.encode())
	}
	claimed := w.began
	*w = watch{changes: w.changes, probes: w.probes}
	if now := l.env.now(); err != nil || highest != r.Epoch || now-claimed >= giveUpAfter || now-began >= promptWrite {
		return l.wait(failed, true)
	}
	return func() {
		l.hold(r, nil, began, true)
		l.sweep(r)
	}
}

// beaten is for one who was not the fastest.
func (l *Lease) beaten(failed *error) (apply func()) {
	last := l.watch.record
	l.watch = watch{epoch: l.watch.epoch + 1, changes: l.watch.changes, probes: l.watch.probes, probed: l.watch.probed}
	l.watch.record = last
	return l.wait(failed, false)
}

// hold makes the lease held. renewed is when the look or the claim began that it rests on.
func (l *Lease) hold(r record, lock io.Closer, renewed time.Duration, local bool) {
	l.mu.Lock()
	l.lock, l.renewed, l.epoch, l.beats = lock, renewed, r.Epoch, r.Beat
	l.local, l.looked, l.ticked, l.paused, l.called = local, renewed, renewed, false, l.env.now()
	l.status = Status{State: Held, Since: time.Now(), Epoch: r.Epoch, Heartbeat: lock == nil, Holder: r.Holder}
	again := l.lost != nil
	if !again {
		l.lost, l.release = make(chan struct{}), make(chan chan struct{}, 1)
	}
	lost, release := l.lost, l.release
	l.mu.Unlock()
	l.complain = ""
	switch {
	case again:
	case local:
		guard.Go("keeping the lease", func() { l.keepLocal(lost, release) })
	default:
		guard.Go("keeping the lease", func() { l.keep(lost, release) })
	}
}

// sweep removes the records of epochs long ago.
func (l *Lease) sweep(r record) {
	if r.Epoch > keepEpochs {
		l.begin(func() func() { l.vol.sweep(r.Epoch - keepEpochs); return func() {} })
	}
}

// watch is what one who waits has seen.
type watch struct {
	known   bool
	epoch   uint64 // the newest
	raw     []byte // its record
	record  record
	seen    time.Duration // when the look ended that saw it first
	looked  time.Duration // when the last look ended
	silence time.Duration // from seen to when the last look began
	changes int

	// On a local file system.
	probed  time.Duration // when the last probe began
	probes  uint64
	claimed *record       // the epoch that this init has taken and does not serve yet
	began   time.Duration // when it began to take it, else when it began to watch
	since   time.Duration // when it had it
}

// observe reads the record of the newest epoch, and notes whether and since when it has not changed.
func (l *Lease) observe() error {
	w := &l.watch
	began := l.env.now()
	raw, err := l.vol.read(current)
	if err != nil {
		return err
	}
	newest, _ := parse(raw)
	claimed, err := l.vol.highest()
	if err != nil {
		return err
	}
	epoch := max(w.epoch, newest.Epoch, claimed)
	if raw, err = l.vol.read(epochName(epoch)); err != nil {
		return err
	}
	ended := l.env.now()
	stood := w.probes > 0 && began-w.looked > longestGap // what was not watched is no silence, and nobody may have asked for a heartbeat
	w.looked = ended
	if w.known && epoch == w.epoch && bytes.Equal(raw, w.raw) {
		if stood {
			w.seen = ended
		}
		w.silence = max(0, began-w.seen)
		return nil
	}
	if w.known {
		w.changes++
	} else {
		w.began = began
	}
	w.known, w.epoch, w.raw, w.seen, w.silence = true, epoch, raw, ended, 0
	w.record, _ = parse(raw)
	return nil
}

// silent reports whether a holder has been silent for so long that the lease may be taken.
func (l *Lease) silent() bool {
	w := &l.watch
	r := w.record
	unconfirmed := w.epoch != 0 && len(w.raw) == 0 || r.Epoch != 0 && r.Beat <= 1
	return w.silence >= expireAfter || unconfirmed && w.silence >= unrenewedAfter
}

// over reports whether a record says that its holder does not have the lease any more.
func (l *Lease) over(r record) bool {
	return r.Epoch != 0 && (r.Released || r.Boot == l.self.Boot || l.self.outlived(r.Holder, l.env.startOf))
}

// take takes the epoch after the newest.
func (l *Lease) take(failed *error) (apply func()) {
	r, began, err := l.claim(l.watch.epoch+1, nil)
	if errors.Is(err, fs.ErrExist) { // somebody was faster: to be looked at
		return l.beaten(failed)
	}
	return func() {
		if *failed = err; err != nil {
			return
		}
		if *failed = l.inTime(began); *failed != nil {
			return
		}
		l.hold(r, nil, began, false)
		l.sweep(r)
	}
}

// claim makes an epoch that of this init, of all that may try, and renews it once. began is when that did.
func (l *Lease) claim(epoch uint64, lock io.Closer) (r record, began time.Duration, err error) {
	r = record{Version: recordVersion, Epoch: epoch, Beat: 1, Heartbeat: lock == nil, Holder: l.self}
	r.Since = time.Now().UTC().Truncate(time.Millisecond)
	began = l.env.now()
	if err := l.vol.claim(epochName(epoch), r.encode()); err != nil {
		return r, began, err
	}
	r.Beat++
	if err := l.vol.write(current, r.encode()); err != nil { // first, so that an older holder finds it as soon as it looks
		return r, began, err
	}
	return r, began, l.vol.write(epochName(epoch), r.encode())
}

// inTime says why an epoch that was claimed is not held.
func (l *Lease) inTime(began time.Duration) error {
	if took := l.env.now() - began; took >= claimTime {
		return fmt.Errorf("cannot take the lease of %q: the volume took %v: %w", l.home, took.Round(time.Millisecond), ErrSlow)
	}
	return nil
}

// keepLocal looks for a higher epoch until there is one or the lease is released, and renews it while somebody waits. A renewal that
// hangs, because the volume is frozen, holds up no look.
func (l *Lease) keepLocal(lost chan struct{}, release chan chan struct{}) {
	var beating chan error
	once := false // per tick, a look is repeated at once
	next := l.env.after(0)
	for l.Lost() == lost {
		select {
		case apply := <-l.inflight:
			l.inflight = nil
			apply()
			if once && l.Lost() == lost && l.Check() != nil { // that look may have begun before a pause
				once = false
				l.begin(l.checkEpoch)
			}
		case err := <-beating:
			beating = nil
			if err != nil {
				l.complainOf(fmt.Errorf("cannot renew the lease: %w", err))
			}
		case <-next:
			next = l.env.after(checkEvery)
			once = true
			l.begin(l.checkEpoch)
			if l.tick() && beating == nil {
				done := make(chan error, 1)
				beating = done
				r := l.nextBeat()
				l.env.run(func() { done <- l.put(r) })
			}
		case done := <-release:
			l.letGo(done)
			return
		}
	}
	select {
	case done := <-release:
		l.letGo(done)
	default: // it is lost
	}
}

// tick notes that a look is due, and reports whether somebody waits.
func (l *Lease) tick() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.env.now()
	l.paused = l.paused || now-l.ticked >= longestGap
	l.ticked = now
	return now-l.called < expireAfter
}

// checkEpoch looks whether there is a higher epoch, or somebody who waits. Where this init has no lock yet, it tries to get it.
func (l *Lease) checkEpoch() (apply func()) {
	began := l.env.now()
	l.mu.Lock()
	epoch, locked := l.epoch, l.lock != nil
	l.mu.Unlock()
	highest, err := l.vol.highest()
	if err == nil && highest > epoch {
		raw, _ := l.vol.read(epochName(highest)) // without it the holder is unknown
		r, _ := parse(raw)
		return func() { l.lose(&HeldError{l.home, r.Holder}) }
	}
	calls, _ := l.vol.read(waiting) // what can't be read does not change
	var lock io.Closer
	if !locked {
		if got, err := l.vol.lock(); err == nil {
			lock = got
		}
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		now := l.env.now()
		if l.status.State != Held || l.epoch != epoch {
			if lock != nil {
				_ = lock.Close()
			}
			return
		}
		if err == nil {
			l.looked, l.paused = began, l.paused && now-began >= longestGap
		}
		if !bytes.Equal(calls, l.calls) {
			l.calls, l.called = calls, now
		}
		if lock != nil {
			l.lock, l.status.Heartbeat, l.called = lock, false, now // the record is to say so
		}
	}
}

// nextBeat returns the next renewal.
func (l *Lease) nextBeat() record {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beats++
	return record{Version: recordVersion, Epoch: l.epoch, Beat: l.beats, Heartbeat: l.lock == nil, Holder: l.status.Holder}
}

// put writes a renewal on a local file system.
func (l *Lease) put(r record) error {
	err := l.vol.write(epochName(r.Epoch), r.encode())
	raw, _ := l.vol.read(current)
	if newest, _ := parse(raw); newest.Epoch < r.Epoch {
		err = errors.Join(err, l.vol.write(current, r.encode()))
	}
	return err
}

// keep renews the lease until it is lost or released.
func (l *Lease) keep(lost chan struct{}, release chan chan struct{}) {
	next := l.env.after(renewEvery)
	for {
		if l.Lost() != lost {
			select {
			case done := <-release:
				l.letGo(done)
			default: // it is lost
			}
			return
		}
		deadline := giveUpAfter - l.age()
		if deadline <= 0 {
			if why := l.retake(); why != nil {
				l.lose(why)
			}
			next = l.env.after(renewEvery)
			continue
		}
		select {
		case apply := <-l.inflight:
			l.inflight = nil
			apply()
		case <-next:
			next = l.env.after(renewEvery)
			if l.age() < giveUpAfter {
				l.begin(l.renew)
			}
		case <-l.env.after(deadline):
		case done := <-release:
			l.letGo(done)
			return
		}
	}
}

// age is how long ago the last renewal began.
func (l *Lease) age() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.env.now() - l.renewed
}

// renew looks whether the lease is still that of this init, and writes the next heartbeat.
func (l *Lease) renew() (apply func()) {
	began := l.env.now()
	l.mu.Lock()
	r := record{Version: recordVersion, Epoch: l.status.Epoch, Beat: l.beats + 1, Heartbeat: true, Holder: l.status.Holder}
	l.mu.Unlock()
	raw, err := l.vol.read(current)
	newest, known := parse(raw)
	switch {
	case err != nil:
	case known && (newest.Epoch > r.Epoch || newest.Epoch == r.Epoch && newest.Boot != r.Boot):
		return func() { l.lose(&HeldError{l.home, newest.Holder}) }
	case newest.Epoch < r.Epoch: // see current
		err = l.vol.write(current, r.encode())
	}
	if err == nil {
		err = l.vol.write(epochName(r.Epoch), r.encode())
	}
	if err != nil {
		return func() { l.complainOf(fmt.Errorf("cannot renew the lease: %w", err)) }
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.env.now()-l.renewed < giveUpAfter { // else another may have it by now
			l.renewed, l.beats = began, r.Beat
		}
	}
}

// retake is the way back of a holder that was paused, or whose volume was: another may have the lease by now. To renew it would
// not exclude that other, to claim the next epoch does. There is little time for it, because what it runs goes on.
func (l *Lease) retake() error {
	end := l.within(context.Background(), retakeTime)
	if l.inflight != nil {
		apply, finished := l.call(end, nil)
		if !finished {
			return l.late()
		}
		if apply(); l.Status().State != Held {
			return nil
		}
	}
	epoch := l.Status().Epoch
	var failed error
	apply, finished := l.call(end, func() func() {
		raw, err := l.vol.read(current)
		if newest, ok := parse(raw); ok && newest.Epoch > epoch {
			return func() { failed = &HeldError{l.home, newest.Holder} }
		}
		if err != nil {
			return func() { failed = err }
		}
		r, began, err := l.claim(epoch+1, nil)
		if errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("another init is taking it: %w", ErrElsewhere)
		}
		return func() {
			if failed = err; err != nil {
				return
			}
			if failed = l.inTime(began); failed == nil {
				l.hold(r, nil, began, false)
			}
		}
	})
	if !finished {
		return l.late()
	}
	apply()
	return failed
}

func (l *Lease) late() error {
	return fmt.Errorf("it could not be renewed for %v: the volume does not answer", l.age().Round(time.Second))
}

// lose says that the lease is held no more.
func (l *Lease) lose(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.status.State != Held {
		return
	}
	s := Status{State: Waiting, Since: time.Now(), Holder: l.status.Holder, Epoch: l.status.Epoch, Heartbeat: true}
	s.Detail = fmt.Sprintf("the lease of %q is lost: %v", l.home, why)
	if held, is := errors.AsType[*HeldError](why); is {
		s.State, s.Holder = Elsewhere, held.Holder
	}
	l.status = s
	l.watch = watch{}
	close(l.lost) // the next one in Acquire goes on from here
	l.lost, l.release = nil, nil
}

// Release gives the lease back, so that the next one need not wait. Nothing that it is for may be alive. It returns when that
// is written, or when ctx ends.
func (l *Lease) Release(ctx context.Context) {
	l.mu.Lock()
	if l.status.State != Held {
		l.mu.Unlock()
		return
	}
	done := make(chan struct{})
	l.status = Status{State: None, Since: time.Now(), Detail: "released"}
	l.release <- done // it has room
	l.lost, l.release = nil, nil
	l.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// letGo writes that the lease is free, if it is still that of this init.
func (l *Lease) letGo(done chan struct{}) {
	defer close(done)
	l.mu.Lock()
	if l.lock != nil { // that is enough
		_ = l.lock.Close() // the kernel lets go of it in any case
		l.lock = nil
		l.mu.Unlock()
		return
	}
	r := record{Version: recordVersion, Epoch: l.epoch, Beat: l.beats + 1, Heartbeat: true, Released: true, Holder: l.self}
	l.mu.Unlock()
	left := max(0, giveUpAfter-l.age())
	if l.local {
		left = giveUpAfter
	}
	end := l.within(context.Background(), left)
	if l.inflight != nil {
		if _, finished := l.call(end, nil); !finished {
			return
		}
	}
	_, _ = l.call(end, func() func() {
		name := epochName(r.Epoch)
		raw, err := l.vol.read(name)
		if mine, ok := parse(raw); err == nil && ok && mine.Boot == l.self.Boot {
			_ = l.vol.write(name, r.encode()) // if it can't be written, the next one waits
		}
		return nil
	})
}

// exported is what an image hands over to the next one.
type exported struct {
	Self    Holder
	Status  Status
	Renewed time.Duration
	Beats   uint64
	Local   bool
	FD      int // of the lock; -1 for none
}

// Export returns what the next image of this process needs to go on, and the descriptors it needs open. It doesn't block.
func (l *Lease) Export() (state json.RawMessage, keep []int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := exported{Self: l.self, Status: l.status, Renewed: l.renewed, Beats: l.beats, Local: l.local, FD: -1}
	if l.local {
		old.Renewed = l.looked
	}
	if f, ok := l.lock.(*os.File); ok && l.status.State == Held {
		raw, err := f.SyscallConn()
		if err != nil {
			return nil, nil, err
		}
		if err := raw.Control(func(fd uintptr) { old.FD = int(fd) }); err != nil {
			return nil, nil, err
		}
		keep = append(keep, old.FD)
	}
	state, err = json.Marshal(old)
	return state, keep, err
}

// Resume goes on for the image that has exported state.
func (l *Lease) Resume(state json.RawMessage) error {
	var old exported
	if err := json.Unmarshal(state, &old); err != nil {
		return fmt.Errorf("cannot go on with the lease: %w", err)
	}
	l.self = old.Self
	if old.Status.State != Held {
		l.status = old.Status
		return nil
	}
	var lock io.Closer
	if old.FD >= 0 {
		lock = adopt(old.FD)
	}
	l.hold(record{Epoch: old.Status.Epoch, Beat: old.Beats, Holder: old.Status.Holder}, lock, old.Renewed, old.Local || lock != nil)
	return nil
}
