package supervisor

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The most recently used service must start first. The others must say how many services are before them.
func TestOnlySoManyStartAtOnce(t *testing.T) {
	c := newMultiRig(t)
	c.machine.MaxStarting = 2
	p := testPolicy
	p.LimitedStarts, p.ReportsReadiness = true, true
	names := []string{"a", "b", "old", "new", "middle"}
	for i, name := range names {
		p.LastUsed = c.now.Add(-time.Duration([]int{9, 9, 3, 1, 2}[i]) * time.Hour)
		c.step(Add{Name: name, Policy: new(p), Want: WantUp})
	}
	see := func() string {
		var out []string
		for _, name := range names {
			s := c.machine.services[name]
			text := string(s.state)
			if s.state == Waiting {
				text = strings.TrimPrefix(s.reason, "waits for its turn ")
			}
			out = append(out, text)
		}
		return strings.Join(out, " ")
	}
	expect := func(want string) {
		t.Helper()
		if got := see(); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	}
	up := func(name string, pid int) { c.step(Spawned{name, pid}) }
	ready := func(name string) { c.step(Ready{name, c.machine.services[name].number, true, ""}) }
	up("a", 50)
	up("b", 51)
	expect("up up (2 before it) (0 before it) (1 before it)")
	ready("b")
	up("new", 52)
	expect("up up (1 before it) up (0 before it)")
	c.step(Stop{"middle"})
	expect("up up (0 before it) up down")
	c.step(Exited{Name: "new", PID: 52, Code: 1})
	up("old", 53)
	expect("up up up backoff down")
	c.advance(c.machine.services["new"].deadline.Sub(c.now))
	expect("up up up starting down")
	up("new", 54)
	c.step(Start{"middle"})
	expect("up up up up (0 before it)")
	if at, ok := c.machine.Deadline(); !ok || at.Sub(c.machine.services["a"].since) > startSlotTime {
		t.Fatalf("a start that never gets ready holds the others until %v", at)
	}
	c.advance(startSlotTime)
	expect("up up up up starting")
}

// After its first crash, a gateway that had become ready must start without a delay. After a second crash it must wait.
func TestTheFirstCrashOfAYoungGatewayCostsNoSecond(t *testing.T) {
	c := newMultiRig(t)
	p := testPolicy
	p.ReportsReadiness = true
	c.step(Add{Name: "a", Policy: new(p), Want: WantUp})
	crash := func(pid int, ready bool, want State) {
		t.Helper()
		c.step(Spawned{"a", pid})
		if ready {
			c.step(Ready{"a", c.machine.services["a"].number, true, ""})
		}
		c.now = c.now.Add(10 * time.Second)
		c.step(Exited{Name: "a", PID: pid, Code: -1, Signal: sigKill})
		if got := c.machine.services["a"].state; got != want {
			t.Fatalf("after its end it is %s, want %s", got, want)
		}
	}
	crash(50, true, Starting)
	crash(51, true, Backoff)
	c.advance(c.machine.services["a"].deadline.Sub(c.now))
	c.step(Spawned{"a", 52})
	c.advance(testPolicy.ResetAfter)
	c.step(Stop{"a"})
	c.step(Exited{Name: "a", PID: 52, Code: 0})
	c.step(Start{"a"})
	crash(53, false, Backoff)
}

// The explanation of a crash must be the last warning or error in the log, not a later line.
func TestTheCauseOfACrashLoopIsTheLastWarning(t *testing.T) {
	for want, tail := range map[string][]string{
		"exited with code 1: 12:00 ERROR refusing to bind 0.0.0.0": {"12:00 INFO starting", "12:00 ERROR refusing to bind 0.0.0.0", "12:00 INFO bye", ""},
		"exited with code 1: ValueError: no key":                   {"Traceback (most recent call last):", "ValueError: no key", "done"},
		"exited with code 1: bye":                                  {"hello", "bye", " "},
		"exited with code 1":                                       nil,
	} {
		if got := (&Exit{Code: 1, Cause: CauseCrash, Tail: tail}).Explanation(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// After a boot, the most recently used gateways must start first, not the first by name.
func TestTheLastUsedGatewayIsAmongTheFirstToStart(t *testing.T) {
	c := newMultiRig(t)
	c.machine.MaxStarting = 2
	p := testPolicy
	p.LimitedStarts, p.ReportsReadiness = true, true
	for i, name := range []string{"a", "b", "old", "new", "middle"} {
		p.LastUsed = c.now.Add(-time.Duration([]int{9, 9, 3, 1, 2}[i]) * time.Hour)
		c.step(Add{Name: name, Policy: new(p), Want: WantUp, Needs: []string{"profiles"}})
	}
	c.step(NeedMet{Need: "profiles"})
	for name, want := range map[string]State{"a": Waiting, "b": Waiting, "old": Waiting, "new": Starting, "middle": Starting} {
		if got := c.machine.services[name].state; got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// A gateway whose last use is time 0 must wait in the queue like the others. An agent can set the time of its files to 0.
func TestAGatewayOf1970WaitsForItsTurn(t *testing.T) {
	c := newMultiRig(t)
	c.machine.MaxStarting = 1
	p := testPolicy
	p.LimitedStarts, p.ReportsReadiness = true, true
	for _, name := range []string{"a", "b", "c"} {
		p.LastUsed = time.Unix(0, 0)
		c.step(Add{Name: name, Policy: new(p), Want: WantUp})
	}
	if c.machine.services["b"].queuePosition == 0 || c.machine.services["c"].queuePosition == 0 || len(c.machine.queue) != 2 {
		t.Errorf("places %d and %d in a line of %d", c.machine.services["b"].queuePosition, c.machine.services["c"].queuePosition, len(c.machine.queue))
	}
}

// Services that never report readiness must not delay each other by 5 s each when many are started.
func TestManyThatNeverGetReadyDoNotWaitForEachOther(t *testing.T) {
	c := newMultiRig(t)
	c.machine.MaxStarting = 2
	const many = 100
	p := testPolicy
	p.LimitedStarts, p.ReportsReadiness = true, true
	for i := range many {
		name := fmt.Sprint("s", i)
		c.step(Add{Name: name, Policy: new(p), Want: WantUp})
	}
	began, pid := c.now, 100
	for up := 0; up < many; {
		for i := range many {
			if s := c.machine.services[fmt.Sprint("s", i)]; s.state == Starting {
				pid++
				up++
				c.step(Spawned{s.name, pid})
			}
		}
		if up < many {
			at, ok := c.machine.Deadline()
			if !ok {
				t.Fatalf("%d are up, and nothing is due", up)
			}
			c.advance(max(at.Sub(c.now), time.Millisecond))
		}
	}
	if took := c.now.Sub(began); took > many*time.Second {
		t.Errorf("the last one starts after %v", took)
	}
}

// Once a service is ready, more services than the limit may start, because a starting service does not use the processor all the
// time.
func TestMoreStartWhenOneIsReady(t *testing.T) {
	c := newMultiRig(t)
	c.machine.MaxStarting, c.machine.ExtraStarting = 2, 1
	p := testPolicy
	p.LimitedStarts, p.ReportsReadiness = true, true
	for i := range 6 {
		c.step(Add{Name: fmt.Sprint("s", i), Policy: new(p), Want: WantUp})
	}
	starting := func() (n int) {
		for _, s := range c.machine.services {
			if s.state == Starting {
				n++
			}
		}
		return n
	}
	if n := starting(); n != 2 {
		t.Fatalf("%d start at first", n)
	}
	c.step(Spawned{"s0", 50})
	c.step(Ready{"s0", c.machine.services["s0"].number, true, ""})
	if n := starting(); n != 3 {
		t.Errorf("%d start when one is ready", n)
	}
}

// If one command starts many gateways long after the boot, only one gateway for each processor may begin at first. With twice
// as many, the first would be ready as late as the second.
func TestTheFirstOfALaterBatchHasTheProcessorsToItself(t *testing.T) {
	c := newMultiRig(t)
	c.machine.MaxStarting, c.machine.ExtraStarting = 2, 2
	p := testPolicy
	p.LimitedStarts, p.ReportsReadiness = true, true
	c.step(Add{Name: "default", Policy: new(p), Want: WantUp})
	c.step(Spawned{"default", 50})
	c.step(Ready{"default", c.machine.services["default"].number, true, ""})
	c.advance(time.Hour)
	for i := range 6 {
		c.step(Add{Name: fmt.Sprint("s", i), Policy: new(p), Want: WantDown})
	}
	for i := range 6 {
		c.step(Start{fmt.Sprint("s", i)})
	}
	if n := len(c.machine.inTurn); n != 2 || len(c.machine.queue) != 4 {
		t.Errorf("%d start and %d wait", n, len(c.machine.queue))
	}
}
