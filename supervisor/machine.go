package supervisor

// The transition table. Each row says: in this state, this event leads to that next state, and the machine then performs that
// action. TestTransitionTable executes every row.
//
// Most events are types of machine_events.go, in lower case. The other names stand for these events:
//
//	once         RunOnce
//	unwant       StayDown
//	send         SignalMain
//	sendgroup    SignalMain with Group
//	spawnfail    SpawnFailed
//	spawnbad     SpawnFailed with Permanent
//	inputs       InputsChanged
//	inputssoon   InputsChanged, right after the service was parked
//	replaced     CorrectCause with CauseReplaced
//	deadline     Tick, when the deadline of the service has passed
//	met          NeedMet, for the last condition of Add.Needs
//	due          Scheduled with Now: the schedule of a task wants a run
//	lacking      a service that this one needs is not ready yet
//	needsmet     all services that this one needs are ready
//	crowded      too many services are starting
//	turn         this service is next in the queue
//	full         memory is short, so the service must not start
//	room         memory is no longer short
//	shed         memory is short, so the service must end
//	follow       a service of Policy.RestartOn has started again
//	crash        the main process has exited
//	again        the main process has exited with a code of Policy.NoDelayCodes
//	park         the main process has exited with a code of Policy.ParkCodes
//	dies         the main process has exited, and the service has a finish command
//	over         after a success, the restart policy forbids a restart
//	never        after a failure, the restart policy forbids a restart
//	limit        the service has restarted Policy.MaxRestarts times within RestartsWindow
//	leftover     the main process has exited, and its descendants are alive
//	gone         the last descendant has ended
//	ending       the service has sent STOPPING=1 with sd_notify
//	finished     the finish command has ended
//	permanent    the finish command has ended with a code of Policy.PermanentFinishCodes: the service stays down
//
// After the main process ends, its remaining descendants get SIGTERM, and SIGKILL half a second later. Then the finish
// command runs, if the service has one. Only then does the service enter the next state of the row.
//
//	state      event       next       does
//	---------  ----------  ---------  -------------------
//	down       start       starting   spawn
//	down       restart     starting   spawn
//	down       stop        down
//	down       once        starting   spawn
//	down       due         starting   spawn
//	down       lacking     waiting
//	down       crowded     waiting
//	down       full        waiting
//	waiting    met         starting   spawn
//	waiting    start       waiting
//	waiting    restart     waiting
//	waiting    stop        down
//	waiting    once        waiting
//	waiting    due         waiting
//	waiting    needsmet    starting   spawn
//	waiting    unwant      down
//	waiting    turn        starting   spawn
//	waiting    room        starting   spawn
//	starting   spawned     up
//	starting   spawnfail   backoff
//	starting   spawnbad    failed
//	up         start       up
//	up         stop        stopping   signal
//	up         restart     stopping   signal
//	up         crash       backoff
//	up         leftover    stopping   signaltree
//	up         park        parked
//	up         again       starting   spawn
//	up         once        up
//	up         unwant      up
//	up         due         up
//	up         follow      stopping   signal
//	up         over        down
//	up         never       failed
//	up         limit       failed
//	up         pause       up         signal
//	up         continue    up         signal
//	up         send        up         signal
//	up         sendgroup   up         signalgroup
//	up         unhealthy   stopping   signal
//	up         shed        stopping   signal
//	up         ending      stopping
//	up         dies        finishing  spawnfinish
//	stopping   start       stopping
//	stopping   stop        stopping
//	stopping   crash       down
//	stopping   leftover    stopping   signaltree
//	stopping   gone        down
//	stopping   deadline    killing    signaltree
//	stopping   once        stopping
//	stopping   unwant      stopping
//	stopping   due         stopping
//	stopping   pause       stopping   signal
//	stopping   continue    stopping   signal
//	stopping   send        stopping   signal
//	stopping   sendgroup   stopping   signalgroup
//	stopping   dies        finishing  spawnfinish
//	killing    start       killing
//	killing    stop        killing
//	killing    crash       down
//	killing    leftover    killing    signaltree
//	killing    gone        down
//	killing    deadline    killing    signaltree
//	killing    once        killing
//	killing    unwant      killing
//	killing    due         killing
//	killing    pause       killing    signal
//	killing    continue    killing    signal
//	killing    send        killing    signal
//	killing    sendgroup   killing    signalgroup
//	killing    dies        finishing  spawnfinish
//	finishing  start       finishing
//	finishing  stop        finishing
//	finishing  restart     finishing
//	finishing  once        finishing
//	finishing  unwant      finishing
//	finishing  due         finishing
//	finishing  spawnfail   backoff
//	finishing  spawnbad    backoff
//	finishing  finished    backoff
//	finishing  permanent   down
//	finishing  leftover    stopping   signaltree
//	finishing  deadline    finishing  signaltree
//	backoff    start       starting   spawn
//	backoff    restart     starting   spawn
//	backoff    stop        down
//	backoff    deadline    starting   spawn
//	backoff    replaced    parked
//	backoff    once        starting   spawn
//	backoff    unwant      down
//	backoff    due         backoff
//	backoff    lacking     waiting
//	parked     start       starting   spawn
//	parked     restart     starting   spawn
//	parked     stop        down
//	parked     inputs      starting   spawn
//	parked     inputssoon  backoff
//	parked     once        starting   spawn
//	parked     unwant      down
//	parked     due         starting   spawn
//	failed     start       starting   spawn
//	failed     restart     starting   spawn
//	failed     stop        down
//	failed     once        starting   spawn
//	failed     unwant      down
//	failed     due         starting   spawn
//
// An event that has no row for the current state changes nothing.

import (
	"slices"
	"time"
)

const (
	// leftoverGrace is the time between SIGTERM and SIGKILL for descendants that outlive their main process.
	leftoverGrace = 500 * time.Millisecond
	// firstKillInterval is the time between two SIGKILLs to a process tree. The machine repeats SIGKILL, because a process can
	// fork while the rest of the tree is killed. After firstKillCount repetitions the time doubles with each SIGKILL, up to
	// maxKillInterval.
	firstKillInterval = 10 * time.Millisecond
	firstKillCount    = 25
	maxKillInterval   = time.Second
	// maxDrainTime is how long a logger (Policy.DrainsInput) may read its remaining input during a shutdown, after all other
	// services have ended.
	maxDrainTime = time.Second
	// maxQuickRestarts is how many times in a row the exit code of a service (Policy.NoDelayCodes) can cause a restart without
	// a delay. Only runs shorter than the first restart delay count.
	maxQuickRestarts = 3
)

// Machine decides when services start and stop. It is a pure state machine, see the package comment. Only the goroutine of
// the [Loop] may use it.
type Machine struct {
	// ShutdownBudget is the maximum duration of a container shutdown, from the first Shutdown event to the EndLoop action.
	ShutdownBudget time.Duration `reexec:"-"`
	// Random returns a number in [0,1), for the random part of restart delays.
	Random func() float64 `reexec:"-"`
	// MaxStarting is how many services with Policy.LimitedStarts may be starting at the same time; 0 means no limit.
	MaxStarting int `reexec:"-"`
	// ExtraStarting is added to MaxStarting as soon as one of these services has become ready. A starting service often waits for
	// disk or network, so a few more starts keep the processor busy.
	ExtraStarting int `reexec:"-"`

	services   map[string]*service   `reexec:"-"`
	inOrder    []*service            `reexec:"-"` // all services, in the order of registration
	dependants map[string][]*service `reexec:"-"` // services that name the key in Policy.Needs or Policy.RestartOn
	startQueue
	lastRun     uint64 `reexec:"runs"`
	phase       lifePhase
	exitCode    int        `reexec:"code"`
	shortage    shortage   `reexec:"short"`
	cmdExitCode *int       `reexec:"mainCode"`
	killAt      time.Time  // phase stopping: when the remaining services are killed; phase sweeping: when all other processes are killed
	forcedEnd   time.Time  `reexec:"hardEnd"` // when the shutdown ends, even if processes are alive
	killSent    bool       `reexec:"killed"`  // SIGKILL was sent in phase sweeping
	stepResult  stepResult `reexec:"-"`
}

type stepResult struct {
	wakeAt  time.Time      // lower bound of all deadlines; zero if no service has a deadline
	changed []string       // services that have changed, so the machine must check their dependants
	saved   []savedService // the services that the step may have changed, for undo
	actions []Action
}

// Step handles one event and returns the actions for the loop, in order. The times of successive calls must not go backwards.
// Step reuses the returned slice at its next call. It ignores events about unknown services or runs.
func (m *Machine) Step(now time.Time, e Event) []Action {
	m.stepResult.actions, m.stepResult.saved = m.stepResult.actions[:0], m.stepResult.saved[:0]
	if m.phase == phaseFinished {
		return nil
	}
	switch e := e.(type) {
	case Add:
		m.handleAdd(now, e)
	case NeedMet:
		// Services that were used most recently start first, because the number of simultaneous starts is limited.
		lastUsedFirst := func(a, b *service) int { return b.policy.LastUsed.Compare(a.policy.LastUsed) }
		for _, s := range slices.SortedStableFunc(slices.Values(m.inOrder), lastUsedFirst) {
			m.handleNeedMet(now, s, e.Need)
		}
	case HoldStarts:
		m.handleHoldStarts(now, e.Reason)
	case Evict:
		for _, name := range e.Names {
			m.evict(now, m.services[name], e)
		}
	case Shutdown:
		m.handleShutdown(now, e)
	case Remark:
		m.emit(AppendRecord{Record{At: now, Service: e.Service, Reason: e.Text, Key: e.Key, Data: e.Data}})
	case NoChildrenLeft:
		if m.phase == phaseSweeping {
			m.concludeShutdown(now, "everything has ended")
		}
	case Tick:
		m.handleTick(now)
	default:
		if s := m.services[e.target()]; s != nil {
			m.saveForUndo(s)
			m.handleServiceEvent(now, s, e)
		}
	}
	m.startUnblocked(now)
	m.startQueued(now)
	m.advanceShutdown(now)
	m.stepResult.changed = m.stepResult.changed[:0]
	for _, saved := range m.stepResult.saved {
		m.stepResult.wakeAt = earlier(m.stepResult.wakeAt, saved.service.deadline)
	}
	return m.stepResult.actions
}

func (m *Machine) handleServiceEvent(now time.Time, s *service, e Event) {
	switch e := e.(type) {
	case Remove:
		s.beingRemoved = true
		m.stop(now, s, "removed")
		m.dropIfDown(now, s)
	case Start:
		m.start(now, s)
	case Stop:
		m.stop(now, s, "operator asked to stop")
	case Restart:
		m.restart(now, s)
	case RunOnce:
		m.startOnce(now, s)
	case Scheduled:
		m.handleSchedule(now, s, e)
	case StayDown:
		m.setWantDown(now, s, "operator does not want it any more")
	case Pause:
		m.setPaused(s, sigStop, e.Group)
	case Continue:
		m.setPaused(s, sigCont, e.Group)
	case SignalMain:
		m.sendOperatorSignal(s, e.Signal, e.Group)
	case Spawned:
		m.handleSpawned(now, s, e)
	case SpawnFailed:
		m.handleSpawnFailed(now, s, e)
	case Exited:
		m.handleExited(now, s, e)
	case StopCommandEnded:
		m.handleStopCommandEnded(now, s, e)
	case RunEnded:
		m.handleRunEnded(now, s, e)
	case DescendantsEnded:
		if s.liveRun() == e.Run {
			s.killProgress.treeGrows = s.killProgress.kills >= firstKillCount && e.Count > s.killProgress.deaths
			s.killProgress.deaths = e.Count
		}
	case CorrectCause:
		m.correctCause(now, s, e)
	case LastLines:
		if s.lastExit != nil && s.lastExit.Run == e.Run {
			last := *s.lastExit
			last.Tail = append([]string{}, e.Lines...)
			s.lastExit = &last
			m.markChanged(s)
			m.parkByOutput(now, s)
			if s.inCrashLoop && !s.loopReported {
				s.loopReported = true
				m.emit(AppendRecord{Record{At: now, Service: s.name, From: s.state, To: s.state, Reason: ReasonCrashLoop + ": " + s.lastExit.Explanation()}})
			}
		}
	case Ready:
		m.handleReports(now, s, e.Run, readinessReport{e.Ready, e.Text}, s.checkReport)
	case StatusText:
		m.handleReports(now, s, e.Run, readinessReport{s.ownReport.ready, e.Text}, s.checkReport)
	case ChecksReported:
		m.handleReports(now, s, e.Run, s.ownReport, readinessReport{e.Ready, e.Text})
	case Hold:
		m.handleHold(now, s, e)
	case Unhealthy:
		m.handleUnhealthy(now, s, e)
	case NotifyMessage:
		m.handleNotified(now, s, e)
	case InputsChanged:
		if s.state == Parked {
			m.handleInputsChanged(now, s)
		}
	case ForwardSignal:
		if s.isRunning() {
			m.emit(Signal{s.name, s.number, e.Signal, ScopeMain, slices.Contains(signalsThatNeedCont, e.Signal)})
		}
	}
}

// Stopping reports whether a container shutdown has begun.
func (m *Machine) Stopping() bool { return m.phase != phaseRunning }

func (m *Machine) emit(a Action) { m.stepResult.actions = append(m.stepResult.actions, a) }

func (m *Machine) markChanged(s *service) {
	m.stepResult.changed = append(m.stepResult.changed, s.name)
	m.emit(ServiceChanged{s.name})
}

// setState changes the state of a service and records the transition in the history. Every transition goes through setState.
func (m *Machine) setState(now time.Time, s *service, to State, deadline time.Time, reason string) {
	from := s.state
	s.deadline, s.reason = deadline, reason
	if from != to {
		s.state, s.since = to, now
	}
	if to != Waiting {
		s.taskNeeds, s.unmetNeeds = nil, nil
		m.dequeue(s)
	}
	if to != Up {
		if s.ready {
			s.ready, s.readySince = false, time.Time{}
		}
		s.readinessText = ""
	}
	m.emit(AppendRecord{Record{At: now, Service: s.name, From: from, To: to, Reason: reason, PID: s.pid}})
	m.markChanged(s)
	if to == Down && m.phase != phaseRunning {
		m.emit(CloseOutput{s.name})
	}
}

func (m *Machine) handleAdd(now time.Time, e Add) {
	if s := m.services[e.Name]; s != nil {
		m.saveForUndo(s)
		other := !slices.Equal(s.policy.Needs, e.Policy.Needs)
		if !s.hasChecks || !e.HasReadinessChecks { // drop earlier results, because the new definition may have other checks
			s.checkReport = readinessReport{}
		}
		m.removeFromDependants(s)
		s.policy, s.hasChecks = e.Policy, e.HasReadinessChecks
		m.addToDependants(s)
		switch {
		case s.state == Up:
			m.updateReadiness(now, s)
		case other && s.state == Waiting && len(s.needs) == 0:
			m.startOrWait(now, s, "it needs something else now")
		}
		if s.beingRemoved { // the service is added again during its removal
			s.beingRemoved = false
			if e.Want == WantUp {
				m.start(now, s)
			}
		}
		m.markChanged(s)
		return
	}
	if m.services == nil {
		m.rebuildIndexes()
	}
	s := &service{
		name: e.Name, policy: e.Policy, needs: slices.Clone(e.Needs), hasChecks: e.HasReadinessChecks, readySince: now,
		state: Down, since: now, processSince: now, want: WantDown,
	}
	m.services[e.Name] = s
	m.addToDependants(s)
	m.inOrder = append(m.inOrder, s)
	m.emit(AppendRecord{Record{At: now, Service: e.Name, From: Down, To: Down, Reason: "registered"}})
	m.markChanged(s)
	if e.Want == WantUp && m.phase == phaseRunning {
		s.want = WantUp
		m.startOrWait(now, s, "wanted up at registration")
	}
}

// startOrWait starts a service that has no live process. If a need is unmet, memory is short or too many services are
// starting, it puts the service into the state waiting.
func (m *Machine) startOrWait(now time.Time, s *service, reason string) {
	if m.phase != phaseRunning {
		m.setState(now, s, Down, time.Time{}, ReasonShutdown)
		return
	}
	if len(s.needs) > 0 {
		m.setState(now, s, Waiting, time.Time{}, "waits for "+s.needs[0])
		return
	}
	if m.waitForNeeds(now, s) || m.enqueue(now, s) {
		return
	}
	m.startRun(now, s, reason)
}

// startRun begins the next run of a service.
func (m *Machine) startRun(now time.Time, s *service, reason string) {
	m.lastRun++
	s.run = run{number: m.lastRun}
	if s.respawn {
		s.respawn = false
		s.restarts++
		if s.lastExit != nil {
			s.restartCauses = s.restartCauses.plus(s.lastExit.Cause, 1)
		}
	}
	m.setState(now, s, Starting, time.Time{}, reason)
	m.emit(Spawn{s.name, s.number})
}
