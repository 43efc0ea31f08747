package promises_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// quick makes restarts frequent, so that they meet a fault often.
const quick = "restart: {initial: 50ms, max: 200ms, crash_loop_count: 1000}\nstop: {grace: 1s}\n"

// counter is a gateway that writes ascending numbers across its lives.
const counter = `exec 2>/dev/null # where a shell tells how its children have ended
n=0
trap 'exit 0' TERM
while :; do n=$((n + 1)); echo "line $n"; sleep 0.01; done
`

// checkIdleWhileServing fails the test if PID 1 spins or does not answer during a second with a fault.
func (b *testContainer) checkIdleWhileServing() {
	b.t.Helper()
	b.checkIdle(func() { b.status() })
}

// checkIdle fails the test unless PID 1 is idle for one second during the call. A spinning process has
// no such second.
func (b *testContainer) checkIdle(meanwhile func()) {
	b.t.Helper()
	within(b.t, patience, func() error {
		before, begin := b.usage(), time.Now()
		for time.Since(begin) < time.Second {
			meanwhile()
			<-time.After(50 * time.Millisecond)
		}
		if used, span := b.usage().cpu-before.cpu, time.Since(begin); used > span/2 {
			return fmt.Errorf("PID 1 was busy for %v of %v while nothing could be done", used, span)
		}
		return nil
	})
}

// signal signals every process of a service that is up.
func (b *testContainer) signal(service string, s unix.Signal) {
	b.t.Helper()
	within(b.t, patience, func() error {
		all := b.processesOf(service)
		if len(all) == 0 {
			return fmt.Errorf("%s has no process", service)
		}
		for _, p := range all {
			_ = unix.Kill(p.pid, s) // Ignore the error: the process may have ended.
		}
		return nil
	})
}

// TestTheKernelRefuses makes each system call of PID 1 fail with each realistic error. PID 1 must
// survive, report the truth, and recover.
func TestTheKernelRefuses(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	t.Run("starts", func(t *testing.T) {
		t.Parallel()
		b := newTestContainer(t, setup{faults: true, config: quick})
		b.profile("a", sleeper)
		b.profile("b", sleeper)
		b.boot()
		b.startAndAwait("b")
		for _, rule := range []string{"fork * EAGAIN", "fork * ENOMEM", "pipe * EMFILE", "pipe * ENFILE"} {
			b.setFaultRules(rule)
			if err := b.commandAndAwait("start", "a"); err == nil {
				t.Fatalf("%s: the start is said to have worked", rule)
			}
			s, err := b.service("b")
			b.check(err)
			b.signal("gateway-b", unix.SIGKILL)
			b.checkIdleWhileServing()
			within(t, patience, b.checkState("a", client.StateBackoff))
			within(t, patience, b.checkState("b", client.StateBackoff))
			b.setFaultRules()
			within(t, patience, b.checkState("a", client.StateUp))
			within(t, patience, func() error {
				now, err := b.service("b")
				if err == nil && (now.State != client.StateUp || now.PID == s.PID) {
					err = fmt.Errorf("b is %s as %d", now.State, now.PID)
				}
				return err
			})
			b.check(b.sendCommand("stop", "a"))
			sheet.add("faults", 1)
		}
	})
	t.Run("records of intent", func(t *testing.T) {
		t.Parallel()
		b := newTestContainer(t, setup{faults: true, config: quick})
		b.profile("a", sleeper)
		b.boot()
		b.startAndAwait("a")
		for i, call := range []string{"open", "write", "sync", "rename"} {
			for j, errno := range []string{"ENOSPC", "EIO", "EROFS", "ESTALE"} {
				if i != j && !*full {
					continue
				}
				b.setFaultRules(call+" gateway_state "+errno, call+" .hinit-reserve "+errno)
				err := b.commandAndAwait("stop", "a")
				unconfirmed := call == "sync" && err != nil && strings.Contains(err.Error(), "the disk has not confirmed its record")
				if err == nil || !unconfirmed && !strings.Contains(err.Error(), "cannot be recorded") {
					t.Fatalf("%s %s: the answer to a stop that can't be recorded is %v", call, errno, err)
				}
				within(t, patience, b.checkState("a", client.StateDown))
				if got := b.desired("a"); call != "sync" && got != "running" {
					t.Fatalf("%s %s: the disk says %q", call, errno, got)
				}
				b.setFaultRules()
				within(t, patience, func() error { return b.checkRestored("a", "stopped") })
				b.check(b.sendCommand("start", "a"), poll(patience, func() error { return b.checkRestored("a", "running") }))
				sheet.add("faults", 1)
			}
		}
		b.setFaultRules("write gateway_state short=1")
		b.check(b.sendCommand("stop", "a"), poll(patience, func() error { return b.checkRestored("a", "stopped") }))
	})
	t.Run("logs", func(t *testing.T) {
		t.Parallel()
		b := newTestContainer(t, setup{faults: true, config: quick})
		b.profile("a", counter)
		b.boot()
		b.startAndAwait("a")
		for _, rule := range []string{"write /current ENOSPC", "write /current EIO", "write /current EROFS", "write /current ESTALE", "write /current short=9"} {
			b.setFaultRules(rule, "rename /current EIO", "open current EMFILE")
			b.checkIdleWhileServing()
			b.setFaultRules()
			sheet.add("faults", 1)
		}
		b.check(b.commandAndAwait("stop", "a"))
		within(t, patience, func() error { return b.checkLog("a") })
	})
	t.Run("notifications", func(t *testing.T) {
		t.Parallel()
		b := newTestContainer(t, setup{faults: true, config: quick})
		for _, rule := range []string{"watch * EMFILE", "watch /home ENOSPC", "watch profiles ENOSPC"}[:shortOrFull(1, 3)] {
			b.setFaultRules(rule)
			b.boot()
			name := fmt.Sprintf("n%d", len(b.status().Services))
			b.profile(name, sleeper)
			within(t, patience, func() error { _, err := b.service(name); return err })
			b.kill()
			sheet.add("faults", 1)
		}
	})
	t.Run("a slow disk", func(t *testing.T) {
		t.Parallel()
		b := newTestContainer(t, setup{faults: true, config: quick})
		b.profile("a", sleeper)
		b.profile("b", sleeper)
		b.boot()
		b.startAndAwait("a", "b")
		begun := b.traceFile()
		b.setFaultRules("sync gateway_state delay=1h times=1 trace=" + begun)
		answered := make(chan error, 1)
		go func() { answered <- b.commandAndAwait("stop", "a") }()
		within(t, patience, func() error { // The sync must have begun, so that the other command is not the slow one.
			text, err := os.ReadFile(begun)
			if len(text) == 0 {
				return fmt.Errorf("the slow command does not wait for the disk yet, %w", err)
			}
			return nil
		})
		within(t, patience, func() error {
			if s, err := b.service("b"); err != nil || s.State != client.StateUp {
				return fmt.Errorf("b is %s, %w", s.State, err)
			}
			return b.commandAndAwait("stop", "b")
		})
		select {
		case err := <-answered:
			t.Errorf("the slow command was answered before the quick one: %v", err)
		default:
			b.setFaultRules()
			b.check(<-answered)
		}
		sheet.add("faults", 1)
	})
}

// checkLog returns an error unless a counter's log is complete.
func (b *testContainer) checkLog(profile string) error {
	lines, err := b.logLines(profile)
	if err != nil {
		return err
	}
	return checkConsecutive(lines)
}

// checkConsecutive returns an error unless the lines are consecutive counter lines.
func checkConsecutive(lines []string) error {
	next := 1
	for _, line := range lines {
		if strings.HasPrefix(line, "[hinit] ") {
			return fmt.Errorf("lines were lost: %s", line)
		}
		if line != fmt.Sprintf("line %d", next) {
			return fmt.Errorf("after line %d comes %q", next-1, line)
		}
		next++
	}
	if next < 10 {
		return fmt.Errorf("there are only %d lines", next-1)
	}
	sheet.add("lines", next-1)
	return nil
}

// TestAFullDiskAndAReadOnlyOne checks the shipped binary on a full and on a read-only disk.
func TestAFullDiskAndAReadOnlyOne(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick, stageConfig: stageConfig{}})
	b.Tmpfs = map[string]string{b.home: "mode=755,size=2m"}
	b.profile("a", counter)
	b.profile("b", sleeper)
	b.boot()
	b.startAndAwait("b")
	const fill = `cat /dev/zero >"$0/filler"; n=0; while echo x >"$0/filler$n"; do n=$((n + 1)); done; true`
	for _, bad := range []struct {
		name       string
		begin, end []string
	}{
		// A read-only remount fails while a file is open for writing, so it comes before the first log
		// line.
		{"read-only", []string{"mount", "-o", "remount,ro", b.home}, []string{"mount", "-o", "remount,rw", b.home}},
		{"full", []string{"sh", "-c", fill, b.home}, []string{"sh", "-c", `rm "$0"/filler*`, b.home}},
	} {
		name := bad.name
		if name == "full" {
			b.startAndAwait("a")
		}
		within(t, patience, func() error { // hinit may still be busy with earlier commands.
			out, err := b.enter(bad.begin...)
			if err != nil {
				err = fmt.Errorf("%s: %w: %s", name, err, out)
			}
			return err
		})
		// Each home has a reserve for the first command on a full disk. Both answers are correct.
		switch err := b.commandAndAwait("stop", "b"); {
		case err == nil && b.desired("b") == "stopped":
		case err != nil && name == "read-only" && strings.Contains(err.Error(), "cannot be recorded") && b.desired("b") == "running":
		default:
			t.Errorf("%s: the answer to a stop is %v, and the disk says %q", name, err, b.desired("b"))
		}
		within(t, patience, b.checkState("b", client.StateDown))
		b.checkIdleWhileServing()
		if name == "full" {
			b.check(b.checkState("a", client.StateUp)())
		}
		if out, err := b.enter(bad.end...); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		within(t, patience, func() error { return b.checkRestored("b", "stopped") })
		b.startAndAwait("b")
		sheet.add("faults", 1)
	}
	b.check(b.commandAndAwait("stop", "a"))
	within(t, patience, func() error { return b.checkLog("a") })
}

// TestNoMoreProcesses checks hinit while the agent's user uses up all permitted processes, in three
// ways.
func TestNoMoreProcesses(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	t.Run("of the user", func(t *testing.T) {
		t.Parallel()
		b := newTestContainer(t, setup{config: quick, uid: 10321, stageConfig: stageConfig{Limits: map[int]uint64{unix.RLIMIT_NPROC: 4}}})
		names := b.profiles(8, sleeper)
		b.boot()
		for _, name := range names {
			b.check(b.sendCommand("start", name))
		}
		b.checkIdleWhileServing()
		up, refused := 0, 0
		for _, s := range b.status().Services {
			switch {
			case s.State == client.StateUp:
				up++
			case strings.Contains(s.Reason+s.Problem, "temporarily unavailable"):
				refused++
			}
		}
		if up == 0 || refused == 0 {
			t.Fatalf("%d are up and %d were refused by the limit: %+v", up, refused, b.status().Services)
		}
		for _, name := range names[:6] {
			b.check(b.sendCommand("stop", name))
		}
		for _, name := range names[6:] {
			within(t, patience, b.checkState(name, client.StateUp))
		}
		sheet.add("faults", 1)
	})
	t.Run("of the container", func(t *testing.T) {
		t.Parallel()
		group := pidsGroup(t)
		b := newTestContainer(t, setup{config: quick, stageConfig: stageConfig{Cgroup: group}})
		names := b.profiles(20, sleeper)
		b.profile("bomb", "while :; do sleep 1000000 & done\n")
		b.boot()
		b.startAndAwait(names...)
		b.check(os.WriteFile(filepath.Join(group, "pids.max"), []byte("60"), 0))
		b.check(b.sendCommand("start", "bomb"))
		b.checkIdleWhileServing()
		for _, name := range names[:10] {
			b.check(b.sendCommand("restart", name))
		}
		b.requestStatusConcurrently(100)
		b.check(b.commandAndAwait("stop", "bomb"))
		for _, name := range names {
			within(t, patience, b.checkState(name, client.StateUp))
		}
		within(t, patience, b.checkReaped)
		sheet.add("faults", 1)
	})
	t.Run("open files", func(t *testing.T) {
		t.Parallel()
		b := newTestContainer(t, setup{config: quick, stageConfig: stageConfig{Limits: map[int]uint64{unix.RLIMIT_NOFILE: 160}}})
		names := b.profiles(5, sleeper)
		b.boot()
		b.startAndAwait(names...)
		clients := b.connect(200)
		b.signal("gateway-p000", unix.SIGKILL)
		b.checkIdle(func() {}) // hinit could not answer at the process limit.
		closeAll(clients)
		for _, name := range names {
			within(t, patience, b.checkState(name, client.StateUp))
		}
		sheet.add("faults", 1)
	})
}

// pidsGroup makes a control group that limits processes, or skips the test.
func pidsGroup(t *testing.T) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		dir, err := os.MkdirTemp(root, "hinit-promises-") //nolint:usetesting // the directory is a control group
		if err != nil {
			continue
		}
		t.Cleanup(func() {
			_ = poll(patience, func() error { return os.Remove(dir) }) // An error means that the kernel is still removing the group's processes.
		})
		if _, err := os.Stat(filepath.Join(dir, "pids.max")); err == nil {
			return dir
		}
	}
	t.Skip("no control group that counts processes can be made here")
	return ""
}

// TestFrozen checks hinit while single processes or the whole container are stopped.
func TestFrozen(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick})
	b.profile("a", sleeper)
	b.profile("deaf", "trap '' TERM\nwhile :; do sleep 1000000; done\n")
	b.boot()
	b.startAndAwait("a", "deaf")
	b.signal("gateway-a", unix.SIGSTOP)
	b.signal("gateway-deaf", unix.SIGSTOP)
	b.check(b.commandAndAwait("stop", "a"), b.commandAndAwait("stop", "deaf"))
	if left := append(b.processesOf("gateway-a"), b.processesOf("gateway-deaf")...); len(left) > 0 {
		t.Errorf("after their stop these are alive: %+v", left)
	}
	b.startAndAwait("a")
	was, err := b.service("a")
	b.check(err, b.cmd.Process.Signal(unix.SIGSTOP))
	<-time.After(1500 * time.Millisecond)
	b.check(b.cmd.Process.Signal(unix.SIGCONT))
	now, err := b.service("a")
	b.check(err)
	if now.RunNumber != was.RunNumber || now.State != client.StateUp {
		t.Errorf("after a pause a is %s in run %d; it was up in run %d", now.State, now.RunNumber, was.RunNumber)
	}
	b.check(b.commandAndAwait("stop", "a"))
	sheet.add("faults", 3)
}
