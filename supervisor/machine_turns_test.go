package supervisor

import (
	"strings"
	"testing"
	"time"
)

// TestOnlySoManyStartAtOnce, the one that was used last first, and the others say how many are before them.
func TestOnlySoManyStartAtOnce(t *testing.T) {
	c := newCrew(t)
	c.m.Parallel = 2
	p := policy
	p.Turns, p.Announces = true, true
	names := []string{"a", "b", "old", "new", "middle"}
	for i, name := range names {
		p.Used = c.now.Add(-time.Duration([]int{9, 9, 3, 1, 2}[i]) * time.Hour)
		c.do(Add{Name: name, Policy: p, Want: WantUp})
	}
	see := func() string {
		var out []string
		for _, name := range names {
			s := c.m.services[name]
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
	up := func(name string, pid int) { c.do(Spawned{name, pid}) }
	ready := func(name string) { c.do(Ready{name, c.m.services[name].id, true, ""}) }
	up("a", 50)
	up("b", 51)
	expect("up up (2 before it) (0 before it) (1 before it)")
	ready("b")
	up("new", 52)
	expect("up up (1 before it) up (0 before it)")
	c.do(Stop{"middle"})
	expect("up up (0 before it) up down")
	c.do(Exited{Name: "new", PID: 52, Code: 1})
	up("old", 53)
	expect("up up up backoff down")
	c.wait(c.m.services["new"].deadline.Sub(c.now)) // a restart waits for no turn
	expect("up up up starting down")
	up("new", 54)
	c.do(Start{"middle"})
	expect("up up up up (0 before it)")
	if at, ok := c.m.Deadline(); !ok || at.Sub(c.m.services["a"].since) > turnTime {
		t.Fatalf("a start that never gets ready holds the others until %v", at)
	}
	c.wait(turnTime)
	expect("up up up up starting")
}

// TestTheFirstCrashOfAYoungGatewayCostsNoSecond, if it had become ready; one that dies twice waits.
func TestTheFirstCrashOfAYoungGatewayCostsNoSecond(t *testing.T) {
	c := newCrew(t)
	p := policy
	p.Announces = true
	c.do(Add{Name: "a", Policy: p, Want: WantUp})
	crash := func(pid int, ready bool, want State) {
		t.Helper()
		c.do(Spawned{"a", pid})
		if ready {
			c.do(Ready{"a", c.m.services["a"].id, true, ""})
		}
		c.now = c.now.Add(10 * time.Second)
		c.do(Exited{Name: "a", PID: pid, Code: -1, Signal: sigKill})
		if got := c.m.services["a"].state; got != want {
			t.Fatalf("after its end it is %s, want %s", got, want)
		}
	}
	crash(50, true, Starting)
	crash(51, true, Backoff)
	c.wait(c.m.services["a"].deadline.Sub(c.now))
	c.do(Spawned{"a", 52})
	c.wait(policy.ResetAfter)
	c.do(Stop{"a"})
	c.do(Exited{Name: "a", PID: 52, Code: 0})
	c.do(Start{"a"})
	crash(53, false, Backoff)
}

// TestTheCauseOfACrashLoopIsTheLastWarning, not the line that comes after it.
func TestTheCauseOfACrashLoopIsTheLastWarning(t *testing.T) {
	for want, tail := range map[string][]string{
		"exited with code 1: 12:00 ERROR refusing to bind 0.0.0.0": {"12:00 INFO starting", "12:00 ERROR refusing to bind 0.0.0.0", "12:00 INFO bye", ""},
		"exited with code 1: ValueError: no key":                   {"Traceback (most recent call last):", "ValueError: no key", "done"},
		"exited with code 1: bye":                                  {"hello", "bye", " "},
		"exited with code 1":                                       nil,
	} {
		if got := (&Exit{Code: 1, Cause: CauseCrash, Tail: tail}).Words(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestAGatewayOf1970WaitsForItsTurn: the agent has set the time of its files to 0, which stood for no place in the line.
func TestAGatewayOf1970WaitsForItsTurn(t *testing.T) {
	c := newCrew(t)
	c.m.Parallel = 1
	p := policy
	p.Turns, p.Announces = true, true
	for _, name := range []string{"a", "b", "c"} {
		p.Used = time.Unix(0, 0)
		c.do(Add{Name: name, Policy: p, Want: WantUp})
	}
	if c.m.services["b"].place == 0 || c.m.services["c"].place == 0 || len(c.m.line) != 2 {
		t.Errorf("places %d and %d in a line of %d", c.m.services["b"].place, c.m.services["c"].place, len(c.m.line))
	}
}
