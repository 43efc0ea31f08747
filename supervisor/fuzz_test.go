package supervisor

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

// FuzzStep drives a machine with any sequence of events and answers its actions as a kernel would. After each step it
// checks the invariants.
func FuzzStep(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	f.Add([]byte{0, 40, 80, 120, 160, 200, 240, 3, 13, 13, 13, 13})
	f.Add([]byte{1, 4, 10, 10, 1, 4, 12, 10, 10, 11})
	f.Add([]byte{48, 69, 11, 11, 52, 52, 64, 52, 66, 50, 68, 67, 53, 52, 59})
	f.Add([]byte{25, 51, 77, 26, 4, 52, 4, 30, 24, 50, 76, 10, 11, 25, 250})
	f.Add([]byte{24, 231, 28, 10, 28, 10, 10})
	f.Add([]byte{26, 33, 30}) // only a stop command is alive, so the container may end
	f.Add([]byte{26, 28, 30, 10, 10, 179, 49, 26, 28, 49, 30, 28, 179, 30, 10, 49})
	f.Add([]byte{24, 28, 25, 28, 34, 34, 34, 28, 29, 30, 27, 28, 26, 29, 34, 34, 231, 231})
	f.Fuzz(func(t *testing.T, script []byte) {
		w := newWorld(t)
		for _, b := range script {
			w.doAction(int(b))
			w.checkInvariants()
			if w.finished {
				return
			}
		}
		w.shutdown()
	})
}

// fuzzPolicies are the policies of the three services: a gateway, a service with a supervised finish command, and a
// service as an s6 service directory defines it.
var fuzzPolicies = map[string]Policy{
	"a": testPolicy,
	"b": func() Policy { p := finishingPolicy; p.LimitedStarts, p.StopCommand = true, []string{"ask"}; return p }(),
	"c": func() Policy {
		p := finishingPolicy
		p.Backoff.Max, p.LeaveDescendants, p.KillNever, p.KillScope = time.Second, true, true, ScopeMain
		p.ReportsReadiness, p.ReadyRestart, p.SpawnRetry, p.DrainsInput, p.LimitedStarts = true, time.Second, time.Minute, true, true
		return p
	}(),
}

// process is the fake kernel's record of a run.
type process struct {
	pid      int
	run      uint64
	main     bool
	finish   bool
	leftover bool
	killAt   time.Time // earliest time at which KILL is allowed; zero while KILL is not allowed
}

type fuzzWorld struct {
	t             *testing.T
	m             Machine
	now           time.Time
	pids          int
	procs         map[string]*process
	stopCommands  map[string]*process // stop commands of which a process is alive
	operatorActed bool
	finished      bool
	shuttingDown  bool
	hasty         bool
}

func newWorld(t *testing.T) *fuzzWorld {
	return &fuzzWorld{
		t: t, m: Machine{ShutdownBudget: 8 * time.Second, MaxStarting: 1}, now: time.Unix(1000, 0), pids: 100,
		procs: map[string]*process{}, stopCommands: map[string]*process{},
	}
}

const actionKinds = 26

func (w *fuzzWorld) doAction(b int) {
	name := string(rune('a' + b/actionKinds%3))
	p := w.procs[name]
	policy := fuzzPolicies[name]
	w.operatorActed = false
	switch b % actionKinds {
	case 0:
		w.step(Add{Name: name, Policy: new(policy), Want: WantUp})
	case 1:
		w.step(Start{name})
	case 2:
		w.step(Stop{name})
	case 3:
		w.step(Restart{name})
	case 4, 5:
		if p != nil && p.main {
			leftover := b%actionKinds == 5
			p.main, p.leftover = false, leftover && !policy.LeaveDescendants
			w.step(Exited{Name: name, PID: p.pid, Code: []int{0, 1, 75, 78, 125}[w.pids%5], Leftover: leftover})
		}
	case 6:
		if p != nil && !p.main && p.leftover {
			p.leftover = false
			w.step(RunEnded{name, p.run})
		}
	case 7:
		w.step(Remove{name})
	case 8:
		w.step(Add{Name: name, Policy: new(policy), Want: WantDown, Needs: []string{"boot"}})
	case 9:
		w.step(NeedMet{"boot"})
	case 10:
		if at, ok := w.m.Deadline(); ok && at.After(w.now) {
			w.now = at
		}
		w.step(Tick{})
	case 11:
		w.now = w.now.Add(700 * time.Millisecond)
		w.step(Tick{})
	case 12:
		s := w.m.services[name]
		soon := s != nil && s.state == Parked && s.since.Equal(w.now) && s.lastExit.Uptime < policy.ResetAfter && s.lastExit.Cause != CauseReplaced
		w.step(InputsChanged{name})
		if soon && s.state != Backoff {
			w.t.Fatalf("%s is %s right after it had been parked: it may change its inputs itself", name, s.state)
		}
	case 13:
		if s := w.m.services[name]; s != nil {
			w.step(CorrectCause{name, s.number, CauseReplaced})
		}
	case 14:
		w.step(RunEnded{name, 1 << 40}) // the number of no run
	case 15:
		if b/actionKinds > 8 {
			w.hasty = w.hasty || w.shuttingDown
			w.shuttingDown = true
			w.step(Shutdown{Reason: "fuzz"})
		}
	case 16:
		w.step(RunOnce{name})
	case 17:
		w.step(StayDown{name})
	case 18:
		w.step(Pause{name, b/actionKinds > 5})
	case 19:
		w.step(Continue{name, b/actionKinds > 5})
	case 20:
		w.operatorActed = true
		w.step(SignalMain{name, []int{0, sigHup, sigKill}[w.pids%3], b/actionKinds > 5})
	case 21:
		if p != nil && p.main {
			w.step(Ready{name, p.run, true, ""})
			switch {
			case b/actionKinds > 6:
				w.step(Unhealthy{Name: name, Run: p.run, Answer: "no answer", Park: b/actionKinds > 8})
			case b/actionKinds > 3:
				w.step(ChecksReported{Name: name, Run: p.run, Ready: b/actionKinds > 5})
			case b/actionKinds > 1:
				w.endProcess(name, p)
			}
		}
	case 22:
		if s := w.m.services[name]; s != nil && !(p != nil && p.leftover && p.run == s.number) {
			// The machine may ignore an exit only if no main process is alive: the finish command has begun, or the run ended
			// long ago.
			w.step(RunEnded{name, s.number})
		}
	case 23:
		if c := w.stopCommands[name]; c != nil {
			switch leftover := b/actionKinds > 4; {
			case !c.main:
				delete(w.stopCommands, name)
				w.step(RunEnded{name, c.run})
			case leftover:
				c.main = false
				w.step(StopCommandEnded{Name: name, Run: c.run, Leftover: true})
			default:
				delete(w.stopCommands, name)
				w.step(StopCommandEnded{Name: name, Run: c.run})
			}
		}
		w.step(Exited{Name: name, PID: 1, Code: 1})
	case 24:
		w.step(Scheduled{name, w.now.Add(time.Hour), b/actionKinds > 2})
	case 25:
		policy.RestartAndNeeds = fuzzNeeds(name, w.pids+b)
		w.step(Add{Name: name, Policy: new(policy), Want: WantUp})
	}
}

// fuzzNeeds returns any needs, also circular ones.
func fuzzNeeds(name string, n int) RestartAndNeeds {
	others := map[string][]string{"a": {"b", "c"}, "b": {"c", "a"}, "c": {"a", "b"}}[name]
	o := RestartAndNeeds{
		RestartPolicy: []RestartAfter{RestartAlways, RestartOnFailure, RestartNever, RestartOnSuccess}[n%4],
		MaxRestarts:   n % 3, RestartsWindow: time.Minute,
		IsConfiguredTask: n%5 == 0, RunBeforeEachStart: n%10 == 0,
		Needs: []Need{{others[0], []Until{UntilReady, UntilDone, UntilStarted, UntilTried}[n%4], n%7 == 0}},
	}
	if n%4 == 1 {
		o.Needs = append(o.Needs, Need{others[1], UntilReady, false})
	}
	if n%6 == 2 {
		o.Needs, o.RestartOn = nil, others[:1]
	}
	return o
}

func (w *fuzzWorld) step(e Event) {
	if w.finished {
		return
	}
	actions := append([]Action(nil), w.m.Step(w.now, e)...)
	for _, a := range actions {
		switch a := a.(type) {
		case Spawn:
			w.spawn(a.Name, a.Run, false)
		case SpawnFinish:
			if a.Exit.Run == a.Run || a.Exit.Run != w.m.services[a.Name].number {
				w.t.Fatalf("%s: run %d finishes run %d", a.Name, a.Run, a.Exit.Run)
			}
			w.spawn(a.Name, a.Run, true)
		case SpawnStop:
			if p := w.procs[a.Name]; w.stopCommands[a.Name] != nil || p == nil || !p.main {
				w.t.Fatalf("a stop command of %s begins beside %+v, with the main process %+v", a.Name, w.stopCommands[a.Name], p)
			}
			w.procs[a.Name].killAt = w.now.Add(fuzzPolicies[a.Name].Grace)
			w.stopCommands[a.Name] = &process{run: a.Run, main: true, killAt: w.procs[a.Name].killAt}
			if w.pids%5 == 0 {
				delete(w.stopCommands, a.Name)
				w.step(StopCommandEnded{Name: a.Name, Run: a.Run, Fault: "cannot be run"})
			}
		case Signal:
			if a.Scope != ScopeTree {
				w.signal(a.Name, a.Run, a.Signal, a.Wake)
				continue
			}
			p := w.procs[a.Name]
			if c := w.stopCommands[a.Name]; c != nil && c.run == a.Run {
				if a.Signal != sigKill || c.main && !w.shuttingDown && w.now.Before(c.killAt) {
					w.t.Fatalf("signal %d for the stop command of %s: %+v", a.Signal, a.Name, c)
				}
				continue
			}
			if p == nil || p.run != a.Run || !p.main && !p.leftover {
				w.t.Fatalf("signal %d for the tree of %s, of which nothing is alive: %+v", a.Signal, a.Name, p)
			}
			if a.Signal == sigKill && p.main {
				w.checkMayKill(a.Name, p)
			}
		case EndLoop:
			w.finished = true
		case SignalDescendants:
			for name, p := range w.procs {
				if w.now.Before(w.m.forcedEnd) && (p.main || p.leftover || w.stopCommands[name] != nil) {
					w.t.Fatalf("the rest is ended while %s is alive: %+v", name, p)
				}
			}
		case CloseOutput:
			if p := w.procs[a.Name]; !w.shuttingDown || w.stopCommands[a.Name] != nil || p != nil && (p.main || p.leftover) {
				w.t.Fatalf("the file of %s is closed (the container ends: %v) while it may be written to: %+v", a.Name, w.shuttingDown, p)
			}
		case ServiceChanged, AppendRecord:
		}
	}
}

func (w *fuzzWorld) spawn(name string, run uint64, finish bool) {
	p := w.procs[name]
	if p != nil && (p.main || p.leftover) || w.stopCommands[name] != nil {
		w.t.Fatalf("%s spawned while its last run is alive: %+v", name, p)
	}
	if s := w.m.services[name]; !finish {
		for _, n := range s.policy.Needs {
			if t := w.m.services[n.Name]; (t == nil || !t.policy.RunBeforeEachStart) && w.m.whyUnmet(s, n) != "" {
				w.t.Fatalf("%s is started and lacks %s", name, w.m.whyUnmet(s, n))
			}
		}
	}
	if finish && (p == nil || p.finish) {
		w.t.Fatalf("%s is finished without having run: %+v", name, p)
	}
	w.pids++
	if w.pids%7 == 0 {
		w.step(SpawnFailed{Name: name, Error: "no", Permanent: w.pids%2 == 0})
		return
	}
	p = &process{pid: w.pids, run: run, main: true, finish: finish}
	if finish {
		p.killAt = w.now.Add(fuzzPolicies[name].FinishTimeout)
	}
	w.procs[name] = p
	w.step(Spawned{name, w.pids})
}

func (w *fuzzWorld) signal(name string, run uint64, signal int, stop bool) {
	p := w.procs[name]
	switch {
	case p == nil || !p.main || p.run != run:
		w.t.Fatalf("signal %d for %s, whose run %d has no main process: %+v", signal, name, run, p)
	case signal == sigKill && !w.operatorActed:
		w.checkMayKill(name, p)
	case p.finish:
		w.t.Fatalf("signal %d for the finish command of %s", signal, name)
	// If a stop command ran first, the grace period began with the stop command.
	case stop && !fuzzPolicies[name].KillNever && len(fuzzPolicies[name].StopCommand) == 0:
		p.killAt = w.now.Add(fuzzPolicies[name].Grace)
	}
}

func (w *fuzzWorld) endProcess(name string, p *process) {
	up := w.m.services[name].state == Up
	w.step(NotifyMessage{Name: name, Run: p.run, Stopping: true, Extend: time.Minute})
	if up && w.m.services[name].state == Stopping {
		p.killAt = w.now.Add(fuzzPolicies[name].Grace)
	}
}

// checkMayKill fails the test unless hinit may kill the process now.
func (w *fuzzWorld) checkMayKill(name string, p *process) {
	switch {
	case w.shuttingDown: // during a shutdown, only the shutdown budget limits the time of SIGKILL
	case p.killAt.IsZero():
		w.t.Fatalf("%s killed without having been asked to end", name)
	case w.now.Before(p.killAt):
		w.t.Fatalf("%s killed %v before its time", name, p.killAt.Sub(w.now))
	}
}

func (w *fuzzWorld) checkInvariants() {
	fresh := Machine{inOrder: w.m.inOrder}
	fresh.rebuildIndexes()
	for name := range maps.Keys(fresh.dependants) {
		if want, is := fresh.dependants[name], w.m.dependants[name]; len(is) != len(want) || len(cloneWithout(want, func(s *service) bool { return slices.Contains(is, s) })) > 0 {
			w.t.Fatalf("the dependants of %s are %v, and the machine has %v", name, want, is)
		}
	}
	if at, ok := fresh.Deadline(); ok && (w.m.stepResult.wakeAt.IsZero() || w.m.stepResult.wakeAt.After(at)) {
		w.t.Fatalf("a service has the deadline %v, and the machine wakes at %v", at, w.m.stepResult.wakeAt)
	}
	if n := len(slices.DeleteFunc(slices.Clone(w.m.inOrder), func(s *service) bool { return s.queuePosition == 0 })); n != len(w.m.queue) {
		w.t.Fatalf("%d services wait for a turn, and %d are in the line", n, len(w.m.queue))
	}
	for _, s := range w.m.inOrder {
		p := w.procs[s.name]
		c := w.stopCommands[s.name]
		alive := p != nil && (p.main || p.leftover) || c != nil
		if (s.stopCommand.run != 0) != (c != nil) || c != nil && c.run != s.stopCommand.run {
			w.t.Fatalf("%s: the machine has stop command %d, the kernel %+v", s.name, s.stopCommand.run, c)
		}
		if (s.pid != 0) != (p != nil && p.main) {
			w.t.Fatalf("%s: machine has pid %d, kernel %+v", s.name, s.pid, p)
		}
		if s.paused && !s.isRunning() {
			w.t.Fatalf("%s is paused and does not run", s.name)
		}
		if v := s.snapshot(&unit{Unit: &Unit{}}); v.PID != 0 && p.finish {
			w.t.Fatalf("%s shows the process of its finish command", s.name)
		}
		switch s.state {
		case Down, Parked, Failed:
			if alive {
				w.t.Fatalf("%s is %s and alive", s.name, s.state)
			}
		case Backoff:
			if alive || s.deadline.IsZero() {
				w.t.Fatalf("%s is in backoff: alive %v, deadline %v", s.name, alive, s.deadline)
			}
		case Stopping, Killing:
			if !alive || p.finish && p.main || s.deadline.IsZero() && !(p.main && s.policy.KillNever && !w.shuttingDown) {
				w.t.Fatalf("%s is %s without a deadline, or without a process of its run: %+v", s.name, s.state, p)
			}
		case Finishing:
			if !alive || !p.main || !p.finish || s.deadline.IsZero() {
				w.t.Fatalf("%s is finishing without a finish command or a deadline: %+v", s.name, p)
			}
		case Waiting:
			if at, ok := w.m.Deadline(); s.queuePosition != 0 && (w.m.freeTurns(w.now) > 0 || !ok || at.After(w.now.Add(startSlotTime))) {
				w.t.Fatalf("%s waits for a turn that nobody takes: %v", s.name, at)
			}
			if names, _ := w.m.unmetNeeds(s); s.queuePosition == 0 && len(s.needs) == 0 && len(names) == 0 {
				w.t.Fatalf("%s waits for nothing", s.name)
			}
		case Up:
			if !alive || p.finish || c != nil {
				w.t.Fatalf("%s is up and not alive: %+v", s.name, p)
			}
			if w.shuttingDown && (s.deadline.IsZero() || s.deadline.After(w.m.forcedEnd)) {
				w.t.Fatalf("%s is left alone at the end until %v", s.name, s.deadline)
			}
		case Starting:
			w.t.Fatalf("%s is still starting", s.name)
		}
	}
}

// shutdown stops the container, which must end even if no process ever dies.
func (w *fuzzWorld) shutdown() {
	w.shuttingDown, w.operatorActed = true, false
	w.step(Shutdown{Reason: "end"})
	w.checkInvariants()
	begin := w.now
	for i := 0; !w.finished; i++ {
		at, ok := w.m.Deadline()
		if !ok || i > 200 {
			w.t.Fatalf("no end in sight after %d steps: %s", i, w.describe())
		}
		if at.After(w.now) {
			w.now = at
		}
		w.step(Tick{})
	}
	if took := w.now.Sub(begin); took > w.m.ShutdownBudget {
		w.t.Fatalf("shutdown took %v", took)
	}
}

func (w *fuzzWorld) describe() string {
	out := ""
	for _, s := range w.m.inOrder {
		out += fmt.Sprintf("%s=%s(pid %d, leftover %v) ", s.name, s.state, s.pid, s.leftover)
	}
	return out
}
