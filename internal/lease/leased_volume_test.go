package lease

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/procstat"
)

func newHeld(home string) *LeasedVolume { return NewLeasedVolume(home, fsutil.Self(), func(string) {}) }

// holds delivers the message of the lease program that the lease lasts for the time more.
func (p *LeasedVolume) holds(more time.Duration) {
	p.HandleMessage(fmt.Sprintf("held %d", (procstat.SinceBoot() + more).Microseconds()))
}

// acquireHeld calls Acquire in another goroutine.
func acquireHeld(ctx context.Context, p *LeasedVolume) pendingAcquire {
	a := pendingAcquire{make(chan func() Holder, 1), make(chan acquireResult, 1)}
	go func() {
		lost, err := p.Acquire(ctx, func(holder func() Holder) { a.busy <- holder })
		a.got <- acquireResult{lost, err}
	}()
	return a
}

// An init must serve only until the time that the lease program has last sent. Without messages, the init's own clock ends the
// term.
func TestAnInitServesWhileTheProgramOfTheLeaseSaysSo(t *testing.T) {
	p := newHeld(t.TempDir())
	if p.Check() == nil {
		t.Error("it serves before the program has said anything")
	}
	a := acquireHeld(t.Context(), p)
	p.HandleMessage("waits agents-1_7f3c\x1b")
	if h := acquireNow(t, a.busy, "word that it waits")(); h.String() != "another hinit, by its lease agents-1_7f3c" {
		t.Errorf("it waits for %v", h)
	}
	p.holds(-time.Second) // a message about a lease that has already ended
	p.holds(time.Hour)
	g := acquireNow(t, a.got, "lease")
	if g.err != nil || p.Check() != nil {
		t.Fatal(g.err, p.Check())
	}
	for range 3 {
		p.holds(150 * time.Millisecond)
	}
	begin := procstat.SinceBoot()
	if err := acquireNow(t, g.lost, "loss"); !strings.Contains(err.Error(), "renewed") {
		t.Error(err)
	}
	if took := procstat.SinceBoot() - begin; took < 100*time.Millisecond {
		t.Errorf("it was lost after %v", took)
	}
	if p.Check() == nil {
		t.Error("it serves without the lease")
	}
	a = acquireHeld(t.Context(), p)
	p.holds(time.Hour)
	g = acquireNow(t, a.got, "lease")
	p.HandleMessage("waits agents-1_7f3c")
	if err := acquireNow(t, g.lost, "loss"); !strings.Contains(err.Error(), "agents-1_7f3c") {
		t.Error(err)
	}
}

// Malformed messages of the lease program must change nothing.
func TestWordsThatAreNoneChangeNothing(t *testing.T) {
	p := newHeld(t.TempDir())
	for _, words := range []string{"", "held", "held ", "held x", "held -5", "held 99999999999999999999", "held 9007199254740993", "HELD 5", "free"} {
		p.HandleMessage(words)
		if left, waits := p.remaining(); left > 0 || waits {
			t.Errorf("%q: %v left, waits %v", words, left, waits)
		}
	}
}

// A second init on the same machine must wait for the lock of the directory, although it has the lease. A stopped init keeps
// that lock.
func TestTwoInitsOfOneMachineAreKeptApartWhateverTheLeaseSays(t *testing.T) {
	home := t.TempDir()
	one, two := newHeld(home), newHeld(home)
	one.holds(200 * time.Millisecond)
	g := acquireNow(t, acquireHeld(t.Context(), one).got, "lease")
	two.holds(time.Hour)
	a := acquireHeld(t.Context(), two)
	acquireNow(t, a.busy, "word that it waits")
	acquireNow(t, g.lost, "loss")
	select {
	case <-a.got:
		t.Fatal("the second init has the volume before the first one has ended its gateways")
	case <-time.After(50 * time.Millisecond): // a second init that does not wait would have got the lock by now
	}
	again := acquireHeld(t.Context(), one) // by now the first init has ended its services, so it asks for the lock again
	if g := acquireNow(t, a.got, "lock"); g.err != nil {
		t.Error(g.err)
	}
	one.HandleMessage("waits two")
	acquireNow(t, again.busy, "word that it waits")
}

// A re-executed hinit must keep the lease, and lose it at once if its time has passed.
func TestTheNextImageGoesOnWithTheLease(t *testing.T) {
	for left, lost := range map[time.Duration]bool{time.Hour: false, -time.Millisecond: true} {
		home := t.TempDir()
		one, next := newHeld(home), newHeld(home)
		one.holds(time.Hour)
		acquireNow(t, acquireHeld(t.Context(), one).got, "lease")
		one.holds(left)
		next.TakeOver(one.HandOver())
		g := acquireNow(t, acquireHeld(t.Context(), next).got, "lease")
		if g.err != nil || (next.Check() != nil) != lost {
			t.Error(g.err, next.Check())
		}
		if lost {
			acquireNow(t, g.lost, "loss")
		}
	}
}

// An init with the lease must serve a data directory that it may not open. It can't lock the directory and must not wait for
// the lock.
func TestALeaseServesADirectoryThatMayNotBeOpened(t *testing.T) {
	t.Parallel()
	home := agentsHome(t)
	if os.Geteuid() == 0 {
		must(t, os.Chown(home, 0, 0), os.Chmod(home, 0o700))
	}
	if !asAgent(t, home) {
		return
	}
	p := newHeld(home)
	p.holds(time.Hour)
	g := acquireNow(t, acquireHeld(t.Context(), p).got, "lease")
	if must(t, g.err, p.Check()); g.lost == nil {
		t.Error("the lease can't be lost")
	}
}
