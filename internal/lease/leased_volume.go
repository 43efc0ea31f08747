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
	"hinit/internal/procstat"
)

// The first words of the messages of the lease program, see [LeasedVolume.HandleMessage].
const (
	heldPrefix  = "held "  // the rest of the message is the end of the lease, in microseconds of CLOCK_BOOTTIME
	waitsPrefix = "waits " // the rest of the message is the name of the holder of the lease
)

// maxTimerSleep limits each sleep before the end of the lease. The timers of Go stop during a suspend of the machine, but
// CLOCK_BOOTTIME keeps running.
const maxTimerSleep = time.Second

var errNotRenewed = errors.New("the program of the lease has not renewed it in time")

// LeasedVolume is the [Lock] of a volume that a lease in another system protects. A program of the operator holds the lease,
// and says when it ends by the clock of this machine. By then, all services that need the lock must have ended, even if the
// program has died.
//
// Acquire also locks the data directory, so that two inits on one machine can't both serve the volume.
type LeasedVolume struct {
	*Volume

	messageArrived chan struct{} // capacity 1; holds a token after a message of the lease program

	messageMu      sync.Mutex    // guards the fields below
	expires        time.Duration // end of the lease, by CLOCK_BOOTTIME
	otherHolder    Holder        // machine that holds the lease, while the program waits for it
	programWaits   bool          // the lease program waits for another holder
	continuesLease bool          // the next Acquire continues the lease from before a re-execution
}

// NewLeasedVolume returns the lock of a data directory that a lease protects. The parameters are the same as for NewVolume.
func NewLeasedVolume(home string, actor *fsutil.Actor, warn func(string)) *LeasedVolume {
	v := NewVolume(home, actor, warn)
	v.hasLease = true
	return &LeasedVolume{Volume: v, messageArrived: make(chan struct{}, 1)}
}

// HandleMessage handles a message of the lease program: "held MICROSECONDS" or "waits HOLDER". It ignores any other, and does not
// block.
func (p *LeasedVolume) HandleMessage(text string) {
	p.messageMu.Lock()
	if end, is := strings.CutPrefix(text, heldPrefix); is {
		if n, err := strconv.ParseInt(end, 10, 64); err == nil && n < int64(1<<53) {
			p.expires, p.programWaits = time.Duration(n)*time.Microsecond, false
		}
	} else if who, is := strings.CutPrefix(text, waitsPrefix); is {
		if host := printable(who); !p.programWaits || host != p.otherHolder.Host {
			p.otherHolder = Holder{Host: host, Since: time.Now(), Lease: true}
		}
		p.expires, p.programWaits = 0, true
	}
	p.messageMu.Unlock()
	pause.Wake(p.messageArrived)
}

// remaining returns the rest of the lease, and whether the lease program waits because another machine holds the lease.
func (p *LeasedVolume) remaining() (left time.Duration, waits bool) {
	p.messageMu.Lock()
	defer p.messageMu.Unlock()
	return p.expires - procstat.SinceBoot(), p.programWaits
}

// Acquire implements [Lock]. It waits for the lease, and then locks the data directory.
func (p *LeasedVolume) Acquire(ctx context.Context, busy func(holder func() Holder)) (lost <-chan error, err error) {
	p.messageMu.Lock()
	resumes := p.continuesLease
	p.continuesLease = false
	p.messageMu.Unlock()
	wait := sync.OnceFunc(func() {
		busy(func() Holder {
			p.messageMu.Lock()
			defer p.messageMu.Unlock()
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
		if !pause.Until(ctx, p.messageArrived) {
			return nil, context.Cause(ctx)
		}
	}
	if _, err = p.Volume.Acquire(ctx, busy); err != nil { // if the volume can't be locked, the lease alone protects it
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

// watch waits until the lease ends, and sends the reason to lost.
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
		case <-time.After(min(left, maxTimerSleep)):
		case <-p.messageArrived:
		case <-ctx.Done():
			return
		}
	}
}

// whyNotHeld says why the lease is not held: another machine has it, or the program has not renewed it.
func (p *LeasedVolume) whyNotHeld() error {
	p.messageMu.Lock()
	defer p.messageMu.Unlock()
	if p.programWaits {
		return errors.New("the lease of the volume has gone to " + p.otherHolder.Host)
	}
	return errNotRenewed
}

// Check implements [Lock]. It fails when the lease has ended.
func (p *LeasedVolume) Check() error {
	if left, _ := p.remaining(); left <= 0 {
		return p.whyNotHeld()
	}
	return p.Volume.Check()
}

// HandOver implements [Lock]. The state includes the end of the lease.
func (p *LeasedVolume) HandOver() *Handover {
	h := p.Volume.HandOver()
	p.messageMu.Lock()
	defer p.messageMu.Unlock()
	h.Until = p.expires
	return h
}

// TakeOver implements [Lock]. If the lease has ended during the re-execution, the lock is lost at once.
func (p *LeasedVolume) TakeOver(old *Handover) {
	p.Volume.TakeOver(old)
	if old != nil {
		p.expires, p.continuesLease = old.Until, old.Until > 0
	}
}
