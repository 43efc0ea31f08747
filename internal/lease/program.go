package lease

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/pause"
)

// The messages from the lease program begin with these words, see [LeasedVolume.Message].
const (
	heldPrefix  = "held "  // followed by the end of the lease in microseconds of CLOCK_BOOTTIME
	waitsPrefix = "waits " // followed by the name of the holder of the lease
)

// longestWait limits each sleep until the end of the lease, because Go's timers stop while the machine sleeps, and CLOCK_BOOTTIME
// doesn't.
const longestWait = time.Second

var errEnded = errors.New("the program of the lease has not renewed it in time")

// LeasedVolume is the [Lock] of a volume that is protected by a lease in another system. A program of the operator holds the
// lease and reports when it ends, by the clock of this machine. All services that need the lock must have ended by then, even if
// the program has died.
//
// Acquire also locks the data directory, so that two inits on one machine can't both serve the volume.
type LeasedVolume struct {
	*Volume

	news chan struct{} // capacity 1; holds a token after a message from the lease program

	messages       sync.Mutex
	until          time.Duration // end of the lease, by CLOCK_BOOTTIME
	otherHolder    Holder        // other machine that holds the lease, if the program waits
	programWaits   bool          // the lease program has reported that it waits
	continuesLease bool          // the next Acquire must continue the lease of the program before a re-execution
}

// NewLeasedVolume returns the lock of a data directory that a lease protects. The parameters are the same as for NewVolume.
func NewLeasedVolume(home string, actor *fsutil.Actor, warn func(string)) *LeasedVolume {
	v := NewVolume(home, actor, warn)
	v.hasLease = true
	return &LeasedVolume{Volume: v, news: make(chan struct{}, 1)}
}

// Message handles a message from the lease program: "held MICROSECONDS" or "waits HOLDER". It ignores any other message. It
// doesn't block.
func (p *LeasedVolume) Message(words string) {
	p.messages.Lock()
	if end, is := strings.CutPrefix(words, heldPrefix); is {
		if n, err := strconv.ParseInt(end, 10, 64); err == nil && n < int64(1<<53) {
			p.until, p.programWaits = time.Duration(n)*time.Microsecond, false
		}
	} else if who, is := strings.CutPrefix(words, waitsPrefix); is {
		if host := printable(who); !p.programWaits || host != p.otherHolder.Host {
			p.otherHolder = Holder{Host: host, Since: time.Now(), Lease: true}
		}
		p.until, p.programWaits = 0, true
	}
	p.messages.Unlock()
	pause.Wake(p.news)
}

// remaining returns the time until the lease ends, and whether the lease program waits because another machine holds the lease.
func (p *LeasedVolume) remaining() (left time.Duration, waits bool) {
	p.messages.Lock()
	defer p.messages.Unlock()
	return p.until - bootTime(), p.programWaits
}

// Acquire implements [Lock].
func (p *LeasedVolume) Acquire(ctx context.Context, busy func(holder func() Holder)) (lost <-chan error, err error) {
	p.messages.Lock()
	resumes := p.continuesLease
	p.continuesLease = false
	p.messages.Unlock()
	wait := sync.OnceFunc(func() {
		busy(func() Holder {
			p.messages.Lock()
			defer p.messages.Unlock()
			return p.otherHolder
		})
	})
	p.releaseLost()
	for !resumes {
		left, waits := p.remaining()
		if left > 0 {
			break
		}
		if waits {
			wait()
		}
		if !pause.Until(ctx, p.news) {
			return nil, context.Cause(ctx)
		}
	}
	if _, err = p.Volume.Acquire(ctx, busy); err != nil { // if the volume can't be locked, only the lease protects it
		if ctx.Err() != nil {
			return nil, err
		}
		p.mu.Lock()
		p.lost = false
		p.mu.Unlock()
	}
	end := make(chan error, 1)
	guard.Go("watching the deadline of the lease", func() { p.watch(ctx, end) })
	return end, nil
}

// watch waits until the lease has ended, and sends the reason to lost.
func (p *LeasedVolume) watch(ctx context.Context, lost chan<- error) {
	for {
		left, _ := p.remaining()
		if left <= 0 {
			p.mu.Lock()
			p.lost = true
			p.mu.Unlock()
			lost <- p.whyNotHeld()
			return
		}
		select {
		case <-time.After(min(left, longestWait)):
		case <-p.news:
		case <-ctx.Done():
			return
		}
	}
}

// whyNotHeld returns the reason why the lease is not held.
func (p *LeasedVolume) whyNotHeld() error {
	p.messages.Lock()
	defer p.messages.Unlock()
	if p.programWaits {
		return errors.New("the lease of the volume has gone to " + p.otherHolder.Host)
	}
	return errEnded
}

// Check implements [Lock].
func (p *LeasedVolume) Check() error {
	if left, _ := p.remaining(); left <= 0 {
		return p.whyNotHeld()
	}
	return p.Volume.Check()
}

// HandOver implements [Lock].
func (p *LeasedVolume) HandOver() *Handover {
	h := p.Volume.HandOver()
	p.messages.Lock()
	defer p.messages.Unlock()
	h.Until = p.until
	return h
}

// TakeOver implements [Lock]. If the lease ended during the re-execution, the lock is lost immediately.
func (p *LeasedVolume) TakeOver(old *Handover) {
	p.Volume.TakeOver(old)
	if old != nil {
		p.until, p.continuesLease = old.Until, old.Until > 0
	}
}
