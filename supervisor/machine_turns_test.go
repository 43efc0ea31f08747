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
