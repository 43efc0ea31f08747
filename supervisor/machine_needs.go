package supervisor

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file handles dependencies between services, the limit on restarts, and tasks, which run once and end.

// RestartAfter selects the exits that an automatic restart follows. Exits that hinit requested never cause a restart.
type RestartAfter string

// The values of RestartAfter. A service that is not restarted is down if its exit code means success, and failed otherwise.
const (
	RestartAlways    RestartAfter = ""
	RestartOnFailure RestartAfter = "on-failure" // restart after a signal, or an exit code that does not mean success
	RestartOnSuccess RestartAfter = "on-success" // restart after an exit code that means success
	RestartNever     RestartAfter = "never"
)

// Until is the condition on a needed service that must hold before its dependant starts.
type Until string

// The values of Until.
const (
	UntilStarted Until = "started" // the service is up, or is a task that has been started at least once
	UntilReady   Until = "ready"   // the service is up and ready
	UntilDone    Until = "done"    // the service is down after a run that ended with a success code and was not stopped
	UntilTried   Until = "tried"   // the service is up and ready, or has ended at least once; at shutdown it does not wait for its dependants
)

// Need is a service that must meet a condition before another service starts.
type Need struct {
	Name     string
	Until    Until
	Optional bool // the need is also met while the needed service is unknown, or while its desired state is down
}

// RestartAndNeeds is the part of a [Policy] about restarts, dependencies and tasks. With the zero value a service always
// restarts and needs nothing.
type RestartAndNeeds struct {
	RestartPolicy      RestartAfter  `reexec:"After"`
	MaxRestarts        int           // limit of automatic restarts within RestartsWindow; 0 means no limit
	RestartsWindow     time.Duration // time window of MaxRestarts; one more exit within it makes the service failed
	Needs              []Need
	RestartOn          []string  // services and tasks; when one of them starts again or succeeds, this service restarts
	IsConfiguredTask   bool      `reexec:"OneShot"`   // a task of hinit.yaml: it is expected to end
	LimitedStarts      bool      `reexec:"Turns"`     // at most [Machine.MaxStarting] of these services start at the same time
	LastUsed           time.Time `reexec:"Used"`      // when the service was last used; the queue starts recently used services first
	RunBeforeEachStart bool      `reexec:"EachStart"` // a task that runs before each start of a service that needs it with UntilDone
}

// dependencies returns the names of the services that this one needs or follows.
func (o *RestartAndNeeds) dependencies() []string {
	names := slices.Clone(o.RestartOn)
	for _, n := range o.Needs {
		names = append(names, n.Name)
	}
	return names
}

// addToDependants adds a service to the dependants of all services that it depends on.
func (m *Machine) addToDependants(s *service) {
	for _, name := range s.policy.dependencies() {
		if of := m.dependants[name]; len(of) == 0 || of[len(of)-1] != s {
			m.dependants[name] = append(of, s)
		}
	}
}

// removeFromDependants undoes addToDependants. Call it before the policy of the service changes.
func (m *Machine) removeFromDependants(s *service) {
	for _, name := range s.policy.dependencies() {
		m.dependants[name] = cloneWithout(m.dependants[name], func(o *service) bool { return o == s })
	}
}

// taskNeed says that a task must succeed in a run with a number above Run. A success in an earlier run does not count.
type taskNeed struct {
	Name string
	Run  uint64
}

// runningStates lists the states in which a run exists.
var runningStates = []State{Starting, Up, Stopping, Killing, Finishing}

// idleStates lists the states without a process and without a pending start.
var idleStates = []State{Down, Parked, Failed}

// startNeededTasks starts the tasks with RunBeforeEachStart that s needs with UntilDone. Each of them must succeed once more
// before s starts.
func (m *Machine) startNeededTasks(now time.Time, s *service) {
	for _, n := range s.policy.Needs {
		t := m.services[n.Name]
		if t == nil || t == s || !t.policy.RunBeforeEachStart || n.Until != UntilDone || s.taskNeedFor(n.Name) != nil {
			continue
		}
		after := m.lastRun
		if slices.Contains(runningStates, t.state) && t.requestedCause == "" {
			after = t.number - 1 // the current run of the task also meets the need
		}
		s.taskNeeds = append(s.taskNeeds, taskNeed{n.Name, after})
		if slices.Contains(idleStates, t.state) && !t.beingRemoved {
			m.saveForUndo(t)
			m.setWantUp(t)
			m.startOrWait(now, t, "needed by "+s.name)
		}
	}
}

// taskNeedFor returns the pending run of the task with this name, or nil.
func (s *service) taskNeedFor(name string) *taskNeed {
	i := slices.IndexFunc(s.taskNeeds, func(n taskNeed) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &s.taskNeeds[i]
}

// setWantUp sets the desired state to up, and resets the counts of failures and restarts.
func (m *Machine) setWantUp(s *service) {
	s.want, s.singleRun, s.respawns = WantUp, false, nil
	s.forgetFailures()
}

// unmetNeeds returns the services for which s must wait, and the reason for the state waiting.
func (m *Machine) unmetNeeds(s *service) (names []string, reason string) {
	var why []string
	for _, n := range s.policy.Needs {
		if words := m.whyUnmet(s, n); words != "" {
			names = append(names, n.Name)
			why = append(why, words)
		}
	}
	return names, "waits for " + strings.Join(why, ", and for ")
}

// whyUnmet returns the reason why a need is unmet, or "" if the need is met.
func (m *Machine) whyUnmet(s *service, n Need) string {
	t := m.services[n.Name]
	switch {
	case t == nil && n.Optional, t != nil && n.Optional && t.want == WantDown && !t.policy.IsConfiguredTask:
		return ""
	case t == nil:
		return n.Name + ", which does not exist"
	}
	met, to := false, string(n.Until)
	switch n.Until {
	case UntilStarted:
		met = t.state == Up || t.policy.IsConfiguredTask && t.started
		to = "up"
	case UntilReady, UntilTried:
		met = t.state == Up && t.ready || n.Until == UntilTried && t.lastExit != nil
		to = string(UntilReady)
	case UntilDone:
		met = t.state == Down && t.succeeded
		if g := s.taskNeedFor(n.Name); g != nil {
			met = met && t.lastExit != nil && t.lastExit.Run > g.Run
		}
	}
	if met {
		return ""
	}
	is := "it is " + string(t.state)
	if t.state == Up && to == string(UntilReady) {
		is += ", and not ready"
	}
	if t.lastExit != nil && t.lastExit.Code != 0 && slices.Contains([]State{Failed, Parked, Backoff}, t.state) {
		is = "it " + describeExit(t.lastExit)
		if t.lastExit.Cause == CauseSpawn {
			is = t.lastExit.Error
		}
	}
	return n.Name + " to be " + to + " (" + is + ")"
}

func (m *Machine) handleNeedMet(now time.Time, s *service, need string) {
	if !slices.Contains(s.needs, need) {
		return
	}
	m.saveForUndo(s)
	s.needs = cloneWithout(s.needs, func(n string) bool { return n == need })
	if len(s.needs) == 0 && s.state == Waiting {
		m.startOrWait(now, s, need+" is met")
	}
}

// waitForNeeds puts a service into the state waiting if a need is unmet, or if memory or disk space is short. It reports
// whether the service has to wait.
func (m *Machine) waitForNeeds(now time.Time, s *service) bool {
	need, reason := m.shortageFor(s)
	names := []string{need}
	if reason == "" {
		if len(s.policy.Needs) == 0 {
			return false
		}
		m.startNeededTasks(now, s)
		names, reason = m.unmetNeeds(s)
		if len(names) == 0 {
			return false
		}
	}
	s.unmetNeeds = names
	switch {
	case s.state != Waiting:
		m.setState(now, s, Waiting, time.Time{}, reason)
	case s.reason != reason:
		s.reason = reason
		m.markChanged(s)
	}
	return true
}

// startUnblocked starts waiting services whose needs are now met. Step calls it after each event. For speed it checks only the
// dependants of services that have changed.
func (m *Machine) startUnblocked(now time.Time) {
	if m.phase != phaseRunning {
		return
	}
	for i := 0; len(m.stepResult.changed) > 0 && i <= len(m.inOrder); i++ { // each start may meet a need of another service
		changed := m.stepResult.changed
		m.stepResult.changed = nil
		for _, name := range changed {
			for _, s := range m.dependants[name] {
				if s.state == Waiting && len(s.needs) == 0 {
					m.saveForUndo(s)
					m.startOrWait(now, s, "what it needs is there")
				}
			}
		}
	}
}

func (m *Machine) propagateRestart(now time.Time, t *service) {
	for _, s := range m.dependants[t.name] {
		if m.phase == phaseRunning && s != t && s.state == Up && s.want == WantUp && slices.Contains(s.policy.RestartOn, t.name) {
			m.saveForUndo(s)
			s.restartAfterRun = true
			m.requestEnd(now, s, t.name+" was started anew")
		}
	}
}

// stateWithoutRestart returns the state after this exit if the restart policy forbids a restart: down or failed. The result
// ok is false if the policy allows a restart.
func (s *service) stateWithoutRestart(exit *Exit, reason string) (next nextState, ok bool) {
	clean := s.policy.success(exit.Code) && exit.Signal == 0 && exit.Cause != CauseHealth
	switch s.policy.RestartPolicy {
	case RestartAlways:
		return nextState{}, false
	case RestartOnFailure:
		ok = clean
	case RestartOnSuccess:
		ok = !clean
	case RestartNever:
		ok = true
	}
	if !ok {
		return nextState{}, false
	}
	s.respawn = false
	switch {
	case !clean:
		return nextState{state: Failed, reason: reason + " and is not restarted (" + string(s.policy.RestartPolicy) + ")"}, true
	case s.policy.IsConfiguredTask:
		reason = "done: " + reason
	default:
		reason += " and is not restarted (" + string(s.policy.RestartPolicy) + ")"
	}
	s.want = WantDown
	return nextState{state: Down, reason: reason}, true
}

// limitRestarts counts an automatic restart. It returns the state failed if the restart would exceed Policy.MaxRestarts.
// Otherwise, or if next is not a restart, it returns next unchanged.
func (s *service) limitRestarts(now time.Time, next nextState) nextState {
	if s.policy.MaxRestarts == 0 || next.state != Starting && next.state != Backoff {
		return next
	}
	s.respawns = cloneWithout(s.respawns, func(t time.Time) bool { return now.Sub(t) >= s.policy.RestartsWindow })
	if len(s.respawns) < s.policy.MaxRestarts {
		s.respawns = append(s.respawns, now)
		return next
	}
	s.respawn = false
	times := strconv.Itoa(len(s.respawns)) + " times"
	if len(s.respawns) == 1 {
		times = "once"
	}
	window := strings.Replace(strings.Replace(s.policy.RestartsWindow.String(), "m0s", "m", 1), "h0m", "h", 1)
	return nextState{state: Failed, reason: "restarted " + times + " within " + window + ", which is the limit: " + next.reason}
}

// handleSchedule stores the next start time of a task. If e.Now is set it also starts the task, unless the task is running or
// about to start.
func (m *Machine) handleSchedule(now time.Time, s *service, e Scheduled) {
	s.nextRun = e.Next
	m.markChanged(s)
	switch {
	case !e.Now || m.phase != phaseRunning || s.beingRemoved:
	case slices.Contains(idleStates, s.state):
		m.setWantUp(s)
		m.startOrWait(now, s, "its time has come")
	default:
		m.emit(AppendRecord{Record{At: now, Service: s.name, Reason: "its time has come and is skipped: it is " + string(s.state)}})
	}
}

func (s *service) isActive() bool {
	return s.hasProcess() || s.state == Starting || s.state == Finishing
}

// dependantHeights returns the height of each needed service: the length of the longest chain of active services that depend on
// it. top is the greatest height. A shutdown ends services in the order of their heights.
func (m *Machine) dependantHeights() (heights map[*service]int, top int) {
	above := make(map[*service][]*service)
	for _, s := range m.inOrder {
		for _, n := range s.policy.Needs {
			if t := m.services[n.Name]; t != nil && t != s && s.isActive() && n.Until != UntilTried {
				above[t] = append(above[t], s)
			}
		}
	}
	heights = make(map[*service]int, len(above))
	var height func(s *service) int
	height = func(s *service) int {
		if h, known := heights[s]; known {
			return h
		}
		h := 0
		heights[s] = h // a cycle of needs must not recurse for ever
		for _, t := range above[s] {
			h = max(h, height(t)+1)
		}
		heights[s] = h
		return h
	}
	for s := range above {
		top = max(top, height(s))
	}
	return heights, top
}

// endUnneeded asks services to end, during a shutdown, as soon as no active service needs them. For speed it checks only the
// needs of services that have changed.
func (m *Machine) endUnneeded(now time.Time) {
	for _, name := range m.stepResult.changed {
		ended := m.services[name]
		if ended == nil || ended.isActive() {
			continue
		}
		for _, n := range ended.policy.Needs {
			if t := m.services[n.Name]; t != nil && t.state == Up && !t.policy.DrainsInput && !m.isNeeded(t) {
				m.saveForUndo(t)
				m.requestEnd(now, t, ReasonShutdown)
			}
		}
	}
}

// isNeeded reports whether a shutdown must not end a service yet, because another active service needs it.
func (m *Machine) isNeeded(t *service) bool {
	needs := func(n Need) bool { return n.Name == t.name && n.Until != UntilTried }
	return slices.ContainsFunc(m.dependants[t.name], func(s *service) bool {
		return s != t && s.isActive() && slices.ContainsFunc(s.policy.Needs, needs)
	})
}
