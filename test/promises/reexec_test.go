package promises_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// TestTermAroundAReexec sends TERM at random instants around the change of the image. It stops the container in order, unless it
// comes in the milliseconds in which the Go runtime of the new image starts: then it may be lost, or end the process. Before
// and after there is no such time, and the next TERM is always acted upon. For how long it was that time, each image tells.
func TestTermAroundAReexec(t *testing.T) {
	measuring(t)
	requireRoot(t)
	deaf := termsAroundAReexec(t, scale(8, 50), rand.New(rand.NewPCG(*seed, 9)))
	if len(deaf) > 0 {
		sheet.set("most deaf", deaf[len(deaf)/2].String())
	}
}

// TestTermAroundAReexecOnABusyMachine is the same more often, beside others.
func TestTermAroundAReexecOnABusyMachine(t *testing.T) {
	beside(t)
	requireRoot(t)
	if !*full {
		t.Skip("it takes minutes; the short form is TestTermAroundAReexec")
	}
	termsAroundAReexec(t, 150, rand.New(rand.NewPCG(*seed, 10)))
}

// termsAroundAReexec returns how long the images were deaf, the shortest time first.
func termsAroundAReexec(t *testing.T, rounds int, random *rand.Rand) (deaf []time.Duration) {
	t.Helper()
	b := newBox(t, setup{config: quick})
	b.profile("a", sleeper)
	const stopped, ended = 0, 2 // in order, and by the runtime
	gap := 0
	for range rounds {
		b.boot()
		b.check(b.tell("start", "a"))
		type span struct{ begin, end time.Time }
		changed := make(chan span, 1)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		go func() {
			s := span{begin: time.Now()}
			_, _ = b.client.Reexec(ctx, "") // a container that stops meanwhile does not answer
			s.end = time.Now()
			changed <- s
		}()
		<-time.After(time.Duration(random.IntN(30_000)) * time.Microsecond)
		before := time.Now()
		b.check(b.cmd.Process.Signal(unix.SIGTERM))
		after := time.Now()
		lost := false
		var s span
		select {
		case <-b.ended:
			cancel() // no answer comes
			s = <-changed
		case s = <-changed:
			if lost = b.goesOn(); lost {
				b.check(b.cmd.Process.Signal(unix.SIGTERM))
			}
		}
		code := b.wait(patience)
		cancel()
		inside := after.After(s.begin) && before.Before(s.end)
		if lost || code == ended {
			gap++
		}
		if !inside && (lost || code != stopped) || code != stopped && code != ended {
			t.Fatalf("the TERM came %v after the request and %v before its answer; lost: %v; exit code %d", before.Sub(s.begin), s.end.Sub(after), lost, code)
		}
	}
	sheet.add("terms", rounds)
	sheet.add("terms in the gap", gap)
	out, err := os.ReadFile(b.path("err"))
	b.check(err)
	for line := range strings.Lines(string(out)) {
		if _, d, told := strings.Cut(strings.TrimSpace(line), "deaf to signals for "); told {
			took, err := time.ParseDuration(d)
			b.check(err)
			deaf = append(deaf, took)
		}
	}
	slices.Sort(deaf)
	t.Logf("%d of %d came while a runtime started, which took %v", gap, rounds, deaf)
	return deaf
}

// goesOn tells whether a container has not begun to stop though it was able to: it has answered a hundred times since. How long
// that takes says nothing; it may not have been allowed to run.
func (b *box) goesOn() bool {
	answers := 0
	for end := time.Now().Add(patience); answers < 100 && b.running() && time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		s, err := b.client.Status(ctx)
		cancel()
		if err == nil && s.Init.Stopping {
			return false
		}
		if err == nil { // a container that ends does not answer
			answers++
		}
	}
	return b.running()
}

// TestAStopThatTheDiskRefusedIsRecordedByTheNextImage: the stop was answered as not recorded, the disk was well again, and a restart of
// the container brought the gateway back, because the image that was to try again had left.
func TestAStopThatTheDiskRefusedIsRecordedByTheNextImage(t *testing.T) {
	beside(t)
	requireRoot(t)
	b := newBox(t, setup{faults: true, config: quick})
	b.profile("a", sleeper)
	b.boot()
	b.up("a")
	b.fail("write gateway_state ENOSPC")
	if err := b.do("stop", "a"); err == nil || !strings.Contains(err.Error(), "cannot be recorded") {
		t.Fatalf("the answer to a stop that can't be recorded is %v", err)
	}
	within(t, patience, b.is("a", client.StateDown))
	b.reexec()
	within(t, patience, func() error { // the first look of the new image, which the disk refuses as well
		if n := b.status().Init.Image; n != 2 {
			return fmt.Errorf("it is image %d", n)
		}
		return nil
	})
	within(t, patience, func() error { // it looks at the volume, and that look is refused
		if !b.said("err", "cannot put desired_state back") {
			return errors.New("the new image has not looked yet")
		}
		return nil
	})
	if got := b.desired("a"); got != "running" {
		t.Fatalf("the disk says %q while it refuses every write", got)
	}
	b.fail()
	within(t, patience, func() error { return b.restored("a", "stopped") })
}

// TestAStandbyRunsItsHooksAfterAReexec: a container that became another image while it waited for the lease took over without its boot
// steps, as if it had done them.
func TestAStandbyRunsItsHooksAfterAReexec(t *testing.T) {
	beside(t)
	requireRoot(t)
	first := newBox(t, setup{order: order{Host: "c0"}, config: quick})
	first.profile("a", sleeper)
	first.boot()
	first.up("a")
	hooked := first.path("hooked")
	second := newBox(t, setup{
		order: order{Host: "c1"}, shares: first,
		config: quick + "boot: {hooks: [{command: [/bin/sh, -c, 'echo hooked >>" + hooked + "'], user: root}]}\n",
	})
	second.start()
	elsewhere := func(image int) func() error {
		return func() error {
			st, err := second.client.Status(t.Context())
			if err != nil {
				return err
			}
			if i := st.Init; i.Image != image || i.Booting || i.Lease == nil || i.Lease.State != client.LeaseWaiting {
				return fmt.Errorf("the second is %+v", i)
			}
			return nil
		}
	}
	within(t, patience, elsewhere(1))
	second.reexec()
	within(t, patience, elsewhere(2))
	first.stop()
	within(t, patience, second.is("a", client.StateUp))
	text, err := os.ReadFile(hooked)
	if err != nil || string(text) != "hooked\n" {
		t.Errorf("the boot steps of the second have written %q: %v", text, err)
	}
}
