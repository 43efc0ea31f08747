package supervisor

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file handles dependencies between services, limits on restarts, and tasks.

// RestartAfter says which kinds of exit are followed by an automatic restart. It does not apply to exits that hinit requested.
type RestartAfter string

// The values of RestartAfter. After an exit without a restart, the service is down if the exit code means success. Otherwise the
// service is failed.
const (
	RestartAlways    RestartAfter = ""
	RestartOnFailure RestartAfter = "on-failure" // an exit code that does not mean success, or a signal
	RestartOnSuccess RestartAfter = "on-success" // an exit code that means success
	RestartNever     RestartAfter = "never"
)

// Until is the condition that a needed service must meet before its dependant may start.
type Until string

// The values of Until.
const (
	UntilStarted Until = "started" // the service is up; a task has been started at least once
	UntilReady   Until = "ready"   // the service is up and ready
	UntilDone    Until = "done"    // down after a run that ended by itself with success
	UntilTried   Until = "tried"   // the service is up and ready, or has ended at least once; this need does not delay the end of services at shutdown
)

// Need names a service that another service waits for before each start.
type Need struct {
	Name     string
	Until    Until
	Optional bool // the need counts as met while that service is unknown or not wanted up
}

// RestartAndNeeds is the part of a [Policy] about dependencies, tasks and restarts. The zero value is a service without needs or
// limits.
type RestartAndNeeds struct {
	RestartPolicy      RestartAfter  `reexec:"After"`
	MaxRestarts        int           // limit of automatic restarts within RestartsWindow; 0 means no limit
	RestartsWindow     time.Duration // the time window of MaxRestarts; an exit beyond the limit makes the service failed
	Needs              []Need
	RestartOn          []string  // names of services; this service restarts when one of them starts again, or when a task succeeds
	IsConfiguredTask   bool      `reexec:"OneShot"`   // the service is a task (of hinit.yaml), so its end is expected
	LimitedStarts      bool      `reexec:"Turns"`     // the number of simultaneous starts of such services is limited, see [Machine.Parallel]
	LastUsed           time.Time `reexec:"Used"`      // when the service was last used; for the first start, recently used services come first in the queue
	RunBeforeEachStart bool      `reexec:"EachStart"` // the service is a task that runs again before each start of a service that needs it with UntilDone
}

// dependsOnOthers returns 1 if the policy makes a service depend on others. Otherwise it returns 0.
func (o *RestartAndNeeds) dependsOnOthers() int {
	if len(o.Needs) > 0 || len(o.RestartOn) > 0 {
		return 1
	}
	return 0
}

// taskNeed is a need for a task. Only a run with a number greater than Run meets the need.
type taskNeed struct {
	Name string
	Run  uint64
}

// runningStates lists the states in which a run exists.
var runningStates = []State{Starting, Up, Stopping, Killing, Finishing}

// idleStates lists the states in which no process of a service runs and no start is pending.
var idleStates = []State{Down, Parked, Failed}

// startNeededTasks starts the tasks that must run before this start of s. They are the tasks with RunBeforeEachStart that s needs
// with the condition UntilDone. Each of them runs once for each start of s.
func (m *Machine) startNeededTasks(now time.Time, s *service) {
	for _, n := range s.policy.Needs {
		t := m.services[n.Name]
		if t == nil || t == s || !t.policy.RunBeforeEachStart || n.Until != UntilDone || s.taskNeedFor(n.Name) != nil {
			continue
		}
		after := m.runs
		if slices.Contains(runningStates, t.state) && t.requestedCause == "" {
			after = t.number - 1 // the current run of the task also meets the need
		}
		s.taskNeeds = append(s.taskNeeds, taskNeed{n.Name, after})
		if slices.Contains(idleStates, t.state) && !t.removing {
			m.wantUpAgain(t)
			m.startOrWait(now, t, "needed by "+s.name)
		}
	}
}

func (s *service) taskNeedFor(name string) *taskNeed {
	i := slices.IndexFunc(s.taskNeeds, func(n taskNeed) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &s.taskNeeds[i]
}

// wantUpAgain sets the desired state to up and forgets earlier failures.
func (m *Machine) wantUpAgain(s *service) {
	s.want, s.once, s.respawns = WantUp, false, nil
	s.forgetFailures()
}

// unmetNeeds returns the names of the unmet needs of s, and a text that says what s waits for.
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

// whyUnmet returns a text that says why a need is unmet, or "" if it is met.
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

// waitForNeeds puts a service into the state waiting if a need is unmet, or if the service must wait for memory or disk
// space. It reports whether the service has to wait.
func (m *Machine) waitForNeeds(now time.Time, s *service) bool {
	need, reason := m.shortageFor(s)
	names := []string{need}
	if reason == "" {
		if len(s.policy.Needs) == 0 {
			return false
		}
		m.startNeededTasks(now, s)
		if names, reason = m.unmetNeeds(s); len(names) == 0 {
			return false
		}
	}
	s.unmet = names
	switch {
	case s.state != Waiting:
		m.setState(now, s, Waiting, time.Time{}, reason)
	case s.reason != reason:
		s.reason = reason
		m.markChanged(s)
	}
	return true
}

// startReleased starts the waiting services whose needs are now met. Step calls startReleased after each event. It does
// nothing if no service has changed.
func (m *Machine) startReleased(now time.Time) {
	if m.dependentServices == 0 || m.phase != running {
		return
	}
	for range len(m.order) + 1 { // each start may meet a need of another service
		if !m.effects.servicesChanged {
			return
		}
		m.effects.servicesChanged = false
		for _, s := range m.order {
			if s.state == Waiting && len(s.needs) == 0 {
				m.startOrWait(now, s, "what it needs is there")
			}
		}
	}
}

// restartFollowers restarts the running services whose Policy.RestartOn lists t. Call it after t has started again, or
// after the task t has succeeded.
func (m *Machine) restartFollowers(now time.Time, t *service) {
	if m.dependentServices == 0 || m.phase != running {
		return
	}
	for _, s := range m.order {
		if s != t && s.state == Up && s.want == WantUp && slices.Contains(s.policy.RestartOn, t.name) {
			s.restartAfterRun = true
			m.requestEnd(now, s, t.name+" was started anew")
		}
	}
}

// stateWithoutRestart returns the state that a service enters if its restart policy does not restart it after this exit. ok is
// false if the policy restarts the service.
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

// limitRestarts checks the next state of a service. If this state is an automatic restart, limitRestarts counts the restart, and
// returns the state failed beyond the limit Policy.MaxRestarts. Otherwise it returns next unchanged.
func (s *service) limitRestarts(now time.Time, next nextState) nextState {
	if s.policy.MaxRestarts == 0 || next.state != Starting && next.state != Backoff {
		return next
	}
	s.respawns = without(s.respawns, func(t time.Time) bool { return now.Sub(t) >= s.policy.RestartsWindow })
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

// handleSchedule handles a Scheduled event. It stores the next scheduled time, and starts the task if e.Now is set. If the task
// is running or about to start, this start is skipped.
func (m *Machine) handleSchedule(now time.Time, s *service, e Scheduled) {
	s.nextRun = e.Next
	m.markChanged(s)
	switch {
	case !e.Now || m.phase != running || s.removing:
	case slices.Contains(idleStates, s.state):
		m.wantUpAgain(s)
		m.startOrWait(now, s, "its time has come")
	default:
		m.emit(Note{Record{At: now, Service: s.name, Reason: "its time has come and is skipped: it is " + string(s.state)}})
	}
}

// isActive reports whether any process of a service runs or is about to start.
func (s *service) isActive() bool {
	return s.hasProcess() || s.state == Starting || s.state == Finishing
}

// dependantHeights returns a height for each service that others need: the length of the longest chain of live
// dependants above it. The result top is the greatest height. A shutdown ends services in the order of their heights.
func (m *Machine) dependantHeights() (heights map[*service]int, top int) {
	above := make(map[*service][]*service)
	for _, s := range m.order {
		for _, n := range s.policy.Needs {
			if t := m.services[n.Name]; t != nil && s.isActive() && n.Until != UntilTried {
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
		heights[s] = h // ends a recursion in a cycle
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

// endUnneeded ends, during a shutdown, the services whose dependants have all ended.
func (m *Machine) endUnneeded(now time.Time) {
	if m.dependentServices == 0 {
		return
	}
	needed := make(map[string]bool)
	for _, s := range m.order {
		if s.isActive() {
			for _, n := range s.policy.Needs {
				needed[n.Name] = needed[n.Name] || n.Name != s.name && n.Until != UntilTried
			}
		}
	}
	for _, s := range m.order {
		if s.state == Up && !s.policy.DrainsInput && !needed[s.name] {
			m.requestEnd(now, s, ReasonShutdown)
		}
	}
}
