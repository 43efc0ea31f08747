package supervisor

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hinit/internal/backoff"
)

var testPolicy = Policy{
	Backoff:    backoff.Policy{Initial: time.Second, Max: time.Minute, Factor: 2},
	ResetAfter: time.Minute, CrashLoopExits: 5, CrashLoopWindow: time.Minute,
	ParkCodes: []int{78}, NoDelayCodes: []int{75},
	StopSignal: sigTerm, Grace: 30 * time.Second,
}

// finishingPolicy is the policy of a service with a finish command.
var finishingPolicy = func() Policy {
	p := testPolicy
	p.RunsFinish, p.FinishTimeout, p.PermanentFinishCodes = true, 5*time.Second, []int{125}
	return p
}()

// rig drives a machine with one service "s" and a fake clock.
type rig struct {
	t       *testing.T
	machine Machine
	now     time.Time
	pid     int
	actions []Action
}

func newRig(t *testing.T) *rig {
	return &rig{t: t, machine: Machine{ShutdownBudget: 8 * time.Second}, now: time.Unix(1000, 0), pid: 100}
}

// step runs one step and answers starts as the loop does. It returns the kinds of the actions, without timers.
func (r *rig) step(e Event) []string {
	var kinds []string
	actions := slices.Clone(r.machine.Step(r.now, e))
	r.actions = append(r.actions, actions...)
	for _, a := range actions {
		switch a := a.(type) {
		case Spawn:
			kinds = append(kinds, "spawn")
		case Signal:
			kinds = append(kinds, map[SignalScope]string{ScopeMain: "signal", ScopeGroup: "signalgroup", ScopeTree: "signaltree"}[a.Scope])
		case SignalDescendants:
			kinds = append(kinds, "signalrest")
		case SpawnFinish:
			kinds = append(kinds, "spawnfinish")
		case EndLoop:
			kinds = append(kinds, "end")
		}
	}
	return kinds
}

func (r *rig) service() *service { return r.machine.services["s"] }

// reachUp brings "s" into the state Up.
func (r *rig) reachUp() {
	if r.service() == nil {
		r.step(Add{Name: "s", Policy: new(testPolicy), Want: WantUp})
	} else {
		r.step(Start{"s"})
	}
	r.spawned()
}

func (r *rig) spawned() {
	r.pid++
	r.step(Spawned{"s", r.pid})
	r.wantState(Up)
}

func (r *rig) wantState(state State) {
	r.t.Helper()
	if got := r.service().state; got != state {
		r.t.Fatalf("state %s, want %s (%s)", got, state, r.service().reason)
	}
}

func (r *rig) exit(code int) []string {
	return r.step(Exited{Name: "s", PID: r.service().pid, Code: code})
}

func (r *rig) advance(d time.Duration) []string {
	r.now = r.now.Add(d)
	return r.step(Tick{})
}

// reachState brings "s" into a state.
func (r *rig) reachState(state State) {
	switch state {
	case Down:
		r.step(Add{Name: "s", Policy: new(testPolicy), Want: WantDown})
	case Waiting:
		r.step(Add{Name: "s", Policy: new(testPolicy), Want: WantUp, Needs: []string{"boot"}})
	case Starting:
		r.step(Add{Name: "s", Policy: new(testPolicy), Want: WantUp})
	case Up:
		r.reachUp()
	case Stopping:
		r.reachUp()
		r.step(Stop{"s"})
	case Killing:
		r.reachState(Stopping)
		r.advance(testPolicy.Grace)
	case Finishing:
		r.reachUp()
		r.causeEvents("dies")
		r.step(Spawned{"s", 1})
	case Backoff:
		r.reachUp()
		r.exit(1)
	case Parked:
		r.reachUp()
		r.exit(78)
	case Failed:
		r.reachState(Starting)
		r.step(SpawnFailed{Name: "s", Error: "no", Permanent: true})
	}
	r.wantState(state)
}

// reportNoFinishCommand answers that the service has no finish command.
func (r *rig) reportNoFinishCommand() {
	if r.service().state == Finishing {
		r.service().pid = 0
	}
}

// causeEvents returns the events for a word of the transition table.
func (r *rig) causeEvents(word string) []string {
	switch word {
	case "start":
		return r.step(Start{"s"})
	case "stop":
		return r.step(Stop{"s"})
	case "restart":
		return r.step(Restart{"s"})
	case "met":
		return r.step(NeedMet{"boot"})
	case "spawned":
		return r.step(Spawned{"s", 1})
	case "spawnfail":
		r.reportNoFinishCommand()
		return r.step(SpawnFailed{Name: "s", Error: "no"})
	case "spawnbad":
		r.reportNoFinishCommand()
		return r.step(SpawnFailed{Name: "s", Error: "no", Permanent: true})
	case "crash":
		return r.exit(1)
	case "park":
		return r.exit(78)
	case "again":
		return r.exit(75)
	case "dies":
		r.step(Add{Name: "s", Policy: new(finishingPolicy)})
		return r.exit(1)
	case "finished":
		return r.exit(0)
	case "permanent":
		return r.exit(125)
	case "once":
		return r.step(RunOnce{"s"})
	case "unwant":
		return r.step(StayDown{"s"})
	case "pause":
		return r.step(Pause{"s", false})
	case "continue":
		return r.step(Continue{"s", false})
	case "send":
		return r.step(SignalMain{"s", sigHup, false})
	case "sendgroup":
		return r.step(SignalMain{"s", sigHup, true})
	case "unhealthy":
		return r.step(Unhealthy{Name: "s", Run: r.service().number, Answer: "no answer"})
	case "ending":
		return r.step(NotifyMessage{Name: "s", Run: r.service().number, Stopping: true})
	case "leftover":
		return r.step(Exited{Name: "s", PID: r.service().pid, Code: 1, Leftover: true})
	case "gone":
		if r.service().pid != 0 {
			r.step(Exited{Name: "s", PID: r.service().pid, Code: 1, Leftover: true})
		}
		return r.step(RunEnded{"s", r.service().number})
	case "deadline":
		return r.advance(max(r.service().deadline.Sub(r.now), 0))
	case "replaced":
		return r.step(CorrectCause{"s", r.service().number, CauseReplaced})
	case "inputs":
		if r.service().state == Parked {
			r.now = r.now.Add(testPolicy.Backoff.Initial)
		}
		return r.step(InputsChanged{"s"})
	case "inputssoon":
		return r.step(InputsChanged{"s"})
	case "due":
		return r.step(Scheduled{"s", r.now.Add(time.Hour), true})
	case "shed", "full", "room":
		return r.memoryEvents(word)
	case "lacking", "needsmet", "crowded", "turn", "follow", "over", "never", "limit":
		return r.relationEvents(word)
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
			r.reachState(State(f[0]))
			got := r.causeEvents(f[1])
			r.wantState(State(f[2]))
			if want := f[3:]; !slices.Equal(got, want) {
				t.Errorf("actions %v, want %v", got, want)
			}
		})
	}
	if len(listed) < 80 {
		t.Errorf("only %d rows were read", len(listed))
	}
	// An event that is not listed for a state must change nothing.
	for _, state := range States() {
		for _, word := range []string{
			"start", "stop", "restart", "once", "unwant", "pause", "continue", "send", "sendgroup", "unhealthy", "ending", "shed",
			"met", "spawned", "spawnfail", "spawnbad", "replaced", "inputs", "inputssoon", "due",
		} {
			if listed[string(state)+" "+word] {
				continue
			}
			r := newRig(t)
			r.reachState(state)
			if got := r.causeEvents(word); len(got) != 0 || r.service().state != state {
				t.Errorf("%s %s: now %s, actions %v; the table has no such row", state, word, r.service().state, got)
			}
		}
	}
}

func TestDelaysGrowAndAreForgottenAfterALongLife(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		r.exit(1)
		if got := r.service().deadline.Sub(r.now); got != want*time.Second {
			t.Fatalf("delay %d is %v, want %v", i+1, got, want*time.Second)
		}
		r.advance(want * time.Second)
		r.spawned()
	}
	if !r.service().inCrashLoop || r.service().restarts != 8 {
		t.Errorf("crash loop %v, restarts %d; want true, 8", r.service().inCrashLoop, r.service().restarts)
	}
	r.advance(time.Minute)
	if r.service().inCrashLoop || r.service().failures != 0 {
		t.Error("a minute up does not clear the crash loop")
	}
	r.exit(1)
	r.wantState(Starting)
	r.spawned()
	for i, want := range []time.Duration{1, 2, 4} {
		r.exit(1)
		if got := r.service().deadline.Sub(r.now); got != want*time.Second {
			t.Fatalf("delay %d after a long life is %v, want %v", i+1, got, want*time.Second)
		}
		r.advance(want * time.Second)
		r.spawned()
	}
}

// The first crash after a long healthy run must cause a restart without delay. An exit with code 0 must not, because another
// instance may have taken over.
func TestTheFirstCrashAfterAHealthyLifeStartsAgainAtOnce(t *testing.T) {
	for _, c := range []struct {
		name         string
		life         time.Duration
		code, signal int
		oom          bool
		want         State
	}{
		{"crash", time.Minute, 1, 0, false, Starting},
		{"kill -9", time.Hour, -1, sigKill, false, Starting},
		{"oom", time.Minute, -1, sigKill, true, Starting},
		{"code 0", time.Hour, 0, 0, false, Backoff},
		{"not a minute", time.Minute - 1, 1, 0, false, Backoff},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.reachUp()
			r.advance(c.life)
			r.step(Exited{Name: "s", PID: r.service().pid, Code: c.code, Signal: c.signal, OOM: c.oom})
			r.wantState(c.want)
			if c.want == Starting && r.service().failures != 0 {
				t.Errorf("it counts as failure %d", r.service().failures)
			}
		})
	}
}

func TestCrashLoopShowsAtTheFifthFastExit(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	for i := 1; i <= 5; i++ {
		r.exit(1)
		if got := r.service().inCrashLoop; got != (i == 5) {
			t.Fatalf("after %d exits crash loop is %v", i, got)
		}
		r.step(Tick{})
		r.advance(r.service().deadline.Sub(r.now))
		r.spawned()
	}
	r.step(Restart{"s"})
	if r.service().inCrashLoop {
		t.Error("an operator's restart does not clear the mark")
	}
}

func TestStartSkipsTheDelayAndCountsTheRestart(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	for range 20 {
		r.step(Exited{Name: "s", PID: r.service().pid, Code: -1, Signal: sigKill})
		r.wantState(Backoff)
		if r.service().lastExit.Cause != CauseSignal {
			t.Fatalf("cause %s", r.service().lastExit.Cause)
		}
		r.reachUp()
	}
	if r.service().restarts != 20 || r.service().inCrashLoop {
		t.Errorf("restarts %d, crash loop %v", r.service().restarts, r.service().inCrashLoop)
	}
}

func TestStartOfARunningServiceForgetsItsFailures(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	for range 5 {
		r.exit(1)
		r.advance(r.service().deadline.Sub(r.now))
		r.spawned()
	}
	r.step(Start{"s"})
	if r.service().inCrashLoop || r.service().failures != 0 {
		t.Errorf("crash loop %v, failures %d", r.service().inCrashLoop, r.service().failures)
	}
	r.wantState(Up)
}

func TestAnOperatorsRestartIsNoFailure(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	r.step(Restart{"s"})
	r.wantState(Stopping)
	if got := r.exit(1); !slices.Equal(got, []string{"spawn"}) {
		t.Fatalf("actions %v", got)
	}
	r.spawned()
	s := r.service()
	if s.restarts != 0 || s.failures != 0 || s.lastExit.Cause != CauseOperator {
		t.Errorf("restarts %d, failures %d, cause %s", s.restarts, s.failures, s.lastExit.Cause)
	}
}

func TestStartDuringAStopWinsAndTheLastCommandCounts(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	r.step(Stop{"s"})
	r.step(Start{"s"})
	r.exit(0)
	r.wantState(Starting)
	r.spawned()
	r.step(Stop{"s"})
	r.step(Start{"s"})
	r.step(Stop{"s"})
	r.exit(0)
	r.wantState(Down)
}

func TestTheGraceOfAnEarlierStopNeverKillsALaterRun(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	r.step(Stop{"s"})
	r.advance(29 * time.Second)
	r.exit(0)
	r.reachUp()
	r.step(Stop{"s"})
	if got := r.advance(2 * time.Second); len(got) != 0 {
		t.Errorf("two seconds into the second stop: %v", got)
	}
}

func TestLeftoversGetHalfASecondBetweenTermAndKill(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	if got := r.causeEvents("leftover"); !slices.Equal(got, []string{"signaltree"}) {
		t.Fatalf("actions %v", got)
	}
	if sig := r.lastTreeSignal().Signal; sig != sigTerm {
		t.Fatalf("signal %d", sig)
	}
	r.advance(leftoverGrace)
	r.wantState(Killing)
	if sig := r.lastTreeSignal().Signal; sig != sigKill {
		t.Fatalf("signal %d", sig)
	}
	r.step(RunEnded{"s", r.service().number})
	r.wantState(Backoff)
	if got := r.service().deadline.Sub(r.service().lastExit.At); got != time.Second {
		t.Errorf("the delay counts from the exit: %v after it", got)
	}
}

func TestWhatForksAwayFromAKillIsKilledAgainSoon(t *testing.T) {
	r := newRig(t)
	for range 2 {
		r.reachUp()
		r.step(Stop{"s"})
		r.advance(r.service().policy.Grace)
		r.wantState(Killing)
		var after []time.Duration
		for range 33 {
			after = append(after, r.service().deadline.Sub(r.now))
			r.actions = nil
			r.advance(after[len(after)-1])
			r.wantState(Killing)
			if r.lastTreeSignal().Signal != sigKill {
				t.Fatal("no KILL")
			}
		}
		const ms = time.Millisecond
		want := append(slices.Repeat([]time.Duration{10 * ms}, 25), 20*ms, 40*ms, 80*ms, 160*ms, 320*ms, 640*ms, 1000*ms, 1000*ms)
		if !slices.Equal(after, want) {
			t.Fatalf("KILL again after %v, want %v", after, want)
		}
		r.exit(0)
		r.wantState(Down)
	}
}

func (r *rig) lastTreeSignal() Signal {
	for _, a := range slices.Backward(r.actions) {
		if a, ok := a.(Signal); ok && a.Scope == ScopeTree {
			return a
		}
	}
	return Signal{}
}

func TestProcessesThatReturnAfterEachKillAreReported(t *testing.T) {
	for _, more := range []int{0, 1} { // a process whose end the kernel delays does not fork, so it needs no warning
		r := newRig(t)
		r.reachUp()
		r.step(Stop{"s"})
		r.step(Exited{Name: "s", PID: r.service().pid, Leftover: true})
		r.advance(leftoverGrace)
		r.wantState(Killing)
		deaths := 5
		for range firstKillCount + 2 {
			if r.service().killProgress.kills <= firstKillCount && strings.Contains(r.service().reason, "take their place") {
				t.Fatalf("after %d KILLs: %s", r.service().killProgress.kills, r.service().reason)
			}
			r.step(DescendantsEnded{"s", r.service().number, deaths})
			deaths += more
			at, _ := r.machine.Deadline()
			r.advance(at.Sub(r.now))
		}
		r.wantState(Killing)
		if said := strings.HasPrefix(r.service().reason, strconv.Itoa(deaths-more)+" processes of it have ended and others take their place"); said != (more > 0) {
			t.Errorf("%d more each time: %s", more, r.service().reason)
		}
		r.step(RunEnded{"s", r.service().number})
		r.wantState(Down)
	}
}

func TestTheEndOfAnOlderRunChangesNothing(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	r.causeEvents("leftover")
	r.step(RunEnded{"s", r.service().number - 1})
	r.wantState(Stopping)
}

func TestExitsThatAskForARestartCantSpin(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	for range maxQuickRestarts {
		r.exit(75)
		r.wantState(Starting)
		r.spawned()
	}
	r.exit(75)
	r.wantState(Backoff)
	if r.service().failures != 0 {
		t.Error("counted as failures")
	}
	r.advance(time.Second)
	r.spawned()
	r.advance(2 * time.Second)
	r.exit(75)
	r.wantState(Starting)
	if r.service().restarts != 5 {
		t.Errorf("restarts %d, want 5", r.service().restarts)
	}
}

func TestParkedComesBackOnlyWhenItsInputsChangeOrSomeoneAsks(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	r.exit(78)
	r.wantState(Parked)
	if got := r.service().lastExit.Cause; got != CauseConfig {
		t.Errorf("cause %s", got)
	}
	r.advance(24 * time.Hour)
	r.wantState(Parked)
	r.step(InputsChanged{"s"})
	r.wantState(Starting)
}

// A gateway that changes its configuration at each start and exits with 78 must get growing restart delays. Without them it
// would restart in an endless loop.
func TestAGatewayThatChangesItsInputsAtEachStartWaitsLikeOneThatCrashes(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		r.exit(78)
		r.wantState(Parked)
		r.now = r.now.Add(200 * time.Millisecond)
		r.step(InputsChanged{"s"})
		r.wantState(Backoff)
		if got := r.service().deadline.Sub(r.service().lastExit.At); got != want*time.Second || r.service().failures != i+1 {
			t.Fatalf("delay %d is %v, want %v; failures %d", i+1, got, want*time.Second, r.service().failures)
		}
		r.advance(r.service().deadline.Sub(r.now))
		r.spawned()
	}
	if !r.service().inCrashLoop {
		t.Error("it is not shown as a crash loop")
	}
	// An edit after a quiet minute must start the service at once.
	r.exit(78)
	r.now = r.now.Add(time.Minute)
	r.step(InputsChanged{"s"})
	r.wantState(Starting)
	if s := r.service(); s.inCrashLoop || s.failures != 0 {
		t.Errorf("crash loop %v, failures %d", s.inCrashLoop, s.failures)
	}
}

// An operator's edit some seconds after a failed start must start the service at once, however often it happens.
func TestAnEditAfterAMomentStartsAtOnce(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	for range 20 {
		r.exit(78)
		r.now = r.now.Add(2 * time.Second)
		r.step(InputsChanged{"s"})
		r.wantState(Starting)
		r.spawned()
	}
	r.advance(testPolicy.ResetAfter)
	r.exit(78)
	r.step(InputsChanged{"s"})
	r.wantState(Starting)
}

func TestExitZeroNobodyAskedForRestarts(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	r.exit(0)
	r.wantState(Backoff)
	if got := r.service().lastExit.Cause; got != CauseClean {
		t.Errorf("cause %s", got)
	}
}

func TestATakeoverParksAndIsNotAFailure(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	r.exit(0)
	r.step(CorrectCause{"s", r.service().number, CauseReplaced})
	r.wantState(Parked)
	if s := r.service(); s.failures != 0 || s.lastExit.Cause != CauseReplaced || s.want != WantUp {
		t.Errorf("failures %d, cause %s, want %s", s.failures, s.lastExit.Cause, s.want)
	}
}

func TestTailIsKeptWithItsExitOnly(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	r.exit(1)
	first := r.service().lastExit
	r.step(LastLines{"s", first.Run, []string{"boom"}})
	if first.Tail != nil {
		t.Error("a published exit was changed")
	}
	if got := r.service().lastExit.Tail; !slices.Equal(got, []string{"boom"}) {
		t.Errorf("tail %q", got)
	}
	r.step(LastLines{"s", first.Run + 1, []string{"other"}})
	if got := r.service().lastExit.Tail; !slices.Equal(got, []string{"boom"}) {
		t.Errorf("tail %q", got)
	}
}

func TestRemoveStopsThenForgets(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	if got := r.step(Remove{"s"}); !slices.Equal(got, []string{"signal"}) {
		t.Errorf("actions %v", got)
	}
	r.exit(0)
	if r.service() != nil || len(r.machine.inOrder) != 0 {
		t.Error("still known")
	}
	r.step(Add{Name: "s", Policy: new(testPolicy), Want: WantDown})
	r.step(Remove{"s"})
	if r.service() != nil {
		t.Error("a down service is not forgotten at once")
	}
}

func TestStartDoesNotBringBackWhatIsBeingRemoved(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	r.step(Remove{"s"})
	r.step(Start{"s"})
	r.exit(0)
	if r.service() != nil {
		t.Error("still known")
	}
}

func TestRemovedAndBackBeforeItWasDown(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	r.step(Remove{"s"})
	r.step(Add{Name: "s", Policy: new(testPolicy), Want: WantDown})
	r.exit(0)
	r.wantState(Down)
}

func TestAFinishCommandRunsAfterEachRunAndTheDelayBeginsWhenItEnds(t *testing.T) {
	r := newRig(t)
	r.step(Add{Name: "s", Policy: new(finishingPolicy), Want: WantUp})
	for range 3 {
		r.spawned()
		main := r.service().pid
		r.exit(1)
		r.wantState(Finishing)
		if v := r.service().snapshot(&unit{Unit: &Unit{}}); v.PID != 0 || !v.ReadySince.IsZero() || !v.ProcessSince.Equal(r.now) {
			t.Fatalf("while it finishes: %+v", v)
		}
		if x := r.service().lastExit; x.PID != main || x.Cause != CauseCrash {
			t.Fatalf("exit %+v", x)
		}
		r.step(Spawned{"s", 50})
		died := r.now
		r.now = r.now.Add(3 * time.Second)
		r.exit(0)
		r.wantState(Backoff)
		if got := r.service().deadline.Sub(r.now); got < time.Second {
			t.Fatalf("the next start is %v after the finish command", got)
		}
		if v := r.service().snapshot(&unit{Unit: &Unit{}}); !v.ReadySince.Equal(r.now) || !v.ProcessSince.Equal(died) {
			t.Fatalf("fully down since %v, down since %v", v.ReadySince, v.ProcessSince)
		}
		r.advance(r.service().deadline.Sub(r.now))
	}
	if got := r.service().restarts; got != 3 {
		t.Errorf("%d restarts", got)
	}
}

func TestTheLastCommandDuringAFinishCommandCountsWhenItEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		do   []Event
		code int
		want State
	}{
		{"start", []Event{Start{"s"}}, 0, Starting},
		{"stop", []Event{Stop{"s"}}, 0, Down},
		{"restart", []Event{Restart{"s"}}, 0, Starting},
		{"once", []Event{RunOnce{"s"}}, 0, Down},
		{"unwant", []Event{StayDown{"s"}}, 0, Down},
		{"start, stop", []Event{Start{"s"}, Stop{"s"}}, 0, Down},
		{"stop, start", []Event{Stop{"s"}, Start{"s"}}, 0, Starting},
		{"start though it says never again", []Event{Start{"s"}}, 125, Starting},
		{"remove", []Event{Remove{"s"}}, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.reachState(Finishing)
			for _, e := range c.do {
				if got := r.step(e); len(got) != 0 {
					t.Errorf("%T does %v while the finish command runs", e, got)
				}
				r.wantState(Finishing)
			}
			r.exit(c.code)
			switch s := r.service(); {
			case c.want == "" && s != nil:
				t.Errorf("still known: %s", s.state)
			case c.want != "":
				r.wantState(c.want)
			}
		})
	}
}

func TestAFinishCommandThatSaysNeverAgainLeavesItDownUntilSomeoneAsks(t *testing.T) {
	r := newRig(t)
	r.reachState(Finishing)
	r.exit(125)
	r.wantState(Down)
	if v := r.service().snapshot(&unit{Unit: &Unit{}}); v.Want != WantDown || !v.StaysDown || !strings.Contains(v.Reason, "125") {
		t.Errorf("want %s, permanent %v, reason %q", v.Want, v.StaysDown, v.Reason)
	}
	r.step(Start{"s"})
	r.spawned()
	if v := r.service().snapshot(&unit{Unit: &Unit{}}); v.StaysDown {
		t.Error("still marked after a start")
	}
}

func TestAFinishCommandThatHangsIsKilledAfterItsTime(t *testing.T) {
	for _, c := range []struct {
		kill SignalScope
		want string
	}{{ScopeTree, "signaltree"}, {ScopeMain, "signal"}, {ScopeGroup, "signalgroup"}} {
		r := newRig(t)
		r.reachState(Finishing)
		p := finishingPolicy
		p.KillScope = c.kill
		r.step(Add{Name: "s", Policy: new(p)})
		if got := r.advance(p.FinishTimeout - 1); len(got) != 0 {
			t.Fatalf("before its time: %v", got)
		}
		if got := r.advance(1); !slices.Equal(got, []string{c.want}) {
			t.Errorf("scope %d: %v", c.kill, got)
		}
		r.step(Exited{Name: "s", PID: 1, Code: -1, Signal: sigKill})
		r.wantState(Backoff)
	}
	r := newRig(t)
	p := finishingPolicy
	p.FinishTimeout = 0
	r.step(Add{Name: "s", Policy: new(p), Want: WantUp})
	r.spawned()
	r.exit(0)
	if at, ok := r.machine.Deadline(); ok {
		t.Errorf("without a time it is to be killed at %v", at)
	}
}

func TestABrokenFinishCommandIsReportedAndAMissingOneIsNot(t *testing.T) {
	for code, said := range map[int]bool{127: false, 126: true} {
		r := newRig(t)
		r.reachUp()
		r.causeEvents("dies")
		r.actions = nil
		r.step(SpawnFailed{Name: "s", Error: "it has no legs", Code: code, Permanent: true})
		r.wantState(Backoff)
		got := slices.ContainsFunc(r.actions, func(a Action) bool {
			n, ok := a.(AppendRecord)
			return ok && strings.Contains(n.Record.Reason, "it has no legs")
		})
		if got != said {
			t.Errorf("code %d: said %v", code, got)
		}
		if r.service().lastExit.Cause != CauseCrash {
			t.Errorf("the exit of the run is %s", r.service().lastExit.Cause)
		}
	}
}

func TestShutdownLetsAFinishCommandRunWithinTheBudget(t *testing.T) {
	r := newRig(t)
	p := finishingPolicy
	p.FinishTimeout = 0
	r.step(Add{Name: "s", Policy: new(p), Want: WantUp})
	r.spawned()
	begin := r.now
	r.step(Shutdown{Reason: "asked"})
	r.now = r.now.Add(time.Second)
	if got := r.exit(0); !slices.Equal(got, []string{"spawnfinish"}) {
		t.Fatalf("actions %v", got)
	}
	r.step(Spawned{"s", 50})
	at, ok := r.machine.Deadline()
	if !ok || at.Sub(begin) > r.machine.ShutdownBudget {
		t.Fatalf("the finish command is not bounded: %v, %v", at.Sub(begin), ok)
	}
	if got := r.advance(at.Sub(r.now)); !slices.Equal(got, []string{"signaltree"}) {
		t.Errorf("at the end of its time: %v", got)
	}
	if got := r.step(Exited{Name: "s", PID: 50, Code: -1, Signal: sigKill}); !slices.Contains(got, "signalrest") {
		t.Errorf("after it: %v", got)
	}
}

func TestARunThatTheShutdownHadToKillIsNotFinished(t *testing.T) {
	r := newRig(t)
	r.step(Add{Name: "s", Policy: new(finishingPolicy), Want: WantUp})
	r.spawned()
	r.step(Shutdown{Reason: "asked"})
	r.step(Shutdown{Reason: "again"})
	if got := r.step(Exited{Name: "s", PID: r.service().pid, Code: -1, Signal: sigKill}); slices.Contains(got, "spawnfinish") {
		t.Errorf("actions %v", got)
	}
}

// s6Policy is the policy of a service directory that contains only run.
var s6Policy = Policy{
	Backoff:    backoff.Policy{Initial: time.Second, Max: time.Second},
	StopSignal: sigTerm, KillNever: true, KillScope: ScopeMain, LeaveDescendants: true,
	SpawnRetry: time.Minute, ReadyRestart: time.Second, ReportsReadiness: true,
}

func TestARunThatWasReadyForASecondIsStartedAgainAtOnce(t *testing.T) {
	for _, c := range []struct {
		ready time.Duration
		want  State
	}{{-1, Backoff}, {999 * time.Millisecond, Backoff}, {time.Second, Starting}} {
		r := newRig(t)
		r.step(Add{Name: "s", Policy: new(s6Policy), Want: WantUp})
		r.spawned()
		r.now = r.now.Add(time.Hour)
		if c.ready >= 0 {
			r.step(Ready{"s", r.service().number, true, ""})
			r.now = r.now.Add(c.ready)
		}
		r.exit(1)
		r.wantState(c.want)
		if c.want == Backoff && r.service().deadline.Sub(r.now) != time.Second {
			t.Errorf("delay %v", r.service().deadline.Sub(r.now))
		}
	}
}

func TestTheDelayOfAServiceDirectoryNeverGrows(t *testing.T) {
	r := newRig(t)
	r.step(Add{Name: "s", Policy: new(s6Policy), Want: WantUp})
	for range 20 {
		r.spawned()
		r.exit(1)
		if got := r.service().deadline.Sub(r.now); got != time.Second {
			t.Fatalf("delay %v", got)
		}
		r.advance(time.Second)
	}
}

func TestARunThatCannotBeSpawnedIsTriedAgainEveryMinute(t *testing.T) {
	for _, permanent := range []bool{false, true} {
		r := newRig(t)
		r.step(Add{Name: "s", Policy: new(s6Policy), Want: WantUp})
		for range 3 {
			r.step(SpawnFailed{Name: "s", Error: "cannot start \"run\": permission denied", Permanent: permanent})
			r.wantState(Backoff)
			v := r.service().snapshot(&unit{Unit: &Unit{}})
			if v.NextStart.Sub(r.now) != time.Minute || v.Started || v.Want != WantUp || !strings.Contains(v.Reason, "permission") {
				t.Fatalf("%+v", v)
			}
			r.advance(time.Minute)
		}
		r.spawned()
	}
}

func TestAStopWithoutAGraceNeverKillsAndCanBeRepeated(t *testing.T) {
	r := newRig(t)
	r.step(Add{Name: "s", Policy: new(s6Policy), Want: WantUp})
	r.spawned()
	for range 2 {
		if got := r.step(Stop{"s"}); !slices.Equal(got, []string{"signal"}) {
			t.Fatalf("actions %v", got)
		}
		if at, ok := r.machine.Deadline(); ok {
			t.Fatalf("it is to be killed at %v", at)
		}
		r.advance(24 * time.Hour)
		r.wantState(Stopping)
	}
	r.step(Shutdown{Reason: "asked"})
	at, ok := r.machine.Deadline()
	if !ok || at.Sub(r.now) >= r.machine.ShutdownBudget {
		t.Fatalf("at the end of the container: %v %v", at.Sub(r.now), ok)
	}
	if got := r.advance(at.Sub(r.now)); !slices.Equal(got, []string{"signaltree"}) {
		t.Errorf("actions %v", got)
	}
}

func TestAGraceOfAServiceDirectoryKillsTheProcessOrItsGroup(t *testing.T) {
	for scope, want := range map[SignalScope]string{ScopeMain: "signal", ScopeGroup: "signalgroup"} {
		r := newRig(t)
		p := s6Policy
		p.KillNever, p.Grace, p.KillScope = false, 2*time.Second, scope
		r.step(Add{Name: "s", Policy: new(p), Want: WantUp})
		r.spawned()
		r.step(Stop{"s"})
		if got := r.advance(2 * time.Second); !slices.Equal(got, []string{want}) {
			t.Errorf("scope %d: %v", scope, got)
		}
		r.wantState(Killing)
	}
}

func TestWhatASparingServiceLeavesBehindIsLeftAlone(t *testing.T) {
	r := newRig(t)
	r.step(Add{Name: "s", Policy: new(s6Policy), Want: WantUp})
	r.spawned()
	if got := r.step(Exited{Name: "s", PID: r.service().pid, Code: 1, Leftover: true}); len(got) != 0 {
		t.Errorf("actions %v", got)
	}
	r.wantState(Backoff)
}

func TestOneRunIsNotRepeated(t *testing.T) {
	for _, from := range []State{Down, Backoff, Parked, Failed} {
		r := newRig(t)
		r.reachState(from)
		r.step(RunOnce{"s"})
		r.spawned()
		if v := r.service().snapshot(&unit{Unit: &Unit{}}); v.Want != WantDown {
			t.Errorf("from %s: want %s", from, v.Want)
		}
		r.exit(1)
		r.wantState(Down)
		if got := r.service().lastExit.Cause; got != CauseCrash {
			t.Errorf("from %s: cause %s", from, got)
		}
		r.advance(time.Hour)
		r.wantState(Down)
	}
	r := newRig(t)
	r.reachState(Waiting)
	r.step(RunOnce{"s"})
	r.step(NeedMet{"boot"})
	r.spawned()
	r.exit(0)
	r.wantState(Down)
	r.step(RunOnce{"s"})
	r.step(SpawnFailed{Name: "s", Error: "no"})
	r.wantState(Down)
	r.step(Start{"s"})
	r.spawned()
	r.exit(1)
	r.wantState(Backoff)
}

func TestARunningServiceThatIsNoLongerWantedEndsByItself(t *testing.T) {
	for _, e := range []Event{RunOnce{"s"}, StayDown{"s"}} {
		r := newRig(t)
		r.reachUp()
		if got := r.step(e); len(got) != 0 {
			t.Errorf("%T does %v", e, got)
		}
		r.advance(time.Hour)
		r.wantState(Up)
		r.exit(1)
		r.wantState(Down)
		r.reachUp()
		r.step(e)
		r.step(Start{"s"})
		r.exit(1)
		r.wantState(Backoff)
	}
}

func TestAPauseLastsUntilItGoesOnOrEnds(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	paused := func(want bool) {
		t.Helper()
		if v := r.service().snapshot(&unit{Unit: &Unit{}}); v.Paused != want || v.State == Up && !v.Ready {
			t.Fatalf("paused %v, ready %v in %s", v.Paused, v.Ready, v.State)
		}
	}
	r.step(Pause{"s", false})
	paused(true)
	r.step(Continue{"s", true})
	paused(false)
	r.step(Pause{"s", true})
	r.exit(1)
	paused(false)
	r.step(Pause{"s", false})
	paused(false)
	r.reachUp()
	r.step(Pause{"s", false})
	r.actions = nil
	r.step(Stop{"s"})
	paused(false)
	if !slices.Contains(r.actions, Action(Signal{"s", r.service().number, sigTerm, ScopeMain, true})) {
		t.Errorf("a paused process is not continued so that it can end: %v", r.actions)
	}
}

func TestAnOperatorsSignalLeavesTheWantAndIsNoFailure(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	for range 10 {
		if got := r.step(SignalMain{"s", sigKill, false}); !slices.Equal(got, []string{"signal"}) {
			t.Fatalf("actions %v", got)
		}
		r.wantState(Up)
		r.step(Exited{Name: "s", PID: r.service().pid, Code: -1, Signal: sigKill})
		r.wantState(Backoff)
		if s := r.service(); s.lastExit.Cause != CauseOperator || s.failures != 0 || s.deadline.Sub(r.now) != time.Second {
			t.Fatalf("cause %s, failures %d, delay %v", s.lastExit.Cause, s.failures, s.deadline.Sub(r.now))
		}
		r.advance(time.Second)
		r.spawned()
	}
	r.step(Exited{Name: "s", PID: r.service().pid, Code: -1, Signal: sigKill})
	if got := r.service().lastExit.Cause; got != CauseSignal {
		t.Errorf("the signal of a run is taken for that of the next: cause %s", got)
	}
}

func TestSignalZeroIsTheOneThatStopsIt(t *testing.T) {
	r := newRig(t)
	p := testPolicy
	p.StopSignal = sigHup
	r.step(Add{Name: "s", Policy: new(p), Want: WantUp})
	r.spawned()
	r.actions = nil
	r.step(SignalMain{"s", 0, true})
	if !slices.Contains(r.actions, Action(Signal{"s", r.service().number, sigHup, ScopeGroup, false})) {
		t.Errorf("actions %v", r.actions)
	}
}

func TestAForwardedSignalThatEndsReachesAPausedProcess(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	for signal, wakes := range map[int]bool{sigTerm: true, sigInt: true, sigHup: true, sigQuit: true, 10: false, sigStop: false} {
		r.actions = nil
		r.step(ForwardSignal{"s", signal})
		if want := (Signal{"s", r.service().number, signal, ScopeMain, wakes}); !slices.Contains(r.actions, Action(want)) {
			t.Errorf("signal %d: %v", signal, r.actions)
		}
	}
}

func TestTheEndOfTheContainerIsNoWishOfAnOperator(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	r.step(Add{Name: "t", Policy: new(testPolicy), Want: WantUp})
	r.step(Spawned{"t", 50})
	r.step(Stop{"t"})
	r.step(Shutdown{Reason: "asked"})
	r.exit(0)
	r.step(Exited{Name: "t", PID: 50})
	if got := r.service().lastExit.Cause; got != CauseShutdown {
		t.Errorf("cause %s of what ended with the container", got)
	}
	if got := r.machine.services["t"].lastExit.Cause; got != CauseOperator {
		t.Errorf("cause %s of what was stopped before", got)
	}
}

func TestAnExitThatIsExplainedLaterIsRecordedAgain(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	r.exit(0)
	run := r.service().number
	r.actions = nil
	for range 2 {
		r.step(CorrectCause{"s", run, CauseReplaced})
	}
	var causes []Cause
	for _, a := range r.actions {
		if n, ok := a.(AppendRecord); ok && n.Record.Exit != nil {
			causes = append(causes, n.Record.Exit.Cause)
		}
	}
	if !slices.Equal(causes, []Cause{CauseReplaced}) {
		t.Errorf("recorded %v", causes)
	}
}

func TestAGatewayWhoseProfileWasTakenAwayHasNotCrashed(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	r.exit(1)
	r.actions = nil
	r.step(CorrectCause{"s", r.service().number, CauseOperator})
	if r.service().lastExit.Cause != CauseOperator || r.service().lastExit.Code != 1 {
		t.Errorf("its last exit is %+v", r.service().lastExit)
	}
	for _, a := range r.actions {
		if n, ok := a.(AppendRecord); ok && n.Record.Reason == "exited with code 1 "+SuffixProfileGone {
			return
		}
	}
	t.Errorf("nobody is told: %v", r.actions)
}

func TestReadinessIsAnnouncedOrFollowsUp(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	if !r.service().ready {
		t.Error("a service without readiness of its own is not ready while up")
	}
	p := testPolicy
	p.ReportsReadiness = true
	r = newRig(t)
	r.step(Add{Name: "s", Policy: new(p), Want: WantUp})
	r.spawned()
	if r.service().ready {
		t.Error("ready before it said so")
	}
	r.step(Ready{"s", r.service().number + 1, true, ""})
	if r.service().ready {
		t.Error("ready because of another run")
	}
	r.step(Ready{"s", r.service().number, false, "it still loads"})
	if v := r.service(); v.ready || v.readinessText != "it still loads" {
		t.Errorf("ready %v, said %q", v.ready, v.readinessText)
	}
	r.step(Ready{"s", r.service().number, true, "a port is in use"})
	if v := r.service(); !v.ready || v.readinessText != "a port is in use" {
		t.Errorf("ready %v, said %q", v.ready, v.readinessText)
	}
	r.exit(1)
	if v := r.service(); v.ready || v.readinessText != "" {
		t.Errorf("not running: ready %v, said %q", v.ready, v.readinessText)
	}
}

func TestShutdownStopsAllInParallelAndEndsWithTheLast(t *testing.T) {
	m := Machine{ShutdownBudget: 8 * time.Second}
	now := time.Unix(1000, 0)
	names := []string{"a", "b", "c"}
	for i, n := range names {
		m.Step(now, Add{Name: n, Policy: new(testPolicy), Want: WantUp})
		m.Step(now, Spawned{n, 10 + i})
	}
	m.Step(now, Add{Name: "d", Policy: new(testPolicy), Want: WantUp})
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
		actions := m.Step(now, Exited{Name: n, PID: 10 + i, Code: 0})
		last := i == len(names)-1
		if got := slices.ContainsFunc(actions, func(a Action) bool { _, ok := a.(SignalDescendants); return ok }); got != last {
			t.Errorf("after %s the rest is signalled: %v", n, got)
		}
	}
	actions := m.Step(now, NoChildrenLeft{})
	if f, ok := actions[len(actions)-1].(EndLoop); !ok || f.Code != 0 {
		t.Errorf("actions %v", actions)
	}
}

func TestAStubbornServiceIsKilledWithinTheBudget(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	start := r.now
	r.step(Shutdown{Reason: "asked"})
	var killed time.Duration
	for range 50 {
		at, ok := r.machine.Deadline()
		if !ok {
			break
		}
		r.now = at
		if slices.Contains(r.step(Tick{}), "signaltree") && killed == 0 {
			killed = r.now.Sub(start)
			if sig := r.lastTreeSignal().Signal; sig != sigKill {
				t.Fatalf("signal %d", sig)
			}
		}
	}
	if killed < 7*time.Second || killed >= 8*time.Second {
		t.Errorf("killed after %v of a budget of 8s", killed)
	}
	if took := r.now.Sub(start); took != 8*time.Second || r.machine.phase != phaseFinished {
		t.Errorf("an unkillable process holds the container for %v (phase %v)", took, r.machine.phase)
	}
}

func TestASecondShutdownKillsNow(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	r.step(Shutdown{Reason: "asked"})
	if got := r.step(Shutdown{Reason: "again"}); !slices.Contains(got, "signaltree") || r.lastTreeSignal().Signal != sigKill {
		t.Errorf("actions %v", got)
	}
	r.step(Exited{Name: "s", PID: r.service().pid, Code: -1, Signal: sigKill})
	if got := r.step(NoChildrenLeft{}); !slices.Contains(got, "end") {
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
		m := Machine{ShutdownBudget: time.Second}
		now := time.Unix(1000, 0)
		m.Step(now, Add{Name: "cmd", Policy: &Policy{IsCMD: true, StopSignal: sigTerm, Grace: time.Minute}, Want: WantUp})
		m.Step(now, Spawned{"cmd", 5})
		m.Step(now, c.e)
		m.Step(now, RunEnded{"cmd", 1})
		actions := m.Step(now, NoChildrenLeft{})
		if f, ok := actions[len(actions)-1].(EndLoop); !ok || f.Code != c.code {
			t.Errorf("%+v: actions %v, want exit code %d", c.e, actions, c.code)
		}
	}
}

// A CMD that ends by the signal of the shutdown must not count as failed.
func TestACMDThatIsStoppedIsNoFailure(t *testing.T) {
	for _, c := range []struct {
		ends Exited
		told int
		code int
	}{
		{Exited{Name: "cmd", PID: 5, Code: -1, Signal: sigTerm}, 0, 0},
		{Exited{Name: "cmd", PID: 5, Code: -1, Signal: sigTerm}, 1, 1},
		{Exited{Name: "cmd", PID: 5, Code: -1, Signal: sigKill}, 0, 137},
		{Exited{Name: "cmd", PID: 5, Code: -1, Signal: sigInt}, 0, 130},
		{Exited{Name: "cmd", PID: 5, Code: 143}, 0, 143},
		{Exited{Name: "cmd", PID: 5, Code: 7}, 0, 7},
	} {
		m := Machine{ShutdownBudget: time.Second}
		now := time.Unix(1000, 0)
		m.Step(now, Add{Name: "cmd", Policy: &Policy{IsCMD: true, StopSignal: sigTerm, Grace: time.Minute}, Want: WantUp})
		m.Step(now, Spawned{"cmd", 5})
		m.Step(now, Shutdown{Code: c.told, Reason: "received SIGTERM"})
		m.Step(now, c.ends)
		actions := m.Step(now, NoChildrenLeft{})
		if f, ok := actions[len(actions)-1].(EndLoop); !ok || f.Code != c.code {
			t.Errorf("%+v, told to end with %d: actions %v, want exit code %d", c.ends, c.told, actions, c.code)
		}
	}
}

func TestATaskRunsOnce(t *testing.T) {
	p := testPolicy
	p.SingleRun = true
	for _, end := range []func(r *rig){
		func(r *rig) { r.spawned(); r.exit(1) },
		func(r *rig) { r.spawned(); r.causeEvents("leftover"); r.step(RunEnded{"s", r.service().number}) },
		func(r *rig) { r.step(SpawnFailed{Name: "s", Error: "no"}) },
	} {
		r := newRig(t)
		r.step(Add{Name: "s", Policy: new(p), Want: WantUp})
		end(r)
		r.wantState(Down)
		r.advance(time.Hour)
		r.wantState(Down)
		if r.service().want != WantDown || r.service().lastExit == nil {
			t.Errorf("want %s, last exit %+v", r.service().want, r.service().lastExit)
		}
	}
}

func TestACmdThatCannotStartEndsTheContainer(t *testing.T) {
	m := Machine{ShutdownBudget: time.Second}
	now := time.Unix(1000, 0)
	m.Step(now, Add{Name: "cmd", Policy: &Policy{IsCMD: true}, Want: WantUp})
	m.Step(now, SpawnFailed{Name: "cmd", Error: "no", Code: 127})
	actions := m.Step(now, NoChildrenLeft{})
	if f, ok := actions[len(actions)-1].(EndLoop); !ok || f.Code != 127 {
		t.Errorf("actions %v", actions)
	}
}

func TestOnlyTheEarliestDeadlineIsAskedFor(t *testing.T) {
	r := newRig(t)
	if _, ok := r.machine.Deadline(); ok {
		t.Error("an empty machine wants to be woken")
	}
	r.reachUp()
	if at, ok := r.machine.Deadline(); ok {
		t.Errorf("a healthy service wants to be woken at %v", at)
	}
}

func TestTheCmdIsTriedAgainWhereTheKernelWasShortOfMemory(t *testing.T) {
	for passing, want := range map[bool]State{true: Backoff, false: Down} {
		m := Machine{ShutdownBudget: time.Second}
		now := time.Unix(1000, 0)
		m.Step(now, Add{Name: "cmd", Policy: &Policy{IsCMD: true, SpawnRetry: time.Second}, Want: WantUp})
		m.Step(now, SpawnFailed{Name: "cmd", Error: "cannot allocate memory", Code: 126, Temporary: passing})
		if got := m.services["cmd"].state; got != want || m.Stopping() == passing {
			t.Errorf("passing %v: the CMD is %s, the container stops: %v", passing, got, m.Stopping())
		}
	}
}

// A start that fails with ETXTBSY must be tried again after a second. After other errors, the service must wait for a minute.
func TestAServiceWhoseRunIsStillBeingCopiedStartsSoon(t *testing.T) {
	for passing, want := range map[bool]time.Duration{true: time.Second, false: time.Minute} {
		m := Machine{}
		now := time.Unix(1000, 0)
		again := backoff.Policy{Initial: time.Second, Max: time.Second, Factor: 1}
		m.Step(now, Add{Name: "s", Policy: &Policy{SpawnRetry: time.Minute, Backoff: again}, Want: WantUp})
		m.Step(now, SpawnFailed{Name: "s", Error: "text file busy", Code: 126, Temporary: passing})
		if at, ok := m.Deadline(); !ok || at.Sub(now) != want {
			t.Errorf("passing %v: again at %v, want %v later", passing, at, want)
		}
	}
}

// States lists every state, in the order of a service's life.
func States() []State {
	return []State{Down, Waiting, Starting, Up, Stopping, Killing, Finishing, Backoff, Parked, Failed}
}
