package supervisor

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Needs of services, the number of their restarts, and tasks.

// RestartAfter says after which unrequested ends a service is started again.
type RestartAfter string

// The values of RestartAfter. One that is not started again is down after exit code 0, else failed.
const (
	RestartAlways    RestartAfter = ""
	RestartOnFailure RestartAfter = "on-failure" // another exit code than 0, or a signal
	RestartOnSuccess RestartAfter = "on-success" // exit code 0
	RestartNever     RestartAfter = "never"
)

// Until says what another service has to be for a need to be met.
type Until string

// The values of Until.
const (
	UntilStarted Until = "started" // up; a task: has been started
	UntilReady   Until = "ready"   // up and ready
	UntilDone    Until = "done"    // down after exit code 0
	UntilTried   Until = "tried"   // ready, or ended once; it counts for the start only, so its end waits for no other service
)

// Need is a service that another one waits for before each start.
type Need struct {
	Name     string
	Until    Until
	Optional bool // it is left out while there is no such service, and while it is not wanted up
}

// Order is the part of a [Policy] that says when a service starts besides its own ends. Its zero value changes nothing.
type Order struct {
	After          RestartAfter
	MaxRestarts    int           // this many restarts by itself ...
	RestartsWindow time.Duration // ... within this time; then the next end is the last, and it is failed. 0 is no limit
	Needs          []Need
	RestartOn      []string  // it is ended and started again when one of these is started anew, or as a task is done
	OneShot        bool      // a task: it is to end
	Turns          bool      // only so many of these start at the same time, see [Machine.Parallel]
	Used           time.Time // of those that wait for their first start the one that was used last starts first
	EachStart      bool      // a task that runs before each start of a service that needs it done
}

// linked reports whether a policy makes a service depend on others.
func (o *Order) linked() int {
	if len(o.Needs) > 0 || len(o.RestartOn) > 0 {
		return 1
	}
	return 0
}

// order is what the machine knows of that.
type order struct {
	gates    []gate      // in state waiting: from which run on a task counts that runs before each start
	lacks    []string    // in state waiting: what it waits for
	done     bool        // its last run ended by itself with exit code 0
	respawns []time.Time // restarts within the window
	nextRun  time.Time   // when its schedule has it started next, zero without a schedule
}

// gate is a need that only a later run of a task meets.
type gate struct {
	Name string
	Run  uint64
}

// busy are the states between the start of a run and its end.
var busy = []State{Starting, Up, Stopping, Killing, Finishing}

// idle are the states in which nothing of a service runs, and nothing will without being asked.
var idle = []State{Down, Parked, Failed}

// require starts the tasks that have to run before s does, once for each start of s.
func (m *Machine) require(now time.Time, s *service) {
	for _, n := range s.policy.Needs {
		t := m.services[n.Name]
		if t == nil || t == s || !t.policy.EachStart || n.Until != UntilDone || s.gate(n.Name) != nil {
			continue
		}
		after := m.runs
		if slices.Contains(busy, t.state) && t.asked == "" {
			after = t.id - 1 // the run that is under way will do
		}
		s.gates = append(s.gates, gate{n.Name, after})
		if slices.Contains(idle, t.state) && !t.removing {
			m.renew(t)
			m.begin(now, t, "needed by "+s.name)
		}
	}
}

func (s *service) gate(name string) *gate {
	for i := range s.gates {
		if s.gates[i].Name == name {
			return &s.gates[i]
		}
	}
	return nil
}

// renew wants a service up as if nothing had happened before.
func (m *Machine) renew(s *service) {
	s.want, s.once, s.respawns = WantUp, false, nil
	s.forgive()
}

// lacking returns the needs of s that are not met, and why, for people.
func (m *Machine) lacking(s *service) (names []string, reason string) {
	var why []string
	for _, n := range s.policy.Needs {
		if words := m.lacks(s, n); words != "" {
			names = append(names, n.Name)
			why = append(why, words)
		}
	}
	return names, "waits for " + strings.Join(why, ", and for ")
}

// lacks says in words why a need is not met, "" when it is.
func (m *Machine) lacks(s *service, n Need) string {
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
		if g := s.gate(n.Name); g != nil {
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

// await lets a service wait for what it lacks, and reports whether it does.
func (m *Machine) await(now time.Time, s *service) bool {
	names, reason := []string{NeedMemory}, m.lacksMemory(s)
	if reason == "" {
		if len(s.policy.Needs) == 0 {
			return false
		}
		m.require(now, s)
		if names, reason = m.lacking(s); len(names) == 0 {
			return false
		}
	}
	s.lacks = names
	switch {
	case s.state != Waiting:
		m.set(now, s, Waiting, time.Time{}, reason)
	case s.reason != reason:
		s.reason = reason
		m.changed(s)
	}
	return true
}

// release starts the services whose needs are met, after a step that has changed a state.
func (m *Machine) release(now time.Time) {
	if m.links == 0 || m.phase != running {
		return
	}
	for range len(m.order) + 1 { // what begins may be what another one waits for
		if !m.effects.moved {
			return
		}
		m.effects.moved = false
		for _, s := range m.order {
			if s.state == Waiting && len(s.needs) == 0 {
				m.begin(now, s, "what it needs is there")
			}
		}
	}
}

// follow restarts what is to be restarted with t.
func (m *Machine) follow(now time.Time, t *service) {
	if m.links == 0 || m.phase != running {
		return
	}
	for _, s := range m.order {
		if s != t && s.state == Up && s.want == WantUp && slices.Contains(s.policy.RestartOn, t.name) {
			s.again = true
			m.end(now, s, t.name+" was started anew")
		}
	}
}

// final says what follows an end after which the policy starts nothing again; ok is false where it does.
func (s *service) final(exit *Exit, reason string) (next settle, ok bool) {
	clean := s.policy.success(exit.Code) && exit.Signal == 0 && exit.Cause != CauseHealth
	switch s.policy.After {
	case RestartAlways:
		return settle{}, false
	case RestartOnFailure:
		ok = clean
	case RestartOnSuccess:
		ok = !clean
	case RestartNever:
		ok = true
	}
	if !ok {
		return settle{}, false
	}
	s.respawn = false
	switch {
	case !clean:
		return settle{state: Failed, reason: reason + " and is not restarted (" + string(s.policy.After) + ")"}, true
	case s.policy.OneShot:
		reason = "done: " + reason
	default:
		reason += " and is not restarted (" + string(s.policy.After) + ")"
	}
	s.want = WantDown
	return settle{state: Down, reason: reason}, true
}

// limited counts a restart that is to follow, and lets the service fail instead when there were too many.
func (s *service) limited(now time.Time, next settle) settle {
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
	return settle{state: Failed, reason: "restarted " + times + " within " + window + ", which is the limit: " + next.reason}
}

// due starts a task whose time has come, unless it is at it, and notes when the next time is.
func (m *Machine) due(now time.Time, s *service, e Due) {
	s.nextRun = e.Next
	m.changed(s)
	switch {
	case !e.Now || m.phase != running || s.removing:
	case slices.Contains(idle, s.state):
		m.renew(s)
		m.begin(now, s, "its time has come")
	default:
		m.do(Note{Record{At: now, Service: s.name, Reason: "its time has come and is skipped: it is " + string(s.state)}})
	}
}

// alive reports whether anything of a service runs, or is about to.
func (s *service) alive() bool {
	return s.held() || s.state == Starting || s.state == Finishing
}

// heights says how many services stand above each one that something alive needs: the longest way up. It returns the largest number.
func (m *Machine) heights() (of map[*service]int, top int) {
	above := make(map[*service][]*service)
	for _, s := range m.order {
		for _, n := range s.policy.Needs {
			if t := m.services[n.Name]; t != nil && s.alive() && n.Until != UntilTried {
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
		of[s] = h // a cycle ends here
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

// letGo ends, while the container stops, services that were kept for their dependants and are not needed any more.
func (m *Machine) letGo(now time.Time) {
	if m.links == 0 {
		return
	}
	needed := make(map[string]bool)
	for _, s := range m.order {
		if s.alive() {
			for _, n := range s.policy.Needs {
				needed[n.Name] = needed[n.Name] || n.Name != s.name && n.Until != UntilTried
			}
		}
	}
	for _, s := range m.order {
		if s.state == Up && !s.policy.Drains && !needed[s.name] {
			m.end(now, s, ReasonShutdown)
		}
	}
}
