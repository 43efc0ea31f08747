package lease

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	checkEvery  = time.Second      // of the holder
	idleEvery   = 30 * time.Second // of a holder that the kernel tells of changes while nobody waits
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

	// Looked is called after a look that no other look follows soon, if it is not nil. It must not block. It is to be set before
	// Acquire.
	Looked func()

	// Of who is in Acquire, then of the goroutine that keeps the lease.
	inflight chan func() // a call that was begun; nil for none
	watch    watch
	complain string // last complaint that was said

	mu      sync.Mutex
	status  Status
	lock    io.Closer     // of the volume; nil for none. It is kept until what the lease was for has ended
	renewed time.Duration // when the last renewal began
	local   bool          // the lease is held on a local file system; only then looks means something
	looks
	epoch   uint64 // of the last lease that was held
	beats   uint64
	lost    chan struct{} // closed when the lease is no longer held
	release chan chan struct{}
}

// looks are those of the holder of a local volume at the others.
type looks struct {
	looked   time.Duration // when the last look began that saw no higher epoch
	ticked   time.Duration // when the last look was due
	due      time.Duration // when the next one is
	paused   bool          // the process stood still since the last such look
	called   time.Duration // when a sign of somebody who waits was last seen
	calls    []byte        // that sign
	fresh    bool          // there was no look at that sign yet
	notifier notifier      // of changes; nil where there is none
	seen     uint64        // how many of these the last look has seen
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
			switch {
			case now-l.looked < noticeTime:
			case l.paused || l.late(now):
				return fmt.Errorf("this container was paused, and has to look whether another one has the lease of %q: %w", l.home, ErrElsewhere)
			case l.pending():
				return fmt.Errorf("the lease of %q has changed, and this container has to look whether another one has it: %w", l.home, ErrElsewhere)
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
