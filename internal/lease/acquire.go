package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

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

// contest is an attempt on a local file system at a lease whose holder may live: another init has the lock, or the holder never had
// it.
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
	l.local, l.looked, l.ticked, l.due, l.paused, l.called = local, renewed, renewed, renewed+checkEvery, false, l.env.now()
	l.fresh = true
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
