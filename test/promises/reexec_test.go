package promises_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// TestTermAroundAReexec sends SIGTERM at random instants around a re-execution. It must stop the
// container, except in the milliseconds in which the Go runtime starts.
func TestTermAroundAReexec(t *testing.T) {
	parallelMeasurement(t)
	requireRoot(t)
	deaf := termsAroundAReexec(t, shortOrFull(8, 50), rand.New(rand.NewPCG(*seed, 9)))
	if len(deaf) > 0 {
		sheet.set("most deaf", deaf[len(deaf)/2].String())
	}
}

// TestTermAroundAReexecOnABusyMachine is TestTermAroundAReexec with more repetitions, beside other tests.
func TestTermAroundAReexecOnABusyMachine(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	if !*full {
		t.Skip("it takes minutes; the short form is TestTermAroundAReexec")
	}
	termsAroundAReexec(t, 150, rand.New(rand.NewPCG(*seed, 10)))
}

// termsAroundAReexec sends SIGTERM around re-executions. It returns, sorted, how long each new program reports that it was deaf
// to signals.
func termsAroundAReexec(t *testing.T, rounds int, random *rand.Rand) (deaf []time.Duration) {
	t.Helper()
	b := newTestContainer(t, setup{config: quick})
	b.profile("a", sleeper)
	const stopped, ended = 0, 2 // Exit codes after a stop in order, and after a default SIGTERM.
	gap := 0
	for range rounds {
		b.boot()
		b.check(b.sendCommand("start", "a"))
		type span struct{ begin, end time.Time }
		changed := make(chan span, 1)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		go func() {
			s := span{begin: time.Now()}
			_, _ = b.client.Reexec(ctx, "") // A stopping container does not answer.
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
			cancel() // No answer comes after the container has stopped.
			s = <-changed
		case s = <-changed:
			if lost = b.keepsServing(); lost {
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
		if _, d, found := strings.Cut(strings.TrimSpace(line), "deaf to signals for "); found {
			d, _, _ = strings.Cut(d, ";")
			took, err := time.ParseDuration(d)
			b.check(err)
			deaf = append(deaf, took)
		}
	}
	slices.Sort(deaf)
	t.Logf("%d of %d came while a runtime started, which took %v", gap, rounds, deaf)
	return deaf
}

// keepsServing reports whether a container has not begun to stop: it has answered a hundred times since.
func (b *testContainer) keepsServing() bool {
	answers := 0
	for end := time.Now().Add(patience); answers < 100 && b.running() && time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		s, err := b.client.Status(ctx)
		cancel()
		if err == nil && s.Init.Stopping {
			return false
		}
		if err == nil { // A stopping container does not answer.
			answers++
		}
	}
	return b.running()
}

// TestAStopThatTheDiskRefusedIsRecordedByTheNextImage checks that a re-executed hinit records a
// stop that its predecessor could not write.
func TestAStopThatTheDiskRefusedIsRecordedByTheNextImage(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{faults: true, config: quick})
	b.profile("a", sleeper)
	b.boot()
	b.startAndAwait("a")
	b.setFaultRules("write gateway_state ENOSPC", "write .hinit-reserve ENOSPC")
	if err := b.commandAndAwait("stop", "a"); err == nil || !strings.Contains(err.Error(), "cannot be recorded") {
		t.Fatalf("the answer to a stop that can't be recorded is %v", err)
	}
	within(t, patience, b.checkState("a", client.StateDown))
	b.reexec()
	within(t, patience, func() error { // The disk also refuses the first attempt of the new program.
		if n := b.status().Init.Generation; n != 2 {
			return fmt.Errorf("it is image %d", n)
		}
		return nil
	})
	within(t, patience, func() error { // The new program reads the volume, and the disk refuses the write.
		if !b.outputContains("err", "cannot put desired_state back") {
			return errors.New("the new image has not looked yet")
		}
		return nil
	})
	if got := b.desired("a"); got != "running" {
		t.Fatalf("the disk says %q while it refuses every write", got)
	}
	b.setFaultRules()
	within(t, patience, func() error { return b.checkRestored("a", "stopped") })
}

// TestAStandbyRunsItsHooksAfterAReexec checks that a standby that was re-executed runs its boot
// steps when it takes over.
func TestAStandbyRunsItsHooksAfterAReexec(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	first := newTestContainer(t, setup{stageConfig: stageConfig{Host: "c0"}, config: quick})
	first.profile("a", sleeper)
	first.boot()
	first.startAndAwait("a")
	hooked := first.path("hooked")
	second := newTestContainer(t, setup{
		stageConfig: stageConfig{Host: "c1"}, shares: first,
		config: quick + "boot: {hooks: [{command: [/bin/sh, -c, 'echo hooked >>" + hooked + "'], user: root}]}\n",
	})
	second.start()
	elsewhere := func(image int) func() error {
		return func() error {
			st, err := second.client.Status(t.Context())
			if err != nil {
				return err
			}
			if i := st.Init; i.Generation != image || i.Booting || i.Lease == nil || i.Lease.State != client.LeaseWaiting {
				return fmt.Errorf("the second is %+v", i)
			}
			return nil
		}
	}
	within(t, patience, elsewhere(1))
	second.reexec()
	within(t, patience, elsewhere(2))
	first.stop()
	within(t, patience, second.checkState("a", client.StateUp))
	text, err := os.ReadFile(hooked)
	if err != nil || string(text) != "hooked\n" {
		t.Errorf("the boot steps of the second have written %q: %v", text, err)
	}
}

// pidBomb is a fork bomb that takes every process number.
const pidBomb = "renice -n 10 $$ >/dev/null\nb() { while :; do command eval 'b &'; done; }\nb 2>/dev/null\n"

// TestPID1SurvivesItsOwnExecUnderAForkBomb re-executes hinit beside a fork bomb. PID 1 must
// survive, although it may be unable to create threads.
func TestPID1SurvivesItsOwnExecUnderAForkBomb(t *testing.T) {
	requireRoot(t)
	for _, limit := range []int{64, 150, 256} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			parallelLong(t)
			b, names := startForkBomb(t, limit, 10)
			pids := func() (all []int) {
				for _, name := range names {
					s, err := b.service(name)
					b.check(err)
					all = append(all, s.PID)
				}
				return all
			}
			before := pids()
			rounds := shortOrFull(4, 200)
			for range rounds {
				b.full()
				b.reexec()
			}
			if after := pids(); !slices.Equal(before, after) {
				t.Errorf("the gateways were %v and are %v", before, after)
			}
			if n := b.status().Init.Generation; n != rounds+1 {
				t.Errorf("it is image %d after %d re-executions", n, rounds)
			}
			b.check(b.commandAndAwait("stop", "bomb"))
			within(t, patience, b.checkReaped)
			within(t, patience, b.allMove)
			sheet.add("re-executions under a bomb", rounds)
			if still := b.pauseTimes(); len(still) > 0 {
				t.Logf("everything stood still for %v at least, %v at the median, %v at most", still[0], still[len(still)/2], still[len(still)-1])
			}
			for i := range shortOrFull(1, 50) {
				b, names := startForkBomb(t, limit, 2)
				b.full()
				b.check(os.WriteFile(b.path("run/panic.new"), []byte([]string{"loop", "goroutine"}[i%2]), 0o644), os.Rename(b.path("run/panic.new"), b.path("run/panic")))
				within(t, patience, func() error {
					if s, err := b.client.Status(t.Context()); err != nil || s.Init.Generation != 2 {
						return errors.Join(fmt.Errorf("it is image %d", s.Init.Generation), err)
					}
					return nil
				})
				b.check(b.checkState(names[1], client.StateUp)(), b.commandAndAwait("stop", "bomb"), b.allMove())
				sheet.add("panics under a bomb", 1)
				b.kill()
			}
		})
	}
}

// TestAReexecAsTheAgentsUserSurvivesAForkBomb checks a re-execution of a non-root PID 1 under a
// fork bomb, where RLIMIT_NPROC counts PID 1's threads.
func TestAReexecAsTheAgentsUserSurvivesAForkBomb(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	const limit, user = 120, 10421
	b := newTestContainer(t, setup{config: quick, uid: user, stageConfig: stageConfig{Cgroup: pidsGroup(t), User: user, Limits: map[int]uint64{unix.RLIMIT_NPROC: limit}}})
	names := b.profiles(5, sleeper)
	b.profile("bomb", pidBomb)
	b.boot()
	b.startAndAwait(names...)
	b.check(b.sendCommand("start", "bomb"))
	rounds := shortOrFull(3, 50)
	for range rounds {
		b.awaitCrowdedCgroup(limit)
		b.reexec()
	}
	b.check(b.commandAndAwait("stop", "bomb"), b.checkState(names[0], client.StateUp)(), b.allMove())
	within(t, patience, b.pausedTimes(rounds))
}

// TestAReexecResumesWhatItHasStoppedAndNothingElse checks that a process that was stopped before a
// re-execution stays stopped.
func TestAReexecResumesWhatItHasStoppedAndNothingElse(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick, stageConfig: stageConfig{Cgroup: pidsGroup(t)}})
	b.profile("a", sleeper)
	b.profile("shell", "exec /bin/bash -c 'set -m; sleep 1000000; echo the job was seen stopped; exec sleep 1000000'\n")
	b.boot()
	b.startAndAwait("a", "shell")
	b.signal("gateway-a", unix.SIGSTOP)
	within(t, patience, func() error {
		if p := b.processesOf("gateway-a"); len(p) != 1 || p[0].state != 'T' {
			return errors.New("gateway-a is not stopped")
		}
		return nil
	})
	// This limit leaves space for docker exec and no other process.
	b.check(os.WriteFile(filepath.Join(b.Cgroup, "pids.max"), []byte(strconv.Itoa(b.pids(b.Cgroup)+9)), 0))
	rounds := shortOrFull(5, 100)
	for range rounds {
		b.reexec()
	}
	within(t, patience, b.pausedTimes(rounds))
	stopped := b.processesOf("gateway-a")[0].pid
	for _, p := range b.liveProcesses() {
		if (p.pid == stopped) != (p.state == 'T') {
			t.Errorf("process %d (%s) is in state %c", p.innerPID, p.name, p.state)
		}
	}
	if lines, err := b.logLines("shell"); err != nil && !errors.Is(err, os.ErrNotExist) || len(lines) > 0 {
		t.Errorf("the shell says %q: %v", lines, err)
	}
}

// TestAReexecThatCouldEndHinitIsRefused checks that a hinit below another PID 1 refuses a
// re-execution at the process limit.
func TestAReexecThatCouldEndHinitIsRefused(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick, stageConfig: stageConfig{Cgroup: pidsGroup(t), Below: true}})
	b.profile("a", sleeper)
	b.boot()
	b.startAndAwait("a")
	b.check(os.WriteFile(filepath.Join(b.Cgroup, "pids.max"), []byte(strconv.Itoa(b.pids(b.Cgroup)+9)), 0))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := b.client.Reexec(ctx, "")
	if err == nil || !strings.Contains(err.Error(), "the new program might not get its threads") || !strings.Contains(err.Error(), "only process 1") {
		t.Errorf("the answer is %v", err)
	}
	b.check(b.checkState("a", client.StateUp)(), b.allMove(), os.WriteFile(filepath.Join(b.Cgroup, "pids.max"), []byte("max"), 0))
	b.reexec()
	b.check(b.checkState("a", client.StateUp)())
}

// TestAReexecIntoAProgramThatIsNoHinitIsRefused checks that root can't end a container through the API, with a program that
// is no hinit. Another hinit passes the trial and takes over.
func TestAReexecIntoAProgramThatIsNoHinitIsRefused(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick})
	b.profile("a", sleeper)
	b.boot()
	b.startAndAwait("a")
	for _, program := range []string{"/bin/echo", "/bin/false", "/bin/cat"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := b.client.Reexec(ctx, program)
		cancel()
		if err == nil || !strings.Contains(err.Error(), "the program takes over no state of format") {
			t.Errorf("%s: the answer is %v", program, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := b.client.Reexec(ctx, built.faulty); err != nil {
		t.Errorf("another hinit: %v", err)
	}
	b.reexec()
	b.check(b.checkState("a", client.StateUp)())
}

// startForkBomb boots a container whose control group has no free process number.
func startForkBomb(t *testing.T, limit, gateways int) (b *testContainer, names []string) {
	t.Helper()
	group := pidsGroup(t)
	b = newTestContainer(t, setup{config: quick, faults: true, stageConfig: stageConfig{Cgroup: group}})
	names = b.profiles(gateways, sleeper)
	b.profile("bomb", pidBomb)
	b.check(os.WriteFile(filepath.Join(group, "pids.max"), []byte(strconv.Itoa(limit)), 0))
	b.boot()
	b.startAndAwait(names...)
	b.check(b.sendCommand("start", "bomb"))
	return b, names
}

// full waits until the control group has no free process number.
func (b *testContainer) full() {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.Cgroup, "pids.max"))
	b.check(err)
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	b.check(err)
	b.awaitCrowdedCgroup(limit)
}

// awaitCrowdedCgroup waits until the control group is at most one below its limit of processes and threads.
func (b *testContainer) awaitCrowdedCgroup(limit int) {
	b.t.Helper()
	within(b.t, patience, func() error {
		if n := b.pids(b.Cgroup); n < limit-1 {
			return fmt.Errorf("%d of %d process numbers are taken", n, limit)
		}
		return nil
	})
}

// allMove returns an error while a process of the container is stopped (state T).
func (b *testContainer) allMove() error {
	for _, p := range b.liveProcesses() {
		if p.state == 'T' {
			return fmt.Errorf("process %d (%s) is still stopped", p.innerPID, p.name)
		}
	}
	return nil
}

// pausedTimes checks how many times hinit stopped all other processes.
func (b *testContainer) pausedTimes(times int) func() error {
	return func() error {
		if n := len(b.pauseTimes()); n != times {
			return fmt.Errorf("everything stood still %d times, not %d", n, times)
		}
		return nil
	}
}

// pauseTimes returns how long each re-execution stopped all processes, sorted.
func (b *testContainer) pauseTimes() (all []time.Duration) {
	b.t.Helper()
	out, err := os.ReadFile(b.path("err"))
	b.check(err)
	for line := range strings.Lines(string(out)) {
		if _, d, found := strings.Cut(strings.TrimSpace(line), "stood still for "); found {
			took, err := time.ParseDuration(d)
			b.check(err)
			all = append(all, took)
		}
	}
	slices.Sort(all)
	return all
}
