package lease

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// The words of the program that holds a lease, see [Held.Told].
const (
	heldWord  = "held "  // and the end of the lease in microseconds of CLOCK_BOOTTIME
	waitsWord = "waits " // and who has the lease
)

// longestWait bounds the sleep of the watch of a deadline: Go's timers stand still while the machine sleeps, and CLOCK_BOOTTIME doesn't.
const longestWait = time.Second

var errEnded = errors.New("the program of the lease has not renewed it in time")

// Held is the [Lock] of a volume whose right to serve is a lease that a program holds elsewhere. The program says until when it holds the
// lease, on the clock of this machine. Everything that the lock is for must be dead by then, whatever has become of the program.
//
// Held also locks the data directory, which keeps two inits of one machine apart.
type Held struct {
	*Volume

	news chan struct{} // something was told; capacity 1

	said    sync.Mutex
	until   time.Duration // CLOCK_BOOTTIME
	other   Holder        // who has the lease, if this machine does not
	waits   bool          // the program has said so
	resumes bool          // Acquire goes on with a lease of an earlier generation
}

// NewHeld returns the lock of a data directory with a lease. It is NewVolume but for the lease.
func NewHeld(home string, actor *fsutil.Actor, warn func(string)) *Held {
	v := NewVolume(home, actor, warn)
	v.sharing = func(*os.File) (bool, string) { return false, "" } // the lease is for other machines
	return &Held{Volume: v, news: make(chan struct{}, 1)}
}

// Told takes what the program says: "held MICROSECONDS" or "waits HOLDER". Anything else is ignored. It doesn't block.
func (p *Held) Told(words string) {
	p.said.Lock()
	if end, is := strings.CutPrefix(words, heldWord); is {
		if n, err := strconv.ParseInt(end, 10, 64); err == nil && n < int64(1<<53) {
			p.until, p.waits = time.Duration(n)*time.Microsecond, false
		}
	} else if who, is := strings.CutPrefix(words, waitsWord); is {
		if host := word(who); !p.waits || host != p.other.Host {
			p.other = Holder{Host: host, Since: time.Now(), Lease: true}
		}
		p.until, p.waits = 0, true
	}
	p.said.Unlock()
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// left returns how much of the lease is left, and whether the program waits for another holder.
func (p *Held) left() (left time.Duration, waits bool) {
	p.said.Lock()
	defer p.said.Unlock()
	return p.until - now(), p.waits
}

// Acquire implements [Lock].
func (p *Held) Acquire(ctx context.Context, busy func(holder func() Holder)) (lost <-chan error, err error) {
	p.said.Lock()
	resumes := p.resumes
	p.resumes = false
	p.said.Unlock()
	wait := sync.OnceFunc(func() {
		busy(func() Holder {
			p.said.Lock()
			defer p.said.Unlock()
			return p.other
		})
	})
	p.drop()
	for !resumes {
		left, waits := p.left()
		if left > 0 {
			break
		}
		if waits {
			wait()
		}
		select {
		case <-p.news:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if _, err = p.Volume.Acquire(ctx, busy); err != nil { // of another machine the lease alone keeps the volume
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

// watch waits for the end of the lease.
func (p *Held) watch(ctx context.Context, lost chan<- error) {
	for {
		left, _ := p.left()
		if left <= 0 {
			p.mu.Lock()
			p.lost = true
			p.mu.Unlock()
			lost <- p.why()
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

// why says why the lease is not held.
func (p *Held) why() error {
	p.said.Lock()
	defer p.said.Unlock()
	if p.waits {
		return errors.New("the lease of the volume has gone to " + p.other.Host)
	}
	return errEnded
}

// Check implements [Lock].
func (p *Held) Check() error {
	if left, _ := p.left(); left <= 0 {
		return p.why()
	}
	return p.Volume.Check()
}

// HandOver returns what a successor needs to go on. It doesn't block.
func (p *Held) HandOver() *Handover {
	h := p.Volume.HandOver()
	p.said.Lock()
	defer p.said.Unlock()
	h.Until = p.until
	return h
}

// TakeOver makes the next Acquire go on with the lease of an earlier generation, if that held it. It is lost at once if it has ended meanwhile.
func (p *Held) TakeOver(old *Handover) {
	p.Volume.TakeOver(old)
	if old != nil {
		p.until, p.resumes = old.Until, old.Until > 0
	}
}
