package lease

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"hinit/internal/fsutil"
)

func newHeld(home string) *LeasedVolume { return NewLeasedVolume(home, fsutil.Self(), func(string) {}) }

// holds tells a lock that it is held for some more time.
func (p *LeasedVolume) holds(more time.Duration) {
	p.HandleMessage(fmt.Sprintf("held %d", (bootTime() + more).Microseconds()))
}

// acquireHeld asks for the lock in the background.
func acquireHeld(ctx context.Context, p *LeasedVolume) asking {
	a := asking{make(chan func() Holder, 1), make(chan got, 1)}
	go func() {
		lost, err := p.Acquire(ctx, func(holder func() Holder) { a.busy <- holder })
		a.got <- got{lost, err}
	}()
	return a
}

// TestAnInitServesWhileTheProgramOfTheLeaseSaysSo, and no longer: it ends on its own clock when the program says nothing more.
func TestAnInitServesWhileTheProgramOfTheLeaseSaysSo(t *testing.T) {
	p := newHeld(t.TempDir())
	if p.Check() == nil {
		t.Error("it serves before the program has said anything")
	}
	a := acquireHeld(t.Context(), p)
	p.HandleMessage("waits agents-1_7f3c\x1b")
	if h := take(t, a.busy, "word that it waits")(); h.String() != "another hinit, by its lease agents-1_7f3c" {
		t.Errorf("it waits for %v", h)
	}
	p.holds(-time.Second) // an old word that has waited in the socket
	p.holds(time.Hour)
	g := take(t, a.got, "lease")
	if g.err != nil || p.Check() != nil {
		t.Fatal(g.err, p.Check())
	}
	for range 3 {
		p.holds(150 * time.Millisecond)
	}
	begin := bootTime()
	if err := take(t, g.lost, "loss"); !strings.Contains(err.Error(), "renewed") {
		t.Error(err)
	}
	if took := bootTime() - begin; took < 100*time.Millisecond {
		t.Errorf("it was lost after %v", took)
	}
	if p.Check() == nil {
		t.Error("it serves without the lease")
	}
	a = acquireHeld(t.Context(), p)
	p.holds(time.Hour)
	g = take(t, a.got, "lease")
	p.HandleMessage("waits agents-1_7f3c")
	if err := take(t, g.lost, "loss"); !strings.Contains(err.Error(), "agents-1_7f3c") {
		t.Error(err)
	}
}

// TestWordsThatAreNoneChangeNothing.
func TestWordsThatAreNoneChangeNothing(t *testing.T) {
	p := newHeld(t.TempDir())
	for _, words := range []string{"", "held", "held ", "held x", "held -5", "held 99999999999999999999", "held 9007199254740993", "HELD 5", "free"} {
		p.HandleMessage(words)
		if left, waits := p.remaining(); left > 0 || waits {
			t.Errorf("%q: %v left, waits %v", words, left, waits)
		}
	}
}

// TestTwoInitsOfOneMachineAreKeptApartWhateverTheLeaseSays: a stopped init keeps the directory, even when its lease has gone to the other.
func TestTwoInitsOfOneMachineAreKeptApartWhateverTheLeaseSays(t *testing.T) {
	home := t.TempDir()
	one, two := newHeld(home), newHeld(home)
	one.holds(200 * time.Millisecond)
	g := take(t, acquireHeld(t.Context(), one).got, "lease")
	two.holds(time.Hour)
	a := acquireHeld(t.Context(), two)
	take(t, a.busy, "word that it waits")
	take(t, g.lost, "loss")
	select {
	case <-a.got:
		t.Fatal("the second init has the volume before the first one has ended its gateways")
	case <-time.After(50 * time.Millisecond): // a wrong answer would be there
	}
	again := acquireHeld(t.Context(), one) // it has ended them
	if g := take(t, a.got, "lock"); g.err != nil {
		t.Error(g.err)
	}
	one.HandleMessage("waits two")
	take(t, again.busy, "word that it waits")
}

// TestTheNextImageGoesOnWithTheLease, and loses it at once where it has ended meanwhile.
func TestTheNextImageGoesOnWithTheLease(t *testing.T) {
	for left, lost := range map[time.Duration]bool{time.Hour: false, -time.Millisecond: true} {
		home := t.TempDir()
		one, next := newHeld(home), newHeld(home)
		one.holds(time.Hour)
		take(t, acquireHeld(t.Context(), one).got, "lease")
		one.holds(left)
		next.TakeOver(one.HandOver())
		g := take(t, acquireHeld(t.Context(), next).got, "lease")
		if g.err != nil || (next.Check() != nil) != lost {
			t.Error(g.err, next.Check())
		}
		if lost {
			take(t, g.lost, "loss")
		}
	}
}

// TestALeaseServesADirectoryThatMayNotBeOpened: the init waited for the lock of the directory for good, though it had the lease.
func TestALeaseServesADirectoryThatMayNotBeOpened(t *testing.T) {
	t.Parallel() // it waits
	home := agentsHome(t)
	if os.Geteuid() == 0 {
		must(t, os.Chown(home, 0, 0), os.Chmod(home, 0o700))
	}
	if !asAgent(t, home) {
		return
	}
	p := newHeld(home)
	p.holds(time.Hour)
	g := take(t, acquireHeld(t.Context(), p).got, "lease")
	if must(t, g.err, p.Check()); g.lost == nil {
		t.Error("the lease can't be lost")
	}
}
