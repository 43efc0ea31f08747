package supervisor

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Needs of services, limits on restarts, and tasks.

// RestartAfter says which kinds of exit restart a service. Exits that hinit requested don't count.
type RestartAfter string

// The values of RestartAfter. After an end without a restart the service is down if the exit code was 0, else failed.
const (
	RestartAlways    RestartAfter = ""
	RestartOnFailure RestartAfter = "on-failure" // an exit code other than 0, or a signal
	RestartOnSuccess RestartAfter = "on-success" // exit code 0
	RestartNever     RestartAfter = "never"
)

// Until is the condition that a needed service must meet.
type Until string

// The values of Until.
const (
	UntilStarted Until = "started" // up; for a task: started
	UntilReady   Until = "ready"   // up and ready
	UntilDone    Until = "done"    // down after exit code 0
	UntilTried   Until = "tried"   // ready, or ended once; applies to starts only, not to the order of a shutdown
)

// Need is a service that another one waits for before each start.
type Need struct {
	Name     string
	Until    Until
	Optional bool // ignore the need while that service is unknown or not wanted up
}

// Order is the part of a [Policy] about dependencies, tasks and restarts. The zero value changes nothing.
type Order struct {
	After          RestartAfter
	MaxRestarts    int           // limit of automatic restarts within RestartsWindow; 0 is no limit
	RestartsWindow time.Duration // the window of MaxRestarts; the first end beyond the limit makes the service failed
	Needs          []Need
	RestartOn      []string  // restart the service when one of these starts anew, or is a task and done
	OneShot        bool      // the service is a task: its end is expected
	Turns          bool      // limit simultaneous starts, see [Machine.Parallel]
	Used           time.Time // time of the last use; before their first start, recently used services come first in the queue
	EachStart      bool      // the service is a task that runs again before each start of a service that needs it done
}

// linkCount returns 1 if the policy makes a service depend on others, else 0.
func (o *Order) linkCount() int {
	if len(o.Needs) > 0 || len(o.RestartOn) > 0 {
		return 1
	}
	return 0
}

// order holds the state of a service that its [Order] needs.
type order struct {
	taskNeeds []taskNeed  `reexec:"gates"` // in state waiting: the runs of EachStart tasks that this start waits for
	unmet     []string    `reexec:"lacks"` // in state waiting: the names of unmet needs
	done      bool        // its last run ended by itself with exit code 0
	respawns  []time.Time // automatic restarts within the window
	nextRun   time.Time   // when its schedule starts it next, zero without a schedule
}

// taskNeed is a need for a task. Only a run with a number above Run meets the need.
type taskNeed struct {
	Name string
	Run  uint64
}

// runningStates lists the states in which a run exists.
var runningStates = []State{Starting, Up, Stopping, Killing, Finishing}

// idleStates lists the states in which nothing of a service runs, and only a command can start it.
var idleStates = []State{Down, Parked, Failed}

// startNeededTasks starts the EachStart tasks that s needs done, once for each start of s.
func (m *Machine) startNeededTasks(now time.Time, s *service) {
	for _, n := range s.policy.Needs {
		t := m.services[n.Name]
		if t == nil || t == s || !t.policy.EachStart || n.Until != UntilDone || s.taskNeedFor(n.Name) != nil {
			continue
		}
		after := m.runs
		if slices.Contains(runningStates, t.state) && t.requestedCause == "" {
			after = t.id - 1 // the current run of the task counts
		}
		s.taskNeeds = append(s.taskNeeds, taskNeed{n.Name, after})
		if slices.Contains(idleStates, t.state) && !t.removing {
			m.wantUpAgain(t)
			m.startOrWait(now, t, "needed by "+s.name)
		}
	}
}

func (s *service) taskNeedFor(name string) *taskNeed {
	for i := range s.taskNeeds {
		if s.taskNeeds[i].Name == name {
			return &s.taskNeeds[i]
		}
	}
	return nil
}

// wantUpAgain wants a service up and forgets its earlier failures.
func (m *Machine) wantUpAgain(s *service) {
	s.want, s.once, s.respawns = WantUp, false, nil
	s.forgetFailures()
}

// unmetNeeds returns the unmet needs of s, and a sentence about them.
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

// whyUnmet says in words why a need is unmet, and returns "" for a met need.
func (m *Machine) whyUnmet(s *service, n Need) string {
	t := m.services[n.Name]
	switch {
	case t == nil && n.Optional, t != nil && n.Optional && t.want == WantDown && !t.policy.OneShot:
		return ""
	case t == nil:
		return n.Name + ", which does not exist"
	}
	met, to := false, string(n.Until)
	switch n.Until {
	case UntilStarted:
		met = t.state == Up || t.policy.OneShot && t.started
		to = "up"
	case UntilReady, UntilTried:
		met = t.state == Up && t.ready || n.Until == UntilTried && t.last != nil
		to = string(UntilReady)
	case UntilDone:
		met = t.state == Down && t.done
		if g := s.taskNeedFor(n.Name); g != nil {
			met = met && t.last != nil && t.last.Run > g.Run
		}
	}
	if met {
		return ""
	}
	is := "it is " + string(t.state)
	if t.state == Up && to == string(UntilReady) {
		is += ", and not ready"
	}
	if t.last != nil && t.last.Code != 0 && slices.Contains([]State{Failed, Parked, Backoff}, t.state) {
		is = "it " + describe(t.last)
		if t.last.Cause == CauseSpawn {
			is = t.last.Error
		}
	}
	return n.Name + " to be " + to + " (" + is + ")"
}

// waitForNeeds puts a service into the state waiting if a need is unmet or memory is short, and reports whether it did.
func (m *Machine) waitForNeeds(now time.Time, s *service) bool {
	need, reason := m.lacksRoom(s)
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
		m.changed(s)
	}
	return true
}

// startReleased starts the waiting services whose needs are now met. Step calls it after a change of a state.
func (m *Machine) startReleased(now time.Time) {
	if m.links == 0 || m.phase != running {
		return
	}
	for range len(m.order) + 1 { // each start may meet a need of another service
		if !m.effects.moved {
			return
		}
		m.effects.moved = false
		for _, s := range m.order {
			if s.state == Waiting && len(s.needs) == 0 {
				m.startOrWait(now, s, "what it needs is there")
			}
		}
	}
}

// restartFollowers restarts the services that name t in Policy.RestartOn.
func (m *Machine) restartFollowers(now time.Time, t *service) {
	if m.links == 0 || m.phase != running {
		return
	}
	for _, s := range m.order {
		if s != t && s.state == Up && s.want == WantUp && slices.Contains(s.policy.RestartOn, t.name) {
			s.again = true
			m.requestEnd(now, s, t.name+" was started anew")
		}
	}
}

// stateWithoutRestart returns the state after an exit that the policy does not follow with a restart. For other exits ok is
// false.
func (s *service) stateWithoutRestart(exit *Exit, reason string) (next nextState, ok bool) {
	clean := s.policy.success(exit.Code) && exit.Signal == 0 && exit.Cause != CauseHealth
	switch s.policy.After {
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
		return nextState{state: Failed, reason: reason + " and is not restarted (" + string(s.policy.After) + ")"}, true
	case s.policy.OneShot:
		reason = "done: " + reason
	default:
		reason += " and is not restarted (" + string(s.policy.After) + ")"
	}
	s.want = WantDown
	return nextState{state: Down, reason: reason}, true
}

// limitRestarts counts an automatic restart. After too many restarts in the window it returns the state failed instead.
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

// handleSchedule handles an event of the schedule. It stores the next time, and with e.Now starts the task. A task that is not
// idle skips this start.
func (m *Machine) handleSchedule(now time.Time, s *service, e Scheduled) {
	s.nextRun = e.Next
	m.changed(s)
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

// dependantHeights returns, for each needed service, the length of the longest chain of live dependants above it. top is the
// longest length.
func (m *Machine) dependantHeights() (of map[*service]int, top int) {
	above := make(map[*service][]*service)
	for _, s := range m.order {
		for _, n := range s.policy.Needs {
			if t := m.services[n.Name]; t != nil && s.isActive() && n.Until != UntilTried {
				above[t] = append(above[t], s)
			}
		}
	}
	of = make(map[*service]int, len(above))
	var height func(s *service) int
	height = func(s *service) int {
		if h, known := of[s]; known {
			return h
		}
		h := 0
		of[s] = h // ends a recursion in a cycle
		for _, t := range above[s] {
			h = max(h, height(t)+1)
		}
		of[s] = h
		return h
	}
	for s := range above {
		top = max(top, height(s))
	}
	return of, top
}

// endUnneeded ends, during a shutdown, the services whose dependants have all ended.
func (m *Machine) endUnneeded(now time.Time) {
	if m.links == 0 {
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
		if s.state == Up && !s.policy.Drains && !needed[s.name] {
			m.requestEnd(now, s, ReasonShutdown)
		}
	}
}
