package supervisor

// The transition table. A row is a state, what happens, and what follows; TestTransitionTable walks it cell by cell, so
// it can't go stale. "settle" is the state chosen when the main process died: down when stopping was asked, else backoff,
// parked, or a start at once. What a dead main process left behind ("leftover") is ended first: TERM, half a second, KILL.
//
//	state     event        next       does
//	-------   ----------   --------   -------------------------------------------
//	down      start        starting   spawn
//	down      restart      starting   spawn
//	down      stop         down
//	waiting   met          starting   spawn
//	waiting   start        waiting
//	waiting   restart      waiting
//	waiting   stop         down
//	starting  spawned      up
//	starting  spawnfail    backoff
//	starting  spawnbad     failed
//	up        start        up
//	up        stop         stopping   signal
//	up        restart      stopping   signal
//	up        crash        backoff
//	up        leftover     stopping   signaltree
//	up        park         parked
//	up        again        starting   spawn
//	stopping  start        stopping
//	stopping  stop         stopping
//	stopping  crash        down
//	stopping  leftover     stopping   signaltree
//	stopping  gone         down
//	stopping  deadline     killing    signaltree
//	killing   start        killing
//	killing   stop         killing
//	killing   crash        down
//	killing   leftover     killing    signaltree
//	killing   gone         down
//	killing   deadline     killing    signaltree
//	backoff   start        starting   spawn
//	backoff   restart      starting   spawn
//	backoff   stop         down
//	backoff   deadline     starting   spawn
//	backoff   replaced     parked
//	parked    start        starting   spawn
//	parked    restart      starting   spawn
//	parked    stop         down
//	parked    inputs       starting   spawn
//	failed    start        starting   spawn
//	failed    restart      starting   spawn
//	failed    stop         down
//
// Any event that has no row leaves the state as it is and does nothing.

import (
	"slices"
	"strconv"
	"time"
)

const (
	// leftoverGrace is how long processes that outlived their main process have between TERM and KILL.
	leftoverGrace = 500 * time.Millisecond
	// killAgain is how often KILL is repeated for a tree that is not gone (it may have forked meanwhile).
	killAgain = time.Second
	// quickAgain is how many restarts that a process asked for itself may follow each other without any delay when each
	// life is shorter than the first backoff delay; further ones wait that delay, so that no exit code can spin the loop.
	quickAgain = 3
)

// Reasons that others look for.
const (
	ReasonShutdown = "the container is stopping"       // of every transition that the end of the container causes
	ReasonReplaced = "another instance has taken over" // of parking after a takeover
)

// Numbers of the two signals the machine chooses itself (signal(7); the same on every Linux architecture).
const (
	sigKill = 9
	sigTerm = 15
)

// Event is something that happened. The set is closed.
type Event interface{ event() }

// Events the loop feeds to the machine.
type (
	// Add makes a service known, or changes the policy of a known one. It starts when Want is up and its needs are met.
	Add struct {
		Name   string
		Policy Policy
		Want   Want
		Needs  []string // it waits until each of them is met
	}
	// Met says that a need is met, for every service that has it.
	Met struct{ Need string }
	// Remove stops a service and forgets it once it is down.
	Remove struct{ Name string }
	// Start wants a service up, now: a pending delay is skipped and failures are forgotten.
	Start struct{ Name string }
	// Stop wants a service down.
	Stop struct{ Name string }
	// Restart ends a running process and starts the service again at once; a service that is not running is started.
	Restart struct{ Name string }
	// Spawned answers a Spawn action.
	Spawned struct {
		Name string
		PID  int
	}
	// SpawnFailed answers a Spawn action. Permanent means that trying again without a change is pointless.
	SpawnFailed struct {
		Name      string
		Error     string
		Permanent bool
		Code      int // exit code that a shell would give: 126 or 127
	}
	// Exited says that the main process of a service ended.
	Exited struct {
		Name     string
		PID      int
		Code     int  // -1 when ended by a signal
		Signal   int  // 0 when it exited
		OOM      bool // the kernel's out-of-memory killer did it
		Leftover bool // processes it started are still alive
	}
	// Gone says that no process of the service's last run is alive any more.
	Gone struct {
		Name string
		Run  uint64
	}
	// Explained gives the exit of a run a better cause than its code told.
	Explained struct {
		Name  string
		Run   uint64
		Cause Cause
	}
	// Tailed brings the last log lines of a run.
	Tailed struct {
		Name  string
		Run   uint64
		Lines []string
	}
	// Ready says whether a running service answers.
	Ready struct {
		Name  string
		Run   uint64
		Ready bool
	}
	// Inputs says that the files which a parked service depends on have changed.
	Inputs struct{ Name string }
	// Forward passes a signal on to the running main process.
	Forward struct {
		Name   string
		Signal int
	}
	// Remark puts a line into the history; Service may be "".
	Remark struct{ Service, Text string }
	// Shutdown ends everything within the machine's budget. A second one kills at once.
	Shutdown struct {
		Code   int // exit code of the container unless the CMD has one
		Reason string
	}
	// Swept says that this process has no child left.
	Swept struct{}
	// Tick says nothing but the time.
	Tick struct{}
)

func (Add) event()         {}
func (Met) event()         {}
func (Remove) event()      {}
func (Start) event()       {}
func (Stop) event()        {}
func (Restart) event()     {}
func (Spawned) event()     {}
func (SpawnFailed) event() {}
func (Exited) event()      {}
func (Gone) event()        {}
func (Explained) event()   {}
func (Tailed) event()      {}
func (Ready) event()       {}
func (Inputs) event()      {}
func (Forward) event()     {}
func (Remark) event()      {}
func (Shutdown) event()    {}
func (Swept) event()       {}
func (Tick) event()        {}

// Action is something the loop has to do, in the order given. The set is closed.
type Action interface{ action() }

// Actions the machine asks for.
type (
	// Spawn starts the main process; the loop answers with Spawned or SpawnFailed before any other event.
	Spawn struct {
		Name string
		Run  uint64
	}
	// Signal goes to the main process alone.
	Signal struct {
		Name   string
		Run    uint64
		Signal int
	}
	// SignalTree goes to every process of a run.
	SignalTree struct {
		Name   string
		Run    uint64
		Signal int
	}
	// SignalRest goes to every other descendant of this process; nothing is supervised any more by then.
	SignalRest struct{ Signal int }
	// Changed says that the snapshot of a service is out of date.
	Changed struct{ Name string }
	// Note is a record for the history.
	Note struct{ Record Record }
	// Dropped says that a service is forgotten.
	Dropped struct{ Name string }
	// Finish ends the loop with an exit code.
	Finish struct{ Code int }
)

func (Spawn) action()      {}
func (Signal) action()     {}
func (SignalTree) action() {}
func (SignalRest) action() {}
func (Changed) action()    {}
func (Note) action()       {}
func (Dropped) action()    {}
func (Finish) action()     {}

// phase is where the container is in its life.
type phase int

const (
	running  phase = iota
	stopping       // every service is being stopped
	sweeping       // no service is left; everything else is being ended
	finished
)

// service is what the machine knows of one service.
type service struct {
	name   string
	policy Policy
	needs  []string // not met yet

	state    State
	since    time.Time
	reason   string    // why it is in this state
	deadline time.Time // zero, or when the state changes by itself
	want     Want
	removing bool

	run      uint64 // number of the current or last run
	pid      int    // main process, 0 if none
	leftover bool   // main process gone, others of its run are not
	upSince  time.Time
	ready    bool

	asked    bool // hinit itself told this run to end
	again    bool // start at once when it is down
	next     settle
	failures int         // fast exits in a row
	quick    int         // short lives in a row that asked for a restart
	recent   []time.Time // fast exits within the window
	looping  bool
	respawn  bool // the next start follows an exit nobody asked for
	restarts int
	last     *Exit
}

// settle is what follows once everything of a run is gone.
type settle struct {
	state    State
	deadline time.Time
	reason   string
}

// Machine is the supervision of all services as a pure state machine. It is not safe for concurrent use: one goroutine
// owns it.
type Machine struct {
	// Budget bounds a container shutdown, from the first Shutdown to Finish.
	Budget time.Duration
	// Random returns a number in [0,1); it spreads the restart delays.
	Random func() float64

	services map[string]*service
	order    []*service // the same, in the order of registration
	runs     uint64
	phase    phase
	reason   string
	code     int
	mainCode *int
	killAt   time.Time // in phase stopping: what is still alive is killed; in phase sweeping: the rest is killed
	hardEnd  time.Time // shutdown ends here, whatever is still alive
	swept    bool
	killed   bool // KILL was sent to the rest
	out      []Action
}

// Step takes one event at a time that never goes backwards and returns what has to be done, in order. The slice is
// reused by the next Step. Events about unknown services, runs or processes that are gone are ignored.
func (m *Machine) Step(now time.Time, e Event) []Action {
	m.out = m.out[:0]
	if m.phase == finished {
		return nil
	}
	switch e := e.(type) {
	case Add:
		m.add(now, e)
	case Met:
		for _, s := range m.order {
			m.met(now, s, e.Need)
		}
	case Shutdown:
		m.shutdown(now, e)
	case Remark:
		m.do(Note{Record{At: now, Service: e.Service, Reason: e.Text}})
	case Swept:
		m.swept = true
	case Tick:
		m.tick(now)
	default:
		if s := m.services[target(e)]; s != nil {
			m.step(now, s, e)
		}
	}
	m.advance(now)
	return m.out
}

// target names the service an event is about.
func target(e Event) string {
	switch e := e.(type) {
	case Remove:
		return e.Name
	case Start:
		return e.Name
	case Stop:
		return e.Name
	case Restart:
		return e.Name
	case Spawned:
		return e.Name
	case SpawnFailed:
		return e.Name
	case Exited:
		return e.Name
	case Gone:
		return e.Name
	case Explained:
		return e.Name
	case Tailed:
		return e.Name
	case Ready:
		return e.Name
	case Inputs:
		return e.Name
	case Forward:
		return e.Name
	case Add, Met, Remark, Shutdown, Swept, Tick:
	}
	return ""
}

func (m *Machine) step(now time.Time, s *service, e Event) {
	switch e := e.(type) {
	case Remove:
		s.removing = true
		m.stop(now, s, "removed")
		m.dropIfDown(now, s)
	case Start:
		m.start(now, s)
	case Stop:
		m.stop(now, s, "operator asked to stop")
	case Restart:
		m.restart(now, s)
	case Spawned:
		m.spawned(now, s, e)
	case SpawnFailed:
		m.spawnFailed(now, s, e)
	case Exited:
		m.exited(now, s, e)
	case Gone:
		m.gone(now, s, e)
	case Explained:
		m.explained(now, s, e)
	case Tailed:
		if s.last != nil && s.last.Run == e.Run {
			last := *s.last
			last.Tail = e.Lines
			s.last = &last
			m.changed(s)
		}
	case Ready:
		if s.state == Up && s.run == e.Run && s.ready != e.Ready {
			s.ready = e.Ready
			m.changed(s)
		}
	case Inputs:
		if s.state == Parked {
			m.begin(now, s, "inputs changed")
		}
	case Forward:
		if s.pid != 0 {
			m.do(Signal{s.name, s.run, e.Signal})
		}
	case Add, Met, Remark, Shutdown, Swept, Tick:
	}
}

// Stopping reports whether a container shutdown has begun.
func (m *Machine) Stopping() bool { return m.phase != running }

// Deadline returns the earliest time at which the machine wants a Tick, and whether there is one.
func (m *Machine) Deadline() (time.Time, bool) {
	var first time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	switch m.phase {
	case running:
	case stopping:
		earlier(m.hardEnd)
	case sweeping:
		earlier(m.killAt)
		earlier(m.hardEnd)
	case finished:
		return time.Time{}, false
	}
	for _, s := range m.order {
		earlier(s.deadline)
	}
	return first, !first.IsZero()
}

func (m *Machine) do(a Action) { m.out = append(m.out, a) }

func (m *Machine) changed(s *service) { m.do(Changed{s.name}) }

// set is the one door through which a service changes its state.
func (m *Machine) set(now time.Time, s *service, to State, deadline time.Time, reason string) {
	from := s.state
	s.deadline, s.reason = deadline, reason
	if from != to {
		s.state, s.since = to, now
	}
	if to != Up {
		s.ready = false
	}
	m.do(Note{Record{At: now, Service: s.name, From: from, To: to, Reason: reason, PID: s.pid}})
	m.changed(s)
}

func (m *Machine) add(now time.Time, e Add) {
	if s := m.services[e.Name]; s != nil {
		s.policy = e.Policy
		if s.removing { // it came back before it was gone
			s.removing = false
			if e.Want == WantUp {
				m.start(now, s)
			}
		}
		m.changed(s)
		return
	}
	if m.services == nil {
		m.services = make(map[string]*service)
	}
	s := &service{
		name: e.Name, policy: e.Policy, needs: slices.Clone(e.Needs),
		state: Down, since: now, want: WantDown,
	}
	m.services[e.Name] = s
	m.order = append(m.order, s)
	m.do(Note{Record{At: now, Service: e.Name, From: Down, To: Down, Reason: "registered"}})
	m.changed(s)
	if e.Want == WantUp && m.phase == running {
		s.want = WantUp
		m.begin(now, s, "wanted up at registration")
	}
}

func (m *Machine) met(now time.Time, s *service, need string) {
	i := slices.Index(s.needs, need)
	if i < 0 {
		return
	}
	s.needs = slices.Delete(s.needs, i, i+1)
	if len(s.needs) == 0 && s.state == Waiting {
		m.begin(now, s, need+" is met")
	}
}

// begin starts a service that has no process, or lets it wait for its needs.
func (m *Machine) begin(now time.Time, s *service, reason string) {
	if m.phase != running {
		m.set(now, s, Down, time.Time{}, ReasonShutdown)
		return
	}
	if len(s.needs) > 0 {
		m.set(now, s, Waiting, time.Time{}, "waits for "+s.needs[0])
		return
	}
	m.runs++
	s.run = m.runs
	s.asked, s.again, s.leftover = false, false, false
	if s.respawn {
		s.respawn = false
		s.restarts++
	}
	m.set(now, s, Starting, time.Time{}, reason)
	m.do(Spawn{s.name, s.run})
}

// forgive forgets what earlier runs did wrong.
func (s *service) forgive() {
	s.failures, s.quick, s.looping = 0, 0, false
	s.recent = s.recent[:0]
}

func (m *Machine) start(now time.Time, s *service) {
	if m.phase != running {
		return
	}
	if s.removing { // only Add brings it back
		return
	}
	s.want = WantUp
	switch s.state {
	case Down, Backoff, Parked, Failed:
		s.forgive()
		m.begin(now, s, "operator asked to start")
	case Stopping, Killing: // starts as soon as the old run is gone
		s.again = true
		m.changed(s)
	case Up: // it runs already; what it did wrong before is forgotten all the same
		s.forgive()
		s.deadline = time.Time{}
		m.changed(s)
	case Waiting, Starting:
		m.changed(s)
	}
}

func (m *Machine) restart(now time.Time, s *service) {
	if s.state != Up || m.phase != running {
		m.start(now, s)
		return
	}
	s.want = WantUp
	s.forgive()
	s.again = true
	m.end(now, s, "operator asked to restart")
}

func (m *Machine) stop(now time.Time, s *service, reason string) {
	s.want, s.again, s.respawn = WantDown, false, false
	switch s.state {
	case Up:
		m.end(now, s, reason)
	case Waiting, Backoff, Parked, Failed:
		m.set(now, s, Down, time.Time{}, reason)
	case Stopping, Killing:
		s.asked = s.asked || s.pid != 0
		m.changed(s)
	case Down, Starting:
		m.changed(s)
	}
}

// end asks the running process to end.
func (m *Machine) end(now time.Time, s *service, reason string) {
	s.asked = true
	deadline := now.Add(s.policy.Grace)
	if m.phase == stopping && m.killAt.Before(deadline) {
		deadline = m.killAt
	}
	m.set(now, s, Stopping, deadline, reason)
	m.do(Signal{s.name, s.run, s.policy.StopSignal})
}

// kill sends KILL to everything of the run, again and again until it is gone.
func (m *Machine) kill(now time.Time, s *service, reason string) {
	s.asked = s.asked || s.pid != 0
	m.set(now, s, Killing, now.Add(killAgain), reason)
	m.do(SignalTree{s.name, s.run, sigKill})
}

func (m *Machine) spawned(now time.Time, s *service, e Spawned) {
	if s.state != Starting {
		return
	}
	s.pid, s.upSince = e.PID, now
	forget := time.Time{}
	if s.failures > 0 || s.looping {
		forget = now.Add(s.policy.ResetAfter)
	}
	m.set(now, s, Up, forget, "started")
	s.ready = !s.policy.Announces
	if s.want == WantDown || m.phase != running {
		m.end(now, s, "stopped while starting")
	}
}

func (m *Machine) spawnFailed(now time.Time, s *service, e SpawnFailed) {
	if s.state != Starting {
		return
	}
	s.upSince = now
	m.recordExit(now, s, &Exit{Run: s.run, Code: -1, Cause: CauseSpawn, Error: e.Error, At: now})
	switch {
	case s.policy.Once:
		m.mainEnded(e.Code)
		m.set(now, s, Failed, time.Time{}, e.Error)
	case s.want == WantDown, s.policy.Task:
		s.want = WantDown
		m.set(now, s, Down, time.Time{}, e.Error)
	case e.Permanent:
		m.set(now, s, Failed, time.Time{}, e.Error)
	default:
		next := m.afterFailure(now, s)
		m.set(now, s, next.state, next.deadline, e.Error)
	}
	m.dropIfDown(now, s)
}

func (m *Machine) exited(now time.Time, s *service, e Exited) {
	if s.pid == 0 || s.pid != e.PID {
		return
	}
	exit := &Exit{
		Run: s.run, PID: e.PID, Code: e.Code, Signal: e.Signal, At: now, Uptime: now.Sub(s.upSince),
		Cause: s.classify(e),
	}
	s.pid, s.leftover = 0, e.Leftover && !s.policy.Spare
	if s.policy.Task {
		s.want = WantDown
	}
	s.next = m.afterExit(now, s, exit)
	m.recordExit(now, s, exit)
	if s.policy.Once {
		code := e.Code
		if e.Signal != 0 {
			code = 128 + e.Signal
		}
		m.mainEnded(code)
	}
	if !s.leftover {
		m.settle(now, s)
		return
	}
	if s.state == Killing {
		m.kill(now, s, "main process is gone, what it left behind is killed")
		return
	}
	deadline := now.Add(leftoverGrace)
	if s.state == Stopping && s.deadline.Before(deadline) {
		deadline = s.deadline
	}
	m.set(now, s, Stopping, deadline, "main process is gone, ending what it left behind")
	m.do(SignalTree{s.name, s.run, sigTerm})
}

func (s *service) classify(e Exited) Cause {
	switch {
	case s.asked:
		return CauseOperator
	case e.OOM:
		return CauseOOM
	case e.Signal != 0:
		return CauseSignal
	case slices.Contains(s.policy.ParkOn, e.Code):
		return CauseConfig
	case e.Code == 0, slices.Contains(s.policy.ImmediateOn, e.Code):
		return CauseClean
	}
	return CauseCrash
}

// afterExit chooses what follows an exit, and keeps the accounts.
func (m *Machine) afterExit(now time.Time, s *service, exit *Exit) settle {
	if s.policy.Once || s.asked || s.want == WantDown || m.phase != running {
		return settle{state: Down, reason: "ended as asked"}
	}
	s.respawn = true
	if exit.Uptime >= s.policy.ResetAfter {
		s.forgive()
	}
	reason := describe(exit)
	if exit.Signal == 0 && slices.Contains(s.policy.ParkOn, exit.Code) {
		return settle{state: Parked, reason: reason}
	}
	if exit.Signal == 0 && slices.Contains(s.policy.ImmediateOn, exit.Code) {
		s.quick++
		if exit.Uptime >= s.policy.Backoff.Initial {
			s.quick = 0
		}
		if s.quick <= quickAgain {
			return settle{state: Starting, reason: reason + ", asks to be started again"}
		}
		return settle{Backoff, now.Add(s.policy.Backoff.Delay(1, m.random())), reason + " too soon, too often"}
	}
	next := m.afterFailure(now, s)
	next.reason = reason
	return next
}

// afterFailure counts a fast exit and returns the delay it earns.
func (m *Machine) afterFailure(now time.Time, s *service) settle {
	s.failures++
	s.respawn = true
	s.recent = slices.DeleteFunc(s.recent, func(t time.Time) bool { return now.Sub(t) >= s.policy.LoopWindow })
	if s.policy.LoopCount > 0 {
		s.recent = append(s.recent, now)
		if len(s.recent) >= s.policy.LoopCount {
			s.looping = true
			s.recent = s.recent[:0]
		}
	}
	return settle{state: Backoff, deadline: now.Add(s.policy.Backoff.Delay(s.failures, m.random()))}
}

func (m *Machine) random() float64 {
	if m.Random == nil {
		return 0.5
	}
	return m.Random()
}

// recordExit keeps the exit and writes it into the history.
func (m *Machine) recordExit(now time.Time, s *service, exit *Exit) {
	s.last = exit
	m.do(Note{Record{At: now, Service: s.name, Reason: describe(exit), PID: exit.PID, Exit: exit}})
	m.changed(s)
}

// describe says how a run ended, for people.
func describe(e *Exit) string {
	switch {
	case e.Cause == CauseSpawn:
		return e.Error
	case e.Signal != 0:
		return "ended by signal " + strconv.Itoa(e.Signal)
	}
	return "exited with code " + strconv.Itoa(e.Code)
}

func (m *Machine) gone(now time.Time, s *service, e Gone) {
	if s.run != e.Run || s.pid != 0 || !s.leftover {
		return
	}
	s.leftover = false
	m.settle(now, s)
}

// settle follows the end of a run: nothing of it is alive any more.
func (m *Machine) settle(now time.Time, s *service) {
	next := s.next
	s.next = settle{}
	switch {
	case s.removing || m.phase != running || s.policy.Once:
		m.set(now, s, Down, time.Time{}, "ended")
	case s.want == WantDown:
		m.set(now, s, Down, time.Time{}, "ended as asked")
	case s.again:
		m.begin(now, s, "started again as asked")
	case next.state == Starting, next.state == Backoff && !next.deadline.After(now):
		m.begin(now, s, next.reason)
	case next.state == Down: // it was asked to end, then wanted again
		m.begin(now, s, "wanted up")
	default:
		m.set(now, s, next.state, next.deadline, next.reason)
	}
	m.dropIfDown(now, s)
}

func (m *Machine) dropIfDown(now time.Time, s *service) {
	if s.removing && s.state == Down {
		delete(m.services, s.name)
		m.order = slices.DeleteFunc(m.order, func(o *service) bool { return o == s })
		m.do(Note{Record{At: now, Service: s.name, From: Down, To: Down, Reason: "removed", Dropped: true}})
		m.do(Dropped{s.name})
	}
}

func (m *Machine) explained(now time.Time, s *service, e Explained) {
	if s.last == nil || s.last.Run != e.Run || s.last.Cause == CauseOperator {
		return
	}
	last := *s.last
	last.Cause = e.Cause
	s.last = &last
	m.changed(s)
	if e.Cause != CauseReplaced || s.want != WantUp {
		return
	}
	switch {
	case s.state == Backoff:
		s.forgive()
		m.set(now, s, Parked, time.Time{}, ReasonReplaced)
	case s.leftover && !s.again:
		s.next = settle{state: Parked, reason: ReasonReplaced}
	}
}

func (m *Machine) tick(now time.Time) {
	for _, s := range m.order {
		if s.deadline.IsZero() || now.Before(s.deadline) {
			continue
		}
		switch s.state {
		case Backoff:
			m.begin(now, s, "restart after a delay")
		case Stopping:
			m.kill(now, s, "still alive after the grace")
		case Killing:
			m.kill(now, s, "still alive after SIGKILL")
		case Up: // long enough to forget earlier failures
			s.forgive()
			s.deadline = time.Time{}
			m.changed(s)
		case Down, Waiting, Starting, Parked, Failed:
			s.deadline = time.Time{}
		}
	}
}

func (m *Machine) mainEnded(code int) {
	m.mainCode = &code
}

func (m *Machine) shutdown(now time.Time, e Shutdown) {
	if m.phase != running {
		m.hasten(now)
		return
	}
	m.code, m.reason = e.Code, e.Reason
	m.beginShutdown(now)
}

// beginShutdown stops everything at once. A share of the budget is kept for the time after the KILL.
func (m *Machine) beginShutdown(now time.Time) {
	m.phase = stopping
	m.killAt = now.Add(m.Budget - min(m.Budget/10, leftoverGrace))
	m.hardEnd = now.Add(m.Budget)
	m.do(Note{Record{At: now, Reason: "stopping the container: " + m.reason}})
	for _, s := range m.order {
		s.again = false
		switch s.state {
		case Up:
			m.end(now, s, ReasonShutdown)
		case Stopping:
			if m.killAt.Before(s.deadline) {
				s.deadline = m.killAt
			}
		case Waiting, Backoff, Parked, Failed:
			m.set(now, s, Down, time.Time{}, ReasonShutdown)
		case Down, Starting, Killing:
		}
	}
}

// hasten skips every grace: the operator asked twice.
func (m *Machine) hasten(now time.Time) {
	m.do(Note{Record{At: now, Reason: "asked again to stop: killing what is left"}})
	for _, s := range m.order {
		if s.pid != 0 || s.leftover {
			m.kill(now, s, "asked again to stop")
		}
	}
	m.killAt = now
}

// advance moves the container through its own phases.
func (m *Machine) advance(now time.Time) {
	if m.phase == running && m.mainCode != nil {
		m.reason = "the CMD has ended with code " + strconv.Itoa(*m.mainCode)
		m.beginShutdown(now)
	}
	if m.phase == stopping {
		alive := false
		for _, s := range m.order {
			alive = alive || s.pid != 0 || s.leftover || s.state == Starting
		}
		switch {
		case !alive:
			m.phase, m.swept = sweeping, false
			m.do(SignalRest{sigTerm})
			if rest := now.Add(leftoverGrace); rest.Before(m.killAt) {
				m.killAt = rest
			}
		case !now.Before(m.hardEnd):
			m.finish(now, "some processes did not end")
			return
		}
	}
	if m.phase == sweeping {
		switch {
		case m.swept:
			m.finish(now, "everything has ended")
		case m.killed && !now.Before(m.killAt), !now.Before(m.hardEnd):
			m.finish(now, "some processes did not end")
		case !now.Before(m.killAt):
			m.killed = true
			m.do(SignalRest{sigKill})
			m.killAt = now.Add(leftoverGrace)
		}
	}
}

func (m *Machine) finish(now time.Time, reason string) {
	m.phase = finished
	code := m.code
	if m.mainCode != nil {
		code = *m.mainCode
	}
	m.do(Note{Record{At: now, Reason: reason + ", exit code " + strconv.Itoa(code)}})
	m.do(Finish{code})
}
