package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"
)

// keepLocal looks for a higher epoch until there is one or the lease is released, and renews it while somebody waits. It looks every
// second; where the kernel tells of changes and nobody waits, when it does. A renewal that hangs, because the volume is frozen,
// holds up no look.
func (l *Lease) keepLocal(lost chan struct{}, release chan chan struct{}) {
	var beating chan error
	once := false // per tick, a look is repeated at once
	told := false // there was a change since the last tick
	idle := false // the next tick is far away
	next := l.env.after(0)
	defer l.ignore()
	for l.Lost() == lost {
		select {
		case apply := <-l.inflight:
			l.inflight = nil
			apply()
			if once && l.Lost() == lost && l.Check() != nil { // that look may have begun before a pause
				once = false
				l.begin(l.checkEpoch)
			} else if idle && l.Looked != nil {
				l.Looked()
			}
		case err := <-beating:
			beating = nil
			if err != nil {
				l.complainOf(fmt.Errorf("cannot renew the lease: %w", err))
			}
		case <-l.told():
			told = true
			next = l.env.after(l.hurry())
		case <-next:
			once = true
			l.begin(l.checkEpoch)
			called, wait := l.tick(told)
			told, idle, next = false, wait == idleEvery, l.env.after(wait)
			if called && beating == nil {
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

// tick notes that a look is due, and reports whether somebody waits, and when the next look is due. told says that this one follows
// a change, so that it may find somebody.
func (l *Lease) tick(told bool) (called bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.env.now()
	l.paused = l.paused || l.late(now)
	called = now-l.called < expireAfter
	wait = checkEvery
	if !called && !told && l.lock != nil && l.notifier != nil && !l.pending() { // nobody tells when the lock is free
		wait = idleEvery
	}
	l.ticked, l.due = now, now+wait
	return called, wait
}

// hurry makes the next look due as soon as a second has passed since the last one, and returns in what time that is.
func (l *Lease) hurry() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.env.now()
	l.paused = l.paused || l.late(now)
	l.due = max(now, l.ticked+checkEvery)
	return l.due - now
}

// late reports whether a look is so late that the process must have stood still.
func (l *looks) late(now time.Duration) bool { return now-l.due >= longestGap-checkEvery }

// checkEpoch looks whether there is a higher epoch, or somebody who waits. Where this init has no lock yet, it tries to get it.
func (l *Lease) checkEpoch() (apply func()) {
	began := l.env.now()
	l.mu.Lock()
	epoch, locked := l.epoch, l.lock != nil
	l.mu.Unlock()
	seen := l.attend(epoch)
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
			l.looked, l.paused, l.seen = began, l.paused && now-began >= longestGap, seen
		}
		switch {
		case l.fresh && l.notifier != nil: // who waited before writes again before long, and is told of
			l.called = now - expireAfter + longestGap
		case !bytes.Equal(calls, l.calls):
			l.called = now
		}
		l.calls, l.fresh = calls, false
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

// retake is the way back of a holder that was paused, or whose volume was. Another may have the lease by now: only a claim of the
// next epoch excludes it. There is little time, because what it runs goes on.
func (l *Lease) retake() error {
	end := l.within(context.Background(), retakeTime)
	if l.inflight != nil {
		apply, finished := l.call(end, nil)
		if !finished {
			return l.tooLate()
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
		return l.tooLate()
	}
	apply()
	return failed
}

func (l *Lease) tooLate() error {
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
