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
	define := func(o RestartAndNeeds) { r.do(Add{Name: "s", Policy: new(policyWith(o))}) }
	switch word {
	case "lacking":
		define(RestartAndNeeds{Needs: other})
		if r.s().state == Backoff {
			return r.wait(r.s().deadline.Sub(r.now))
		}
		return r.do(Start{"s"})
	case "needsmet":
		define(RestartAndNeeds{Needs: other})
		r.do(NeedMet{"boot"})
		r.want(Waiting)
		r.do(Add{Name: "o", Policy: new(testPolicy), Want: WantUp})
		return r.do(Spawned{"o", 50})
	case "crowded", "turn":
		r.m.MaxStarting = 1
		p := testPolicy
		p.LimitedStarts, p.ReportsReadiness = true, true
		r.do(Add{Name: "o", Policy: new(p), Want: WantUp})
		r.do(Spawned{"o", 50})
		r.do(Add{Name: "s", Policy: new(p)})
		if word == "crowded" {
			return r.do(Start{"s"})
		}
		r.do(NeedMet{"boot"})
		r.want(Waiting)
		return r.do(Ready{"o", r.m.services["o"].number, true, ""})
	case "follow":
		define(RestartAndNeeds{RestartOn: []string{"o"}})
		r.do(Add{Name: "o", Policy: new(testPolicy), Want: WantUp})
		r.do(Spawned{"o", 50})
		r.want(Up)
		r.do(Exited{Name: "o", PID: 50, Code: 1})
		r.do(Start{"o"})
		return r.do(Spawned{"o", 51})
	case "over":
		define(RestartAndNeeds{RestartPolicy: RestartOnFailure})
		return r.exit(0)
	case "never":
		define(RestartAndNeeds{RestartPolicy: RestartNever})
		return r.exit(1)
	}
	define(RestartAndNeeds{MaxRestarts: 1, RestartsWindow: time.Hour})
	r.s().respawns = []time.Time{r.now}
	return r.exit(1)
}

// manyRig drives a machine with any number of services.
type manyRig struct {
	*rig
}

func newCrew(t *testing.T) manyRig { return manyRig{newRig(t)} }

func (c manyRig) add(name string, o RestartAndNeeds) {
	c.do(Add{Name: name, Policy: new(policyWith(o)), Want: WantUp})
}

func (c manyRig) of(name string) *service { return c.m.services[name] }

// spawn answers the start that the machine has requested for a service.
func (c manyRig) spawn(name string) []string {
	c.t.Helper()
	c.is(name, Starting)
	c.pid++
	return c.do(Spawned{name, c.pid})
}

func (c manyRig) ends(name string, code int) []string {
	c.t.Helper()
	return c.do(Exited{Name: name, PID: c.of(name).pid, Code: code})
}

func (c manyRig) is(name string, state State) {
	c.t.Helper()
	if got := c.of(name); got.state != state {
		c.t.Fatalf("%s is %s, want %s (%s)", name, got.state, state, got.reason)
	}
}

// why checks that the reason of a service contains the text.
func (c manyRig) why(name, text string) {
	c.t.Helper()
	if got := c.of(name).reason; !strings.Contains(got, text) {
		c.t.Errorf("%s: reason %q, want %q in it", name, got, text)
	}
}

func needs(names ...string) (out []Need) {
	for _, n := range names {
		name, until, _ := strings.Cut(n, ":")
		out = append(out, Need{Name: name, Until: Until(until)})
	}
	return out
}

func TestAServiceStartsWhenAllItNeedsIsThere(t *testing.T) {
	c := newCrew(t)
	c.add("web", RestartAndNeeds{Needs: needs("db:ready", "migrate:done", "log:started")})
	c.is("web", Waiting)
	c.why("web", "waits for db, which does not exist, and for migrate, which does not exist, and for log, which does not exist")
	c.add("log", RestartAndNeeds{})
	c.spawn("log")
	db := policyWith(RestartAndNeeds{})
	db.ReportsReadiness = true
	c.do(Add{Name: "db", Policy: new(db), Want: WantUp})
	c.spawn("db")
	c.why("web", "waits for db to be ready (it is up, and not ready), and for migrate, which does not exist")
	c.add("migrate", RestartAndNeeds{RestartPolicy: RestartNever, IsConfiguredTask: true, Needs: needs("db:ready")})
	c.why("migrate", "waits for db to be ready (it is up, and not ready)")
	c.do(Ready{"db", c.of("db").number, true, ""})
	c.spawn("migrate")
	c.is("web", Waiting)
	if got := c.of("web").snapshot(&unit{Unit: &Unit{}}).Needs; !slices.Equal(got, []string{"migrate"}) {
		t.Errorf("web waits for %v", got)
	}
	c.ends("migrate", 3)
	c.is("migrate", Failed)
	c.why("migrate", "exited with code 3 and is not restarted (never)")
	c.why("web", "waits for migrate to be done (it exited with code 3)")
	c.do(Start{"migrate"})
	c.spawn("migrate")
	c.ends("migrate", 0)
	c.is("migrate", Down)
	c.why("migrate", "done: exited with code 0")
	c.spawn("web")
	c.is("web", Up)

	// The end of a service that "web" needs must not affect "web" while it is up.
	c.ends("db", 1)
	c.is("web", Up)
	// The next start of "web" must check its needs again.
	c.ends("web", 1)
	c.wait(c.of("web").deadline.Sub(c.now))
	if c.of("db").state == Starting {
		c.is("web", Waiting)
		c.spawn("db")
		c.do(Ready{"db", c.of("db").number, true, ""})
	}
	c.spawn("web")
}

func TestOptionalNeedsAreLeftOutWhereNobodyWantsThem(t *testing.T) {
	c := newCrew(t)
	o := RestartAndNeeds{Needs: []Need{{"cache", UntilReady, true}}}
	c.add("web", o)
	c.spawn("web")
	c.do(Add{Name: "cache", Policy: new(testPolicy), Want: WantDown})
	c.add("web2", o)
	c.spawn("web2")
	c.do(Start{"cache"})
	c.add("web3", o)
	c.is("web3", Waiting)
	c.do(Stop{"cache"})
	c.do(SpawnFailed{Name: "cache", Error: "no"})
	c.spawn("web3")
}

func TestChangedNeedsCountForWhoWaits(t *testing.T) {
	c := newCrew(t)
	c.add("web", RestartAndNeeds{Needs: needs("db:ready")})
	c.is("web", Waiting)
	c.add("web", RestartAndNeeds{Needs: needs("db2:ready")})
	c.why("web", "waits for db2")
	c.add("web", RestartAndNeeds{})
	c.spawn("web")
	if n := len(slices.Concat(slices.Collect(maps.Values(c.m.dependants))...)); n != 0 {
		t.Errorf("%d services depend on others", n)
	}
}

func TestATaskOfEachStartRunsBeforeEachStartAndOnceForAllWhoWait(t *testing.T) {
	c := newCrew(t)
	task := RestartAndNeeds{RestartPolicy: RestartNever, IsConfiguredTask: true, RunBeforeEachStart: true}
	c.add("keys", task)
	c.spawn("keys")
	c.add("a", RestartAndNeeds{Needs: needs("keys:done")})
	c.add("b", RestartAndNeeds{Needs: needs("keys:done")})
	if got := c.of("keys").number; got != 1 {
		t.Fatalf("keys run %d: the run under way has to do", got)
	}
	c.ends("keys", 0)
	c.spawn("a")
	c.spawn("b")
	c.ends("a", 1)
	c.wait(c.of("a").deadline.Sub(c.now))
	c.is("a", Waiting)
	c.spawn("keys")
	c.ends("keys", 4)
	c.is("keys", Failed)
	c.is("a", Waiting)
	c.wait(time.Hour)
	c.is("keys", Failed)
	c.do(Start{"a"})
	c.is("a", Waiting)
	c.do(Stop{"a"})
	c.do(Start{"a"})
	c.spawn("keys")
	c.ends("keys", 0)
	c.spawn("a")
	c.is("b", Up)
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
			c := newCrew(t)
			c.add("s", RestartAndNeeds{RestartPolicy: tt.after})
			c.spawn("s")
			c.ends("s", code)
			if c.of("s").state != want {
				t.Errorf("%q after code %d: %s, want %s", tt.after, code, c.of("s").state, want)
			}
			if wants := c.of("s").want; (wants == WantDown) != (want == Down) {
				t.Errorf("%q after code %d: wanted %s", tt.after, code, wants)
			}
			if want == Down || want == Failed {
				c.do(Start{"s"})
				c.spawn("s")
				if n := c.of("s").restarts; n != 0 {
					t.Errorf("%q: an operator's start counts as restart %d", tt.after, n)
				}
			}
		}
		c := newCrew(t)
		c.add("s", RestartAndNeeds{RestartPolicy: tt.after})
		c.spawn("s")
		c.do(Stop{"s"})
		c.do(Exited{Name: "s", PID: c.of("s").pid, Code: -1, Signal: sigTerm})
		c.is("s", Down)
		c.do(Start{"s"})
		c.do(SpawnFailed{Name: "s", Error: "no"})
		if want := map[bool]State{true: Failed, false: Backoff}[tt.after == RestartNever || tt.after == RestartOnSuccess]; c.of("s").state != want {
			t.Errorf("%q after a start that failed: %s", tt.after, c.of("s").state)
		}
	}
}

func TestTooManyRestartsAreAFailure(t *testing.T) {
	c := newCrew(t)
	c.add("s", RestartAndNeeds{MaxRestarts: 2, RestartsWindow: 10 * time.Minute})
	c.spawn("s")
	for range 2 {
		c.ends("s", 1)
		c.is("s", Backoff)
		c.wait(c.of("s").deadline.Sub(c.now))
		c.spawn("s")
	}
	c.ends("s", 1)
	c.is("s", Failed)
	c.why("s", "restarted 2 times within 10m, which is the limit: exited with code 1")
	c.do(Start{"s"})
	c.spawn("s")
	c.ends("s", 1)
	c.is("s", Backoff)
	c.do(SpawnFailed{Name: "s", Error: "no"})
	for range 5 {
		c.wait(11 * time.Minute)
		c.spawn("s")
		c.ends("s", 1)
		c.is("s", Backoff)
	}
}

func TestRestartOn(t *testing.T) {
	c := newCrew(t)
	c.add("db", RestartAndNeeds{})
	c.add("certs", RestartAndNeeds{RestartPolicy: RestartNever, IsConfiguredTask: true})
	c.spawn("db")
	c.spawn("certs")
	c.ends("certs", 0)
	c.add("web", RestartAndNeeds{RestartOn: []string{"db", "certs"}, Needs: needs("db:ready")})
	c.spawn("web")
	c.add("idle", RestartAndNeeds{RestartOn: []string{"db"}})
	c.spawn("idle")
	c.do(Stop{"idle"})
	c.ends("idle", 0)

	c.do(Restart{"db"})
	c.is("web", Up) // web must stay up until db has a new run
	c.ends("db", 0)
	c.spawn("db")
	c.is("web", Stopping)
	c.why("web", "db was started anew")
	c.is("idle", Down)
	c.ends("web", 0)
	c.spawn("web")

	c.do(Scheduled{"certs", time.Time{}, true})
	c.spawn("certs")
	c.is("web", Up)
	c.ends("certs", 1)
	c.is("web", Up)
	c.do(Start{"certs"})
	c.spawn("certs")
	c.ends("certs", 0)
	c.is("web", Stopping)
	c.ends("web", 0)
	c.spawn("web")
	if n := c.of("web").restarts; n != 0 {
		t.Errorf("%d restarts by itself", n)
	}
}

func TestASchedule(t *testing.T) {
	c := newCrew(t)
	c.do(Add{Name: "s", Policy: new(policyWith(RestartAndNeeds{RestartPolicy: RestartNever, IsConfiguredTask: true})), Want: WantDown})
	next := c.now.Add(time.Hour)
	c.do(Scheduled{"s", next, false})
	c.is("s", Down)
	if got := c.of("s").snapshot(&unit{Unit: &Unit{}}); !got.NextStart.Equal(next) || !got.Task || got.Done {
		t.Errorf("got %+v", got)
	}
	c.now = next
	c.do(Scheduled{"s", next.Add(time.Hour), true})
	c.spawn("s")
	c.actions = nil
	c.do(Scheduled{"s", next.Add(2 * time.Hour), true})
	c.is("s", Up)
	told := false
	for _, a := range c.actions {
		n, is := a.(AppendRecord)
		told = told || is && n.Record.Reason == "its time has come and is skipped: it is up"
	}
	if !told {
		t.Errorf("an overlap is not told: %v", c.actions)
	}
	c.ends("s", 0)
	if got := c.of("s").snapshot(&unit{Unit: &Unit{}}); got.State != Down || got.Want != WantDown || !got.Done || !got.NextStart.Equal(next.Add(2*time.Hour)) {
		t.Errorf("got %+v", got)
	}
	c.do(Scheduled{"s", time.Time{}, false})
	if got := c.of("s").snapshot(&unit{Unit: &Unit{}}); !got.NextStart.IsZero() {
		t.Errorf("next start %v without a schedule", got.NextStart)
	}
}

func TestTheContainerStopsInReverse(t *testing.T) {
	build := func(t *testing.T) manyRig {
		c := newCrew(t)
		c.add("db", RestartAndNeeds{})
		c.spawn("db")
		c.add("app", RestartAndNeeds{Needs: needs("db:ready")})
		c.spawn("app")
		c.add("web", RestartAndNeeds{Needs: needs("app:ready", "db:ready")})
		c.spawn("web")
		c.add("other", RestartAndNeeds{})
		c.spawn("other")
		return c
	}
	t.Run("as they end", func(t *testing.T) {
		c := build(t)
		c.do(Shutdown{Reason: "test"})
		for _, s := range []struct {
			name  string
			state State
		}{{"web", Stopping}, {"other", Stopping}, {"app", Up}, {"db", Up}} {
			c.is(s.name, s.state)
		}
		c.ends("web", 0)
		c.is("app", Stopping)
		c.is("db", Up)
		c.do(Exited{Name: "app", PID: c.of("app").pid, Leftover: true})
		c.is("db", Up)
		c.do(RunEnded{"app", c.of("app").number})
		c.is("db", Stopping)
		if cause := c.of("app").lastExit.Cause; cause != CauseShutdown {
			t.Errorf("app ended by %s", cause)
		}
	})
	t.Run("who hangs keeps nobody from ending", func(t *testing.T) {
		c := build(t)
		begin := c.now
		c.do(Shutdown{Reason: "test"})
		span := c.m.killAt.Sub(begin)
		asked := map[string]time.Duration{}
		for !c.now.After(c.m.forcedEnd) && c.m.phase != finished {
			for _, name := range []string{"web", "app", "db"} {
				if s := c.of(name); s.state == Stopping && asked[name] == 0 {
					asked[name] = c.now.Sub(begin) + 1
				}
				if s := c.of(name); s.state == Killing && c.now.Before(c.m.killAt) {
					t.Fatalf("%s is killed %v before the end", name, c.m.killAt.Sub(c.now))
				}
			}
			at, ok := c.m.Deadline()
			if !ok {
				break
			}
			c.now = at
			c.do(Tick{})
		}
		if asked["web"] != 1 || asked["app"] != span/3+1 || asked["db"] != 2*span/3+1 {
			t.Errorf("asked after %v of %v", asked, span)
		}
	})
	t.Run("a cycle is no trap", func(t *testing.T) {
		c := build(t)
		c.add("db", RestartAndNeeds{Needs: needs("web:ready")})
		c.do(Shutdown{Reason: "test"})
		for c.m.phase != finished {
			at, ok := c.m.Deadline()
			if !ok {
				t.Fatal("no end in sight")
			}
			c.now = at
			c.do(Tick{})
		}
	})
}

func TestAStepThatPanickedLeavesNoOrder(t *testing.T) {
	c := newCrew(t)
	c.add("keys", RestartAndNeeds{RestartPolicy: RestartNever, IsConfiguredTask: true, RunBeforeEachStart: true})
	c.spawn("keys")
	c.ends("keys", 0)
	c.add("a", RestartAndNeeds{Needs: needs("keys:done")})
	c.spawn("keys")
	var u undo
	u.beginStep(&c.m)
	c.ends("keys", 0)
	c.is("a", Starting)
	u.undoStep(&c.m)
	c.is("keys", Up)
	c.is("a", Waiting)
	if len(c.of("a").taskNeeds) != 1 || len(c.m.dependants["keys"]) != 1 {
		t.Errorf("gates %v, dependants %v", c.of("a").taskNeeds, c.m.dependants)
	}
	c.ends("keys", 0)
	c.spawn("a")
}
