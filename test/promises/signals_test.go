package promises_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/testkit"
)

// program returns a copy of this test binary that the agent's user can execute.
func (b *testContainer) program() string {
	b.t.Helper()
	name := b.path("program")
	if _, err := os.Stat(name); errors.Is(err, os.ErrNotExist) {
		text, err := os.ReadFile("/proc/self/exe")
		b.check(err, testkit.WriteProgram(name, text))
	}
	return name
}

// TestNoSignalKillsPID1 sends PID 1 every signal in every way. PID 1 must only do what the signals
// mean, and keep supervising.
func TestNoSignalKillsPID1(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	times := shortOrFull(20, 100)
	// These signals end the container; SIGINT only if it comes twice.
	ends := []string{fmt.Sprint(int(unix.SIGTERM)), fmt.Sprint(int(unix.SIGINT)), fmt.Sprint(int(unix.SIGPWR)), "37"}
	for _, user := range []int{agentID, 0} {
		t.Run(fmt.Sprintf("as %d", user), func(t *testing.T) {
			t.Parallel()
			b := newTestContainer(t, setup{config: quick, stageConfig: stageConfig{User: user}})
			b.cmdline = []string{"sh", "-c", "trap '' HUP QUIT USR1 USR2 WINCH; echo armed; while :; do sleep 1000000; done"}
			args := append([]string{b.program(), "testproc:signal", "1", fmt.Sprint(times)}, ends...)
			b.profile("a", sleeper)
			b.profile("hostile", strings.Join(args, " ")+" && exec sleep 1000000\n")
			b.boot()
			b.startAndAwait("a")
			within(t, patience, func() error { // Before that, a forwarded signal would end the CMD.
				if out, _ := os.ReadFile(b.path("out")); !strings.Contains(string(out), "armed\n") {
					return errors.New("the CMD is not armed")
				}
				return nil
			})
			before, err := b.service("a")
			b.check(err)
			if user == 0 {
				if out, err := b.enter(args...); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			} else {
				b.startAndAwait("hostile")
				within(t, patience, func() error {
					if !b.running() {
						return fmt.Errorf("%w with code %d", errHopeless, b.wait(patience))
					}
					lines, err := b.logLines("hostile")
					if len(lines) == 0 || lines[len(lines)-1] != "sent" {
						err = errors.Join(err, fmt.Errorf("the hostile one says %q", lines))
					}
					return err
				})
			}
			for _, s := range []string{"SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGSTKFLT", "SIGSYS"} {
				within(t, patience, func() error { return b.checkIgnored(s) })
			}
			now, err := b.service("a")
			b.check(err)
			if now.RunNumber != before.RunNumber || now.State != client.StateUp {
				t.Errorf("the gateway was in run %d and is in run %d, %s", before.RunNumber, now.RunNumber, now.State)
			}
			b.check(b.commandAndAwait("restart", "a"))
			if code, _ := b.stop(); code != 0 {
				t.Errorf("TERM ended the container with code %d", code)
			}
			sheet.add("hostile signals", 6*times*(64-len(ends)))
		})
	}
}

// TestSignalsThatTheRuntimeLeavesAloneDoNotKillPID1 sends signals 32 to 34, which a Go program
// partly does not handle. PID 1 must survive.
func TestSignalsThatTheRuntimeLeavesAloneDoNotKillPID1(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	times := shortOrFull(1000, 5000)
	b := newTestContainer(t, setup{config: quick, stageConfig: stageConfig{User: agentID}})
	args := []string{b.program(), "testproc:signal", "1", strconv.Itoa(times)}
	for n := 1; n < 65; n++ {
		if n < 32 || n > 34 {
			args = append(args, strconv.Itoa(n))
		}
	}
	hostile := []string{"hostile1", "hostile2"} // Send the signals in parallel.
	for _, name := range hostile {
		b.profile(name, strings.Join(args, " ")+" && exec sleep 1000000\n")
	}
	b.boot()
	for _, name := range hostile { // On a busy machine, hinit may not answer in time while the first one sends signals.
		within(t, patience, func() error { return b.sendCommand("start", name) })
	}
	for _, name := range hostile {
		within(t, 5*time.Minute, func() error { // Many signals take time, so wait longer.
			if !b.running() {
				t.Fatalf("PID 1 has ended, code %d", b.wait(patience))
			}
			lines, err := b.logLines(name)
			if len(lines) == 0 || lines[len(lines)-1] != "sent" {
				err = errors.Join(err, fmt.Errorf("the hostile one says %q", lines))
			}
			return err
		})
	}
	within(t, patience, func() error { return b.checkIgnored("signal 34") })
	if code, _ := b.stop(); code != 0 {
		t.Errorf("TERM ended the container with code %d", code)
	}
	sheet.add("hostile signals", 3*5*2*times)
}

// checkIgnored returns an error unless the events name an ignored signal and its sender.
func (b *testContainer) checkIgnored(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	count := 0
	pattern := regexp.MustCompile(`ignored signals .*\b(\d+) ` + name + `\b`)
	err := b.client.Events(ctx, client.EventOptions{}, func(e client.Event) error {
		if m := pattern.FindStringSubmatch(e.Reason); m != nil {
			n, _ := strconv.Atoi(m[1])
			count += n
		}
		return nil
	})
	if err == nil && count == 0 {
		err = fmt.Errorf("no event tells of %s", name)
	}
	return err
}
