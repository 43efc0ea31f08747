package supervisor

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/internal/backoff"
)

var policy = Policy{
	Backoff:    backoff.Policy{Initial: time.Second, Max: time.Minute, Factor: 2},
	ResetAfter: time.Minute, LoopCount: 5, LoopWindow: time.Minute,
	ParkOn: []int{78}, ImmediateOn: []int{75},
	StopSignal: sigTerm, Grace: 30 * time.Second,
}

// rig drives a machine with one service "s" and a clock of its own.
type rig struct {
	t    *testing.T
	m    Machine
	now  time.Time
	pid  int
	acts []Action
}

func newRig(t *testing.T) *rig {
	return &rig{t: t, m: Machine{Budget: 8 * time.Second}, now: time.Unix(1000, 0), pid: 100}
}

// do steps and answers spawns as the loop does; it returns the kinds of action that matter.
func (r *rig) do(e Event) []string {
	var kinds []string
	acts := slices.Clone(r.m.Step(r.now, e))
	r.acts = append(r.acts, acts...)
	for _, a := range acts {
		switch a := a.(type) {
		case Spawn:
			kinds = append(kinds, "spawn")
		case Signal:
			kinds = append(kinds, "signal")
		case SignalTree:
			kinds = append(kinds, "signaltree")
		case SignalRest:
			kinds = append(kinds, "signalrest")
		case Finish:
			kinds = append(kinds, "finish")
			_ = a
		}
	}
	return kinds
}

func (r *rig) s() *service { return r.m.services["s"] }

// up brings "s" up.
func (r *rig) up() {
	if r.s() == nil {
		r.do(Add{Name: "s", Policy: policy, Want: WantUp})
	} else {
		r.do(Start{"s"})
	}
	r.spawned()
}

func (r *rig) spawned() {
	r.pid++
	r.do(Spawned{"s", r.pid})
	r.want(Up)
}

func (r *rig) want(state State) {
	r.t.Helper()
	if got := r.s().state; got != state {
		r.t.Fatalf("state %s, want %s (%s)", got, state, r.s().reason)
	}
}

func (r *rig) exit(code int) []string {
	return r.do(Exited{Name: "s", PID: r.s().pid, Code: code})
}

func (r *rig) wait(d time.Duration) []string {
	r.now = r.now.Add(d)
	return r.do(Tick{})
}

// enter puts "s" into a state.
func (r *rig) enter(state State) {
	switch state {
	case Down:
		r.do(Add{Name: "s", Policy: policy, Want: WantDown})
	case Waiting:
		r.do(Add{Name: "s", Policy: policy, Want: WantUp, Needs: []string{"boot"}})
	case Starting:
		r.do(Add{Name: "s", Policy: policy, Want: WantUp})
	case Up:
		r.up()
	case Stopping:
		r.up()
		r.do(Stop{"s"})
	case Killing:
		r.enter(Stopping)
		r.wait(policy.Grace)
	case Backoff:
		r.up()
		r.exit(1)
	case Parked:
		r.up()
		r.exit(78)
	case Failed:
		r.enter(Starting)
		r.do(SpawnFailed{Name: "s", Error: "no", Permanent: true})
	}
	r.want(state)
}

// cause turns a word of the transition table into an event.
func (r *rig) cause(word string) []string {
	switch word {
	case "start":
		return r.do(Start{"s"})
	case "stop":
		return r.do(Stop{"s"})
	case "restart":
		return r.do(Restart{"s"})
	case "met":
		return r.do(Met{"boot"})
	case "spawned":
		return r.do(Spawned{"s", 1})
	case "spawnfail":
		return r.do(SpawnFailed{Name: "s", Error: "no"})
	case "spawnbad":
		return r.do(SpawnFailed{Name: "s", Error: "no", Permanent: true})
	case "crash":
		return r.exit(1)
	case "park":
		return r.exit(78)
	case "again":
		return r.exit(75)
	case "leftover":
		return r.do(Exited{Name: "s", PID: r.s().pid, Code: 1, Leftover: true})
	case "gone":
		if r.s().pid != 0 {
			r.do(Exited{Name: "s", PID: r.s().pid, Code: 1, Leftover: true})
		}
		return r.do(Gone{"s", r.s().run})
	case "deadline":
		return r.wait(max(r.s().deadline.Sub(r.now), 0))
	case "replaced":
		return r.do(Explained{"s", r.s().run, CauseReplaced})
	case "inputs":
		return r.do(Inputs{"s"})
	}
	r.t.Fatalf("the table has an unknown event %q", word)
	return nil
}

func TestTransitionTable(t *testing.T) {
	src, err := os.ReadFile("machine.go")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(src), "-------------------\n")
	table, _, _ = strings.Cut(table, "\n//\n")
	listed := map[string]bool{}
	for row := range strings.Lines(table) {
		f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(row), "//"))
		if len(f) < 3 {
			t.Fatalf("cannot read row %q", row)
		}
		listed[f[0]+" "+f[1]] = true
		t.Run(f[0]+"/"+f[1], func(t *testing.T) {
			r := newRig(t)
			r.enter(State(f[0]))
			got := r.cause(f[1])
			r.want(State(f[2]))
			if want := f[3:]; !slices.Equal(got, want) {
				t.Errorf("actions %v, want %v", got, want)
			}
		})
	}
	if len(listed) < 40 {
		t.Errorf("only %d rows were read", len(listed))
	}
	// Whatever is not listed changes nothing.
	for _, state := range States() {
		for _, word := range []string{"start", "stop", "restart", "met", "spawned", "spawnfail", "spawnbad", "replaced", "inputs"} {
			if listed[string(state)+" "+word] {
				continue
			}
			r := newRig(t)
			r.enter(state)
			if got := r.cause(word); len(got) != 0 || r.s().state != state {
				t.Errorf("%s %s: now %s, actions %v; the table has no such row", state, word, r.s().state, got)
			}
		}
	}
}

func TestDelaysGrowAndAreForgottenAfterALongLife(t *testing.T) {
	r := newRig(t)
	r.up()
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		r.exit(1)
		if got := r.s().deadline.Sub(r.now); got != want*time.Second {
			t.Fatalf("delay %d is %v, want %v", i+1, got, want*time.Second)
		}
		r.wait(want * time.Second)
		r.spawned()
	}
	if !r.s().looping || r.s().restarts != 8 {
		t.Errorf("crash loop %v, restarts %d; want true, 8", r.s().looping, r.s().restarts)
	}
	r.wait(time.Minute)
	if r.s().looping || r.s().failures != 0 {
		t.Error("a minute up does not clear the crash loop")
	}
	r.exit(1)
	if got := r.s().deadline.Sub(r.now); got != time.Second {
		t.Errorf("delay after a long life is %v, want 1s", got)
	}
}

func TestCrashLoopShowsAtTheFifthFastExit(t *testing.T) {
	r := newRig(t)
	r.up()
	for i := 1; i <= 5; i++ {
		r.exit(1)
		if got := r.s().looping; got != (i == 5) {
			t.Fatalf("after %d exits crash loop is %v", i, got)
		}
		r.do(Tick{})
		r.wait(r.s().deadline.Sub(r.now))
		r.spawned()
	}
	r.do(Restart{"s"})
	if r.s().looping {
		t.Error("an operator's restart does not clear the mark")
	}
}

func TestStartSkipsTheDelayAndCountsTheRestart(t *testing.T) {
	r := newRig(t)
	r.up()
	for range 20 {
		r.do(Exited{Name: "s", PID: r.s().pid, Code: -1, Signal: sigKill})
		r.want(Backoff)
		if r.s().last.Cause != CauseSignal {
			t.Fatalf("cause %s", r.s().last.Cause)
		}
		r.up()
	}
	if r.s().restarts != 20 || r.s().looping {
		t.Errorf("restarts %d, crash loop %v", r.s().restarts, r.s().looping)
	}
}

func TestStartOfARunningServiceForgetsItsFailures(t *testing.T) {
	r := newRig(t)
	r.up()
	for range 5 {
		r.exit(1)
		r.wait(r.s().deadline.Sub(r.now))
		r.spawned()
	}
	r.do(Start{"s"})
	if r.s().looping || r.s().failures != 0 {
		t.Errorf("crash loop %v, failures %d", r.s().looping, r.s().failures)
	}
	r.want(Up)
}

func TestAnOperatorsRestartIsNoFailure(t *testing.T) {
	r := newRig(t)
	r.up()
	r.do(Restart{"s"})
	r.want(Stopping)
	if got := r.exit(1); !slices.Equal(got, []string{"spawn"}) {
		t.Fatalf("actions %v", got)
	}
	r.spawned()
	s := r.s()
	if s.restarts != 0 || s.failures != 0 || s.last.Cause != CauseOperator {
		t.Errorf("restarts %d, failures %d, cause %s", s.restarts, s.failures, s.last.Cause)
	}
}

func TestStartDuringAStopWinsAndTheLastCommandCounts(t *testing.T) {
	r := newRig(t)
	r.up()
	r.do(Stop{"s"})
	r.do(Start{"s"})
	r.exit(0)
	r.want(Starting)
	r.spawned()
	r.do(Stop{"s"})
	r.do(Start{"s"})
	r.do(Stop{"s"})
	r.exit(0)
	r.want(Down)
}

func TestTheGraceOfAnEarlierStopNeverKillsALaterRun(t *testing.T) {
	r := newRig(t)
	r.up()
	r.do(Stop{"s"})
	r.wait(29 * time.Second)
	r.exit(0)
	r.up()
	r.do(Stop{"s"})
	if got := r.wait(2 * time.Second); len(got) != 0 {
		t.Errorf("two seconds into the second stop: %v", got)
	}
}

func TestLeftoversGetHalfASecondBetweenTermAndKill(t *testing.T) {
	r := newRig(t)
	r.up()
	if got := r.cause("leftover"); !slices.Equal(got, []string{"signaltree"}) {
		t.Fatalf("actions %v", got)
	}
	if sig := r.lastTree().Signal; sig != sigTerm {
		t.Fatalf("signal %d", sig)
	}
	r.wait(leftoverGrace)
	r.want(Killing)
	if sig := r.lastTree().Signal; sig != sigKill {
		t.Fatalf("signal %d", sig)
	}
	r.do(Gone{"s", r.s().run})
	r.want(Backoff)
	if got := r.s().deadline.Sub(r.s().last.At); got != time.Second {
		t.Errorf("the delay counts from the exit: %v after it", got)
	}
}

func (r *rig) lastTree() SignalTree {
	for _, a := range slices.Backward(r.acts) {
		if a, ok := a.(SignalTree); ok {
			return a
		}
	}
	return SignalTree{}
}

func TestAGoneOfAnOldRunMeansNothing(t *testing.T) {
	r := newRig(t)
	r.up()
	r.cause("leftover")
	r.do(Gone{"s", r.s().run - 1})
	r.want(Stopping)
}

func TestExitsThatAskForARestartCantSpin(t *testing.T) {
	r := newRig(t)
	r.up()
	for range quickAgain {
		r.exit(75)
		r.want(Starting)
		r.spawned()
	}
	r.exit(75)
	r.want(Backoff)
	if r.s().failures != 0 {
		t.Error("counted as failures")
	}
	r.wait(time.Second)
	r.spawned()
	r.wait(2 * time.Second)
	r.exit(75)
	r.want(Starting)
	if r.s().restarts != 5 {
		t.Errorf("restarts %d, want 5", r.s().restarts)
	}
}

func TestParkedComesBackOnlyWhenItsInputsChangeOrSomeoneAsks(t *testing.T) {
	r := newRig(t)
	r.up()
	r.exit(78)
	r.want(Parked)
	if got := r.s().last.Cause; got != CauseConfig {
		t.Errorf("cause %s", got)
	}
	r.wait(24 * time.Hour)
	r.want(Parked)
	r.do(Inputs{"s"})
	r.want(Starting)
}

func TestExitZeroNobodyAskedForRestarts(t *testing.T) {
	r := newRig(t)
	r.up()
	r.exit(0)
	r.want(Backoff)
	if got := r.s().last.Cause; got != CauseClean {
		t.Errorf("cause %s", got)
	}
}

func TestATakeoverParksAndIsNotAFailure(t *testing.T) {
	r := newRig(t)
	r.up()
	r.exit(0)
	r.do(Explained{"s", r.s().run, CauseReplaced})
	r.want(Parked)
	if s := r.s(); s.failures != 0 || s.last.Cause != CauseReplaced || s.want != WantUp {
		t.Errorf("failures %d, cause %s, want %s", s.failures, s.last.Cause, s.want)
	}
}

func TestTailIsKeptWithItsExitOnly(t *testing.T) {
	r := newRig(t)
	r.up()
	r.exit(1)
	first := r.s().last
	r.do(Tailed{"s", first.Run, []string{"boom"}})
	if first.Tail != nil {
		t.Error("a published exit was changed")
	}
	if got := r.s().last.Tail; !slices.Equal(got, []string{"boom"}) {
		t.Errorf("tail %q", got)
	}
	r.do(Tailed{"s", first.Run + 1, []string{"other"}})
	if got := r.s().last.Tail; !slices.Equal(got, []string{"boom"}) {
		t.Errorf("tail %q", got)
	}
}

func TestRemoveStopsThenForgets(t *testing.T) {
	r := newRig(t)
	r.up()
	if got := r.do(Remove{"s"}); !slices.Equal(got, []string{"signal"}) {
		t.Errorf("actions %v", got)
	}
	r.exit(0)
	if r.s() != nil || len(r.m.order) != 0 {
		t.Error("still known")
	}
	r.do(Add{Name: "s", Policy: policy, Want: WantDown})
	r.do(Remove{"s"})
	if r.s() != nil {
		t.Error("a down service is not forgotten at once")
	}
}

func TestStartDoesNotBringBackWhatIsBeingRemoved(t *testing.T) {
	r := newRig(t)
	r.up()
	r.do(Remove{"s"})
	r.do(Start{"s"})
	r.exit(0)
	if r.s() != nil {
		t.Error("still known")
	}
}

func TestRemovedAndBackBeforeItWasDown(t *testing.T) {
	r := newRig(t)
	r.up()
	r.do(Remove{"s"})
	r.do(Add{Name: "s", Policy: policy, Want: WantDown})
	r.exit(0)
	r.want(Down)
}

func TestReadinessIsAnnouncedOrFollowsUp(t *testing.T) {
	r := newRig(t)
	r.up()
	if !r.s().ready {
		t.Error("a service without readiness of its own is not ready while up")
	}
	p := policy
	p.Announces = true
	r = newRig(t)
	r.do(Add{Name: "s", Policy: p, Want: WantUp})
	r.spawned()
	if r.s().ready {
		t.Error("ready before it said so")
	}
	r.do(Ready{"s", r.s().run + 1, true})
	if r.s().ready {
		t.Error("ready because of another run")
	}
	r.do(Ready{"s", r.s().run, true})
	if !r.s().ready {
		t.Error("not ready though it said so")
	}
	r.exit(1)
	if r.s().ready {
		t.Error("ready while not running")
	}
}

func TestShutdownStopsAllInParallelAndEndsWithTheLast(t *testing.T) {
	m := Machine{Budget: 8 * time.Second}
	now := time.Unix(1000, 0)
	names := []string{"a", "b", "c"}
	for i, n := range names {
		m.Step(now, Add{Name: n, Policy: policy, Want: WantUp})
		m.Step(now, Spawned{n, 10 + i})
	}
	m.Step(now, Add{Name: "d", Policy: policy, Want: WantUp})
	m.Step(now, SpawnFailed{Name: "d", Error: "no"})
	signals := 0
	for _, a := range m.Step(now, Shutdown{Code: 0, Reason: "asked"}) {
		if _, ok := a.(Signal); ok {
			signals++
		}
	}
	if signals != 3 {
		t.Fatalf("%d signals, want 3", signals)
	}
	if m.services["d"].state != Down {
		t.Error("a service in backoff is not given up")
	}
	m.Step(now, Start{"d"})
	if m.services["d"].state != Down {
		t.Error("started during the shutdown")
	}
	now = now.Add(time.Second)
	for i, n := range names {
		acts := m.Step(now, Exited{Name: n, PID: 10 + i, Code: 0})
		last := i == len(names)-1
		if got := slices.ContainsFunc(acts, func(a Action) bool { _, ok := a.(SignalRest); return ok }); got != last {
			t.Errorf("after %s the rest is signalled: %v", n, got)
		}
	}
	acts := m.Step(now, Swept{})
	if f, ok := acts[len(acts)-1].(Finish); !ok || f.Code != 0 {
		t.Errorf("actions %v", acts)
	}
}

func TestAStubbornServiceIsKilledWithinTheBudget(t *testing.T) {
	r := newRig(t)
	r.up()
	start := r.now
	r.do(Shutdown{Reason: "asked"})
	var killed time.Duration
	for range 50 {
		at, ok := r.m.Deadline()
		if !ok {
			break
		}
		r.now = at
		if slices.Contains(r.do(Tick{}), "signaltree") && killed == 0 {
			killed = r.now.Sub(start)
			if sig := r.lastTree().Signal; sig != sigKill {
				t.Fatalf("signal %d", sig)
			}
		}
	}
	if killed < 7*time.Second || killed >= 8*time.Second {
		t.Errorf("killed after %v of a budget of 8s", killed)
	}
	if took := r.now.Sub(start); took != 8*time.Second || r.m.phase != finished {
		t.Errorf("an unkillable process holds the container for %v (phase %v)", took, r.m.phase)
	}
}

func TestASecondShutdownKillsNow(t *testing.T) {
	r := newRig(t)
	r.up()
	r.do(Shutdown{Reason: "asked"})
	if got := r.do(Shutdown{Reason: "again"}); !slices.Contains(got, "signaltree") || r.lastTree().Signal != sigKill {
		t.Errorf("actions %v", got)
	}
	r.do(Exited{Name: "s", PID: r.s().pid, Code: -1, Signal: sigKill})
	if got := r.do(Swept{}); !slices.Contains(got, "finish") {
		t.Errorf("actions %v", got)
	}
}

func TestTheCmdsExitEndsTheContainerWithItsCode(t *testing.T) {
	for _, c := range []struct {
		e    Event
		code int
	}{
		{Exited{Name: "cmd", PID: 5, Code: 42}, 42},
		{Exited{Name: "cmd", PID: 5, Code: -1, Signal: 15}, 143},
		{Exited{Name: "cmd", PID: 5, Code: 0, Leftover: true}, 0},
	} {
		m := Machine{Budget: time.Second}
		now := time.Unix(1000, 0)
		m.Step(now, Add{Name: "cmd", Policy: Policy{Once: true, StopSignal: sigTerm, Grace: time.Minute}, Want: WantUp})
		m.Step(now, Spawned{"cmd", 5})
		m.Step(now, c.e)
		m.Step(now, Gone{"cmd", 1})
		acts := m.Step(now, Swept{})
		if f, ok := acts[len(acts)-1].(Finish); !ok || f.Code != c.code {
			t.Errorf("%+v: actions %v, want exit code %d", c.e, acts, c.code)
		}
	}
}

func TestATaskRunsOnce(t *testing.T) {
	p := policy
	p.Task = true
	for _, end := range []func(r *rig){
		func(r *rig) { r.spawned(); r.exit(1) },
		func(r *rig) { r.spawned(); r.cause("leftover"); r.do(Gone{"s", r.s().run}) },
		func(r *rig) { r.do(SpawnFailed{Name: "s", Error: "no"}) },
	} {
		r := newRig(t)
		r.do(Add{Name: "s", Policy: p, Want: WantUp})
		end(r)
		r.want(Down)
		r.wait(time.Hour)
		r.want(Down)
		if r.s().want != WantDown || r.s().last == nil {
			t.Errorf("want %s, last exit %+v", r.s().want, r.s().last)
		}
	}
}

func TestACmdThatCannotStartEndsTheContainer(t *testing.T) {
	m := Machine{Budget: time.Second}
	now := time.Unix(1000, 0)
	m.Step(now, Add{Name: "cmd", Policy: Policy{Once: true}, Want: WantUp})
	m.Step(now, SpawnFailed{Name: "cmd", Error: "no", Code: 127})
	acts := m.Step(now, Swept{})
	if f, ok := acts[len(acts)-1].(Finish); !ok || f.Code != 127 {
		t.Errorf("actions %v", acts)
	}
}

func TestOnlyTheEarliestDeadlineIsAskedFor(t *testing.T) {
	r := newRig(t)
	if _, ok := r.m.Deadline(); ok {
		t.Error("an empty machine wants to be woken")
	}
	r.up()
	if at, ok := r.m.Deadline(); ok {
		t.Errorf("a healthy service wants to be woken at %v", at)
	}
}
