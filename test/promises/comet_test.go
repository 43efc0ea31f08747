package promises_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/client"
)

// TestStopEndsAComet checks that stop leaves none of a gateway's processes, even a daemon that
// forks, calls setsid and exits for ever.
func TestStopEndsAComet(t *testing.T) {
	parallelMeasurement(t)
	requireRoot(t)
	over := stopComets(t, shortOrFull(2, 20))
	sheet.set("worst comet", over[len(over)-1].Round(time.Millisecond).String())
}

// TestStopEndsACometOnABusyMachine is TestStopEndsAComet with more repetitions, beside other tests.
func TestStopEndsACometOnABusyMachine(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	if !*full {
		t.Skip("it takes a minute; the short form is TestStopEndsAComet")
	}
	stopComets(t, 30)
}

// stopComets returns by how much the stops exceeded the grace, sorted.
func stopComets(t *testing.T, times int) (over []time.Duration) {
	t.Helper()
	const grace = 500 * time.Millisecond
	b := newTestContainer(t, setup{config: fmt.Sprintf("stop: {grace: %v}\n", grace)})
	script := "exec " + b.program() + " testproc:comet\n"
	b.profile("comet", script)
	b.profile("calm", sleeper)
	b.boot()
	b.startAndAwait("calm")
	for range times {
		b.startAndAwait("comet")
		before := b.status().Init.OrphansReaped
		within(t, patience, func() error { // The daemon must run before the stop.
			if n := b.status().Init.OrphansReaped - before; n < 100 {
				return fmt.Errorf("only %d orphans", n)
			}
			return nil
		})
		b.check(b.commandAndAwait("stop", "comet"))
		over = append(over, b.stopTime("gateway-comet")-grace)
		down := b.status().Init.OrphansReaped
		if left := b.liveProcesses(); len(left) != 2 { // Only the CMD and the other gateway may remain.
			t.Errorf("after the stop these are alive: %+v", left)
		}
		// During the restart, a surviving daemon would fork many times.
		b.check(b.commandAndAwait("restart", "calm"))
		if n := b.status().Init.OrphansReaped - down; n > 20 { // Count only processes that ended after the stop.
			t.Errorf("after the stop %d more of it have ended", n)
		}
		sheet.add("comets", 1)
	}
	slices.Sort(over)
	t.Logf("beyond the grace: %v", over)
	b.check(b.checkState("calm", client.StateUp)())
	if code, _ := b.stop(); code != 0 {
		t.Errorf("the container ended with code %d", code)
	}
	return over
}

// TestStopEndsAProcessWhoseFirstThreadHasEnded checks that stop ends a daemon whose main thread has
// exited, which the kernel shows as a zombie.
func TestStopEndsAProcessWhoseFirstThreadHasEnded(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: "stop: {grace: 200ms}\n"})
	b.profile("headless", "exec "+b.program()+" testproc:escape clean headless\n")
	b.boot()
	for range shortOrFull(1, 50) {
		b.startAndAwait("headless")
		within(t, patience, func() error {
			for _, p := range b.liveProcesses() {
				if p.state == 'Z' {
					return nil
				}
			}
			return fmt.Errorf("no process without its first thread: %+v", b.liveProcesses())
		})
		b.check(b.commandAndAwait("stop", "headless"))
		if left := b.liveProcesses(); len(left) != 1 { // Only the CMD may remain.
			t.Errorf("after the stop these are alive: %+v", left)
		}
		sheet.add("stops", 1)
	}
}

// TestStopNamesAProcessThatHidesWhoseItIs checks that stop reports a leftover daemon that has no
// sign of its service.
func TestStopNamesAProcessThatHidesWhoseItIs(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: "stop: {grace: 200ms}\n"})
	b.profile("sly", "exec "+b.program()+" testproc:hide\n")
	b.profile("calm", sleeper)
	b.boot()
	b.startAndAwait("sly", "calm")
	within(t, patience, func() error {
		list := b.liveProcesses()
		if len(list) != 4 || slices.ContainsFunc(list, func(p process) bool { return p.ppid != b.cmd.Process.Pid }) {
			return fmt.Errorf("alive are %+v, not the CMD, two gateways, and the daemon whose parents have ended", list)
		}
		return nil
	})
	main, err := b.service("sly")
	b.check(err)
	calm, err := b.service("calm")
	b.check(err)
	b.check(b.commandAndAwait("stop", "sly"))
	hidden := ""
	for _, p := range b.liveProcesses() {
		// The CMD is older than the gateways. Outer PIDs wrap around.
		if p.ppid == b.cmd.Process.Pid && p.uid == b.uid && p.innerPID != calm.PID && p.innerPID > main.PID {
			hidden = fmt.Sprintf("process %d hides which service it is of", p.innerPID)
		}
	}
	s, err := b.service("sly")
	b.check(err)
	if hidden == "" || s.State != client.StateDown || !strings.Contains(s.Reason, hidden) {
		t.Errorf("the service is %s (%s), without %q", s.State, s.Reason, hidden)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	told := 0
	b.check(b.client.Events(ctx, client.EventOptions{}, func(e client.Event) error {
		if e.FromState == e.ToState && e.Service == "gateway-sly" && strings.Contains(e.Reason, hidden) {
			told++
		}
		return nil
	}))
	if told != 1 {
		t.Errorf("the events tell of it %d times", told)
	}
	b.check(b.checkState("calm", client.StateUp)())
}

// TestStopEndsASiblingOfTheGateway checks that stop ends a process that a gateway created as a
// child of hinit (CLONE_PARENT).
func TestStopEndsASiblingOfTheGateway(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: "stop: {grace: 200ms}\n"})
	b.profile("sibling", "exec "+b.program()+" testproc:sibling\n")
	b.boot()
	for range shortOrFull(3, 50) {
		b.startAndAwait("sibling")
		within(t, patience, func() error {
			if list := b.liveProcesses(); len(list) != 3 { // Three processes are expected: the CMD, the gateway and its sibling.
				return fmt.Errorf("alive are %+v", list)
			}
			return nil
		})
		b.check(b.commandAndAwait("stop", "sibling"))
		if left := b.liveProcesses(); len(left) != 1 {
			t.Errorf("after the stop these are alive: %+v", left)
		}
		sheet.add("stops", 1)
	}
}
