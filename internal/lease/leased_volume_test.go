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

func newLeasedVolume(home string) *LeasedVolume {
	return NewLeasedVolume(home, fsutil.ProcessActor(), func(string) {})
}

// extendLease delivers the message of the lease program that the lease lasts for the time more.
func (p *LeasedVolume) extendLease(more time.Duration) {
	p.HandleMessage(fmt.Sprintf("held %d", (procstat.SinceBoot() + more).Microseconds()))
}

// acquireLeased calls Acquire in another goroutine.
func acquireLeased(ctx context.Context, p *LeasedVolume) pendingAcquire {
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
	p := newLeasedVolume(t.TempDir())
	if p.Check() == nil {
		t.Error("it serves before the program has said anything")
	}
	a := acquireLeased(t.Context(), p)
	p.HandleMessage("waits agents-1_7f3c\x1b")
	if h := receiveInTime(t, a.busy, "word that it waits")(); h.String() != "another hinit, by its lease agents-1_7f3c" {
		t.Errorf("it waits for %v", h)
	}
	p.extendLease(-time.Second) // a message about a lease that has already ended
	p.extendLease(time.Hour)
	g := receiveInTime(t, a.got, "lease")
	if g.err != nil || p.Check() != nil {
		t.Fatal(g.err, p.Check())
	}
	for range 3 {
		p.extendLease(150 * time.Millisecond)
	}
	begin := procstat.SinceBoot()
	if err := receiveInTime(t, g.lost, "loss"); !strings.Contains(err.Error(), "renewed") {
		t.Error(err)
	}
	if took := procstat.SinceBoot() - begin; took < 100*time.Millisecond {
		t.Errorf("it was lost after %v", took)
	}
	if p.Check() == nil {
		t.Error("it serves without the lease")
	}
	a = acquireLeased(t.Context(), p)
	p.extendLease(time.Hour)
	g = receiveInTime(t, a.got, "lease")
	p.HandleMessage("waits agents-1_7f3c")
	if err := receiveInTime(t, g.lost, "loss"); !strings.Contains(err.Error(), "agents-1_7f3c") {
		t.Error(err)
	}
}

// Malformed messages of the lease program must change nothing.
func TestWordsThatAreNoneChangeNothing(t *testing.T) {
	p := newLeasedVolume(t.TempDir())
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
	one, two := newLeasedVolume(home), newLeasedVolume(home)
	one.extendLease(200 * time.Millisecond)
	g := receiveInTime(t, acquireLeased(t.Context(), one).got, "lease")
	two.extendLease(time.Hour)
	a := acquireLeased(t.Context(), two)
	receiveInTime(t, a.busy, "word that it waits")
	receiveInTime(t, g.lost, "loss")
	select {
	case <-a.got:
		t.Fatal("the second init has the volume before the first one has ended its gateways")
	case <-time.After(50 * time.Millisecond): // a second init that does not wait would have got the lock by now
	}
	again := acquireLeased(t.Context(), one) // by now the first init has ended its services, so it asks for the lock again
	if g := receiveInTime(t, a.got, "lock"); g.err != nil {
		t.Error(g.err)
	}
	one.HandleMessage("waits two")
	receiveInTime(t, again.busy, "word that it waits")
}

// A re-executed hinit must keep the lease, and lose it at once if its time has passed.
func TestTheNextImageGoesOnWithTheLease(t *testing.T) {
	for left, lost := range map[time.Duration]bool{time.Hour: false, -time.Millisecond: true} {
		home := t.TempDir()
		one, next := newLeasedVolume(home), newLeasedVolume(home)
		one.extendLease(time.Hour)
		receiveInTime(t, acquireLeased(t.Context(), one).got, "lease")
		one.extendLease(left)
		next.TakeOver(one.HandOver())
		g := receiveInTime(t, acquireLeased(t.Context(), next).got, "lease")
		if g.err != nil || (next.Check() != nil) != lost {
			t.Error(g.err, next.Check())
		}
		if lost {
			receiveInTime(t, g.lost, "loss")
		}
	}
}

// An init with the lease must serve a data directory that it may not open. It can't lock the directory and must not wait for
// the lock.
func TestALeaseServesADirectoryThatMayNotBeOpened(t *testing.T) {
	t.Parallel()
	home := agentHome(t)
	if os.Geteuid() == 0 {
		must(t, os.Chown(home, 0, 0), os.Chmod(home, 0o700))
	}
	if !rerunAsAgent(t, home) {
		return
	}
	p := newLeasedVolume(home)
	p.extendLease(time.Hour)
	g := receiveInTime(t, acquireLeased(t.Context(), p).got, "lease")
	if must(t, g.err, p.Check()); g.lost == nil {
		t.Error("the lease can't be lost")
	}
}
