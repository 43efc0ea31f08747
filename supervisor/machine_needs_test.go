package supervisor

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// policyWith returns the usual test policy with these needs and restart settings.
func policyWith(o RestartAndNeeds) Policy {
	p := testPolicy
	p.RestartAndNeeds = o
	return p
}

// relationEvents returns the events for a word of the transition table about another service or another policy.
func (r *rig) relationEvents(word string) []string {
	other := []Need{{Name: "o", Until: UntilReady}}
	define := func(o RestartAndNeeds) { r.step(Add{Name: "s", Policy: new(policyWith(o))}) }
	switch word {
	case "lacking":
		define(RestartAndNeeds{Needs: other})
		if r.service().state == Backoff {
			return r.advance(r.service().deadline.Sub(r.now))
		}
		return r.step(Start{"s"})
	case "needsmet":
		define(RestartAndNeeds{Needs: other})
		r.step(NeedMet{"boot"})
		r.wantState(Waiting)
		r.step(Add{Name: "o", Policy: new(testPolicy), Want: WantUp})
		return r.step(Spawned{"o", 50})
	case "crowded", "turn":
		r.machine.MaxStarting = 1
		p := testPolicy
		p.LimitedStarts, p.ReportsReadiness = true, true
		r.step(Add{Name: "o", Policy: new(p), Want: WantUp})
		r.step(Spawned{"o", 50})
		r.step(Add{Name: "s", Policy: new(p)})
		if word == "crowded" {
			return r.step(Start{"s"})
		}
		r.step(NeedMet{"boot"})
		r.wantState(Waiting)
		return r.step(Ready{"o", r.machine.services["o"].number, true, ""})
	case "follow":
		define(RestartAndNeeds{RestartOn: []string{"o"}})
		r.step(Add{Name: "o", Policy: new(testPolicy), Want: WantUp})
		r.step(Spawned{"o", 50})
		r.wantState(Up)
		r.step(Exited{Name: "o", PID: 50, Code: 1})
		r.step(Start{"o"})
		return r.step(Spawned{"o", 51})
	case "over":
		define(RestartAndNeeds{RestartPolicy: RestartOnFailure})
		return r.exit(0)
	case "never":
		define(RestartAndNeeds{RestartPolicy: RestartNever})
		return r.exit(1)
	}
	define(RestartAndNeeds{MaxRestarts: 1, RestartsWindow: time.Hour})
	r.service().respawns = []time.Time{r.now}
	return r.exit(1)
}

// multiRig drives a machine with any number of services.
type multiRig struct {
	*rig
}

func newMultiRig(t *testing.T) multiRig { return multiRig{newRig(t)} }

func (c multiRig) add(name string, o RestartAndNeeds) {
	c.step(Add{Name: name, Policy: new(policyWith(o)), Want: WantUp})
}

func (c multiRig) service(name string) *service { return c.machine.services[name] }

// spawn answers the start that the machine has requested for a service.
func (c multiRig) spawn(name string) []string {
	c.t.Helper()
	c.wantState(name, Starting)
	c.pid++
	return c.step(Spawned{name, c.pid})
}

func (c multiRig) exit(name string, code int) []string {
	c.t.Helper()
	return c.step(Exited{Name: name, PID: c.service(name).pid, Code: code})
}

func (c multiRig) wantState(name string, state State) {
	c.t.Helper()
	if got := c.service(name); got.state != state {
		c.t.Fatalf("%s is %s, want %s (%s)", name, got.state, state, got.reason)
	}
}

// wantReason checks that the reason of a service contains the text.
func (c multiRig) wantReason(name, text string) {
	c.t.Helper()
	if got := c.service(name).reason; !strings.Contains(got, text) {
		c.t.Errorf("%s: reason %q, want %q in it", name, got, text)
	}
}

func parseNeeds(names ...string) (out []Need) {
	for _, n := range names {
		name, until, _ := strings.Cut(n, ":")
		out = append(out, Need{Name: name, Until: Until(until)})
	}
	return out
}

func TestAServiceStartsWhenAllItNeedsIsThere(t *testing.T) {
	c := newMultiRig(t)
	c.add("web", RestartAndNeeds{Needs: parseNeeds("db:ready", "migrate:done", "log:started")})
	c.wantState("web", Waiting)
	c.wantReason("web", "waits for db, which does not exist, and for migrate, which does not exist, and for log, which does not exist")
	c.add("log", RestartAndNeeds{})
	c.spawn("log")
	db := policyWith(RestartAndNeeds{})
	db.ReportsReadiness = true
	c.step(Add{Name: "db", Policy: new(db), Want: WantUp})
	c.spawn("db")
	c.wantReason("web", "waits for db to be ready (it is up, and not ready), and for migrate, which does not exist")
	c.add("migrate", RestartAndNeeds{RestartPolicy: RestartNever, IsConfiguredTask: true, Needs: parseNeeds("db:ready")})
	c.wantReason("migrate", "waits for db to be ready (it is up, and not ready)")
	c.step(Ready{"db", c.service("db").number, true, ""})
	c.spawn("migrate")
	c.wantState("web", Waiting)
	if got := c.service("web").snapshot(&unit{Unit: &Unit{}}).Needs; !slices.Equal(got, []string{"migrate"}) {
		t.Errorf("web waits for %v", got)
	}
	c.exit("migrate", 3)
	c.wantState("migrate", Failed)
	c.wantReason("migrate", "exited with code 3 and is not restarted (never)")
	c.wantReason("web", "waits for migrate to be done (it exited with code 3)")
	c.step(Start{"migrate"})
	c.spawn("migrate")
	c.exit("migrate", 0)
	c.wantState("migrate", Down)
	c.wantReason("migrate", "done: exited with code 0")
	c.spawn("web")
	c.wantState("web", Up)

	// The end of a service that "web" needs must not affect "web" while it is up.
	c.exit("db", 1)
	c.wantState("web", Up)
	// The next start of "web" must check its needs again.
	c.exit("web", 1)
	c.advance(c.service("web").deadline.Sub(c.now))
	if c.service("db").state == Starting {
		c.wantState("web", Waiting)
		c.spawn("db")
		c.step(Ready{"db", c.service("db").number, true, ""})
	}
	c.spawn("web")
}

func TestOptionalNeedsAreLeftOutWhereNobodyWantsThem(t *testing.T) {
	c := newMultiRig(t)
	o := RestartAndNeeds{Needs: []Need{{"cache", UntilReady, true}}}
	c.add("web", o)
	c.spawn("web")
	c.step(Add{Name: "cache", Policy: new(testPolicy), Want: WantDown})
	c.add("web2", o)
	c.spawn("web2")
	c.step(Start{"cache"})
	c.add("web3", o)
	c.wantState("web3", Waiting)
	c.step(Stop{"cache"})
	c.step(SpawnFailed{Name: "cache", Error: "no"})
	c.spawn("web3")
}

func TestChangedNeedsCountForWhoWaits(t *testing.T) {
	c := newMultiRig(t)
	c.add("web", RestartAndNeeds{Needs: parseNeeds("db:ready")})
	c.wantState("web", Waiting)
	c.add("web", RestartAndNeeds{Needs: parseNeeds("db2:ready")})
	c.wantReason("web", "waits for db2")
	c.add("web", RestartAndNeeds{})
	c.spawn("web")
	if n := len(slices.Concat(slices.Collect(maps.Values(c.machine.dependants))...)); n != 0 {
		t.Errorf("%d services depend on others", n)
	}
}

func TestATaskOfEachStartRunsBeforeEachStartAndOnceForAllWhoWait(t *testing.T) {
	c := newMultiRig(t)
	task := RestartAndNeeds{RestartPolicy: RestartNever, IsConfiguredTask: true, RunBeforeEachStart: true}
	c.add("keys", task)
	c.spawn("keys")
	c.add("a", RestartAndNeeds{Needs: parseNeeds("keys:done")})
	c.add("b", RestartAndNeeds{Needs: parseNeeds("keys:done")})
	if got := c.service("keys").number; got != 1 {
		t.Fatalf("keys run %d: the run under way has to do", got)
	}
	c.exit("keys", 0)
	c.spawn("a")
	c.spawn("b")
	c.exit("a", 1)
	c.advance(c.service("a").deadline.Sub(c.now))
	c.wantState("a", Waiting)
	c.spawn("keys")
	c.exit("keys", 4)
	c.wantState("keys", Failed)
	c.wantState("a", Waiting)
	c.advance(time.Hour)
	c.wantState("keys", Failed)
	c.step(Start{"a"})
	c.wantState("a", Waiting)
	c.step(Stop{"a"})
	c.step(Start{"a"})
	c.spawn("keys")
	c.exit("keys", 0)
	c.spawn("a")
	c.wantState("b", Up)
}

func TestPolicies(t *testing.T) {
	for _, tt := range []struct {
		after        RestartAfter
		clean, crash State
	}{
		{RestartAlways, Backoff, Backoff},
		{RestartOnFailure, Down, Backoff},
		{RestartOnSuccess, Backoff, Failed},
		{RestartNever, Down, Failed},
	} {
		for code, want := range map[int]State{0: tt.clean, 1: tt.crash, 78: Parked, 75: Starting} {
			if tt.after == RestartNever && code != 0 {
				want = Failed
			}
			c := newMultiRig(t)
			c.add("s", RestartAndNeeds{RestartPolicy: tt.after})
			c.spawn("s")
			c.exit("s", code)
			if c.service("s").state != want {
				t.Errorf("%q after code %d: %s, want %s", tt.after, code, c.service("s").state, want)
			}
			if wants := c.service("s").want; (wants == WantDown) != (want == Down) {
				t.Errorf("%q after code %d: wanted %s", tt.after, code, wants)
			}
			if want == Down || want == Failed {
				c.step(Start{"s"})
				c.spawn("s")
				if n := c.service("s").restarts; n != 0 {
					t.Errorf("%q: an operator's start counts as restart %d", tt.after, n)
				}
			}
		}
		c := newMultiRig(t)
		c.add("s", RestartAndNeeds{RestartPolicy: tt.after})
		c.spawn("s")
		c.step(Stop{"s"})
		c.step(Exited{Name: "s", PID: c.service("s").pid, Code: -1, Signal: sigTerm})
		c.wantState("s", Down)
		c.step(Start{"s"})
		c.step(SpawnFailed{Name: "s", Error: "no"})
		if want := map[bool]State{true: Failed, false: Backoff}[tt.after == RestartNever || tt.after == RestartOnSuccess]; c.service("s").state != want {
			t.Errorf("%q after a start that failed: %s", tt.after, c.service("s").state)
		}
	}
}

func TestTooManyRestartsAreAFailure(t *testing.T) {
	c := newMultiRig(t)
	c.add("s", RestartAndNeeds{MaxRestarts: 2, RestartsWindow: 10 * time.Minute})
	c.spawn("s")
	for range 2 {
		c.exit("s", 1)
		c.wantState("s", Backoff)
		c.advance(c.service("s").deadline.Sub(c.now))
		c.spawn("s")
	}
	c.exit("s", 1)
	c.wantState("s", Failed)
	c.wantReason("s", "restarted 2 times within 10m, which is the limit: exited with code 1")
	c.step(Start{"s"})
	c.spawn("s")
	c.exit("s", 1)
	c.wantState("s", Backoff)
	c.step(SpawnFailed{Name: "s", Error: "no"})
	for range 5 {
		c.advance(11 * time.Minute)
		c.spawn("s")
		c.exit("s", 1)
		c.wantState("s", Backoff)
	}
}

func TestRestartOn(t *testing.T) {
	c := newMultiRig(t)
	c.add("db", RestartAndNeeds{})
	c.add("certs", RestartAndNeeds{RestartPolicy: RestartNever, IsConfiguredTask: true})
	c.spawn("db")
	c.spawn("certs")
	c.exit("certs", 0)
	c.add("web", RestartAndNeeds{RestartOn: []string{"db", "certs"}, Needs: parseNeeds("db:ready")})
	c.spawn("web")
	c.add("idle", RestartAndNeeds{RestartOn: []string{"db"}})
	c.spawn("idle")
	c.step(Stop{"idle"})
	c.exit("idle", 0)

	c.step(Restart{"db"})
	c.wantState("web", Up) // web must stay up until db has a new run
	c.exit("db", 0)
	c.spawn("db")
	c.wantState("web", Stopping)
	c.wantReason("web", "db was started anew")
	c.wantState("idle", Down)
	c.exit("web", 0)
	c.spawn("web")

	c.step(Scheduled{"certs", time.Time{}, true})
	c.spawn("certs")
	c.wantState("web", Up)
	c.exit("certs", 1)
	c.wantState("web", Up)
	c.step(Start{"certs"})
	c.spawn("certs")
	c.exit("certs", 0)
	c.wantState("web", Stopping)
	c.exit("web", 0)
	c.spawn("web")
	if n := c.service("web").restarts; n != 0 {
		t.Errorf("%d restarts by itself", n)
	}
}

func TestASchedule(t *testing.T) {
	c := newMultiRig(t)
	c.step(Add{Name: "s", Policy: new(policyWith(RestartAndNeeds{RestartPolicy: RestartNever, IsConfiguredTask: true})), Want: WantDown})
	next := c.now.Add(time.Hour)
	c.step(Scheduled{"s", next, false})
	c.wantState("s", Down)
	if got := c.service("s").snapshot(&unit{Unit: &Unit{}}); !got.NextStart.Equal(next) || !got.Task || got.Done {
		t.Errorf("got %+v", got)
	}
	c.now = next
	c.step(Scheduled{"s", next.Add(time.Hour), true})
	c.spawn("s")
	c.actions = nil
	c.step(Scheduled{"s", next.Add(2 * time.Hour), true})
	c.wantState("s", Up)
	found := false
	for _, a := range c.actions {
		n, is := a.(AppendRecord)
		found = found || is && n.Record.Reason == "its time has come and is skipped: it is up"
	}
	if !found {
		t.Errorf("an overlap is not told: %v", c.actions)
	}
	c.exit("s", 0)
	if got := c.service("s").snapshot(&unit{Unit: &Unit{}}); got.State != Down || got.Want != WantDown || !got.Done || !got.NextStart.Equal(next.Add(2*time.Hour)) {
		t.Errorf("got %+v", got)
	}
	c.step(Scheduled{"s", time.Time{}, false})
	if got := c.service("s").snapshot(&unit{Unit: &Unit{}}); !got.NextStart.IsZero() {
		t.Errorf("next start %v without a schedule", got.NextStart)
	}
}

func TestTheContainerStopsInReverse(t *testing.T) {
	build := func(t *testing.T) multiRig {
		c := newMultiRig(t)
		c.add("db", RestartAndNeeds{})
		c.spawn("db")
		c.add("app", RestartAndNeeds{Needs: parseNeeds("db:ready")})
		c.spawn("app")
		c.add("web", RestartAndNeeds{Needs: parseNeeds("app:ready", "db:ready")})
		c.spawn("web")
		c.add("other", RestartAndNeeds{})
		c.spawn("other")
		return c
	}
	t.Run("as they end", func(t *testing.T) {
		c := build(t)
		c.step(Shutdown{Reason: "test"})
		for _, s := range []struct {
			name  string
			state State
		}{{"web", Stopping}, {"other", Stopping}, {"app", Up}, {"db", Up}} {
			c.wantState(s.name, s.state)
		}
		c.exit("web", 0)
		c.wantState("app", Stopping)
		c.wantState("db", Up)
		c.step(Exited{Name: "app", PID: c.service("app").pid, Leftover: true})
		c.wantState("db", Up)
		c.step(RunEnded{"app", c.service("app").number})
		c.wantState("db", Stopping)
		if cause := c.service("app").lastExit.Cause; cause != CauseShutdown {
			t.Errorf("app ended by %s", cause)
		}
	})
	t.Run("who hangs keeps nobody from ending", func(t *testing.T) {
		c := build(t)
		begin := c.now
		c.step(Shutdown{Reason: "test"})
		span := c.machine.killAt.Sub(begin)
		asked := map[string]time.Duration{}
		for !c.now.After(c.machine.forcedEnd) && c.machine.phase != phaseFinished {
			for _, name := range []string{"web", "app", "db"} {
				if s := c.service(name); s.state == Stopping && asked[name] == 0 {
					asked[name] = c.now.Sub(begin) + 1
				}
				if s := c.service(name); s.state == Killing && c.now.Before(c.machine.killAt) {
					t.Fatalf("%s is killed %v before the end", name, c.machine.killAt.Sub(c.now))
				}
			}
			at, ok := c.machine.Deadline()
			if !ok {
				break
			}
			c.now = at
			c.step(Tick{})
		}
		if asked["web"] != 1 || asked["app"] != span/3+1 || asked["db"] != 2*span/3+1 {
			t.Errorf("asked after %v of %v", asked, span)
		}
	})
	t.Run("a cycle is no trap", func(t *testing.T) {
		c := build(t)
		c.add("db", RestartAndNeeds{Needs: parseNeeds("web:ready")})
		c.step(Shutdown{Reason: "test"})
		for c.machine.phase != phaseFinished {
			at, ok := c.machine.Deadline()
			if !ok {
				t.Fatal("no end in sight")
			}
			c.now = at
			c.step(Tick{})
		}
	})
}

func TestAStepThatPanickedLeavesNoOrder(t *testing.T) {
	c := newMultiRig(t)
	c.add("keys", RestartAndNeeds{RestartPolicy: RestartNever, IsConfiguredTask: true, RunBeforeEachStart: true})
	c.spawn("keys")
	c.exit("keys", 0)
	c.add("a", RestartAndNeeds{Needs: parseNeeds("keys:done")})
	c.spawn("keys")
	var u stepUndo
	u.beginStep(&c.machine)
	c.exit("keys", 0)
	c.wantState("a", Starting)
	u.undoStep(&c.machine)
	c.wantState("keys", Up)
	c.wantState("a", Waiting)
	if len(c.service("a").taskNeeds) != 1 || len(c.machine.dependants["keys"]) != 1 {
		t.Errorf("gates %v, dependants %v", c.service("a").taskNeeds, c.machine.dependants)
	}
	c.exit("keys", 0)
	c.spawn("a")
}
