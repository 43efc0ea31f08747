package supervisor

import (
	"cmp"
	"time"
)

// Snapshot is the state of all services after one iteration of the loop. It is immutable.
type Snapshot struct {
	Services   []*Service // all services, in the order of registration
	Stopping   bool       // the container is shutting down
	HoldReason string     // why starts must wait for memory; "" if they need not wait
}

// Find returns the service with this name, or nil.
func (s *Snapshot) Find(name string) *Service {
	for _, v := range s.Services {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// Service is the state of one service. It is immutable.
type Service struct {
	Name    string
	Profile string // "" if the service belongs to no profile
	// Group is a name under which operators address several services; "" for none.
	Group           string
	Kind            Kind
	YieldsToProfile bool     // a profile of the same name takes precedence, see [Unit]
	Log             string   // path of the current log file; "" if the service has none
	Command         []string // command of the running process, or of the next start if no process is running
	Drifted         bool     // the definition has changed since the running process was started
	State           State
	Want            Want
	Reason          string    // why the service is in this state
	Since           time.Time // when the service entered this state
	ProcessSince    time.Time // when the main process last started or ended; before the first start, when the service was registered
	PID             int       // PID of the main process, 0 if it is not running; never the PID of a finish command
	Run             uint64    // number of the current or last run, 0 before the first
	Ready           bool
	// ReadySince is the time at which the service became ready, or zero while it is not ready. While no process of the service
	// runs, it is the end of the last run.
	ReadySince    time.Time
	Announces     bool      // the service reports its readiness itself
	Warning       string    // warning from the running main process, see [Ready]; the service controls this text
	Status        string    // status text from the running service about its current work, see [NotifyMessage]; never a warning
	Paused        bool      // an operator has stopped the process with SIGSTOP
	Started       bool      // the service has started at least once
	Permanent     bool      // the service won't start again by itself: its finish command said so, or it is parked or failed
	Restarts      int       // number of automatic restarts
	Failures      int       // number of fast exits in a row
	CrashLoop     bool      // the service had too many fast exits within the window, and now restarts with the longest delay
	NextStart     time.Time // when the service starts by itself, zero if it doesn't
	Needs         []string  // names of the services and other conditions that the service waits for
	Held          bool      // the service was ended, or must not start, because memory is short; see [Hold]
	OOMAdj        int       // oom_score_adj of the service's processes, minus the oom_score_adj of hinit
	LastExit      *Exit
	NextRun       time.Time    // next start by the schedule; zero without a schedule
	RestartPolicy RestartAfter // kinds of exit that restart the service
	Task          bool         // the service is a task: its end is expected
	Done          bool         // the last run ended by itself with success

	Exits     []CauseCount // number of exits by cause; must not be changed
	Restarted []CauseCount // number of restarts by the cause of the preceding exit; must not be changed
}

// CauseCount is the number of exits that had the given cause.
type CauseCount struct {
	Cause Cause
	N     int
}

func (s *service) snapshot(u *unit) *Service {
	v := &Service{
		Name: s.name, Profile: u.Profile, Group: u.Group, Kind: u.Kind, YieldsToProfile: u.YieldsToProfile, Log: u.Log, Command: u.Spec.Argv,
		State: s.state, Want: s.want, Reason: s.reason, Since: s.since,
		ProcessSince: s.processSince, Run: s.number, Ready: s.ready, ReadySince: s.readySince, Announces: s.policy.ReportsReadiness || s.hasChecks, Warning: s.readinessText, OOMAdj: cmp.Or(u.Spec.OOM, oomAdj[u.Kind]),
		Paused: s.paused, Started: s.started, Permanent: s.staysDown || s.state == Parked || s.state == Failed,
		Restarts: s.restarts, Failures: s.failures, CrashLoop: s.looping, LastExit: s.lastExit,
		NextStart: s.nextRun, NextRun: s.nextRun, Task: s.policy.IsConfiguredTask, Done: s.succeeded, RestartPolicy: s.policy.RestartPolicy,
		Exits: s.exits, Restarted: s.restartCauses,
	}
	if s.isRunning() {
		v.PID, v.Status = s.pid, s.status
		if u.LastSpec != nil {
			v.Command, v.Drifted = u.LastSpec.Argv, true
		}
	}
	if s.state == Backoff {
		v.NextStart = s.deadline
	}
	if s.state == Waiting {
		v.Needs = append(append(v.Needs, s.needs...), s.unmet...)
	}
	return v
}

// viewOf returns the entry of one service for the next snapshot.
func (l *Loop) viewOf(s *service, u *unit) *Service {
	v := s.snapshot(u)
	held := l.machine.shortage.held[s.name]
	v.Held = held != "" && !isDiskHold(held)
	return v
}

// publish shows the changed services to readers, and then the history records about these changes.
func (l *Loop) publish() {
	defer l.history.publish()
	old, order := l.snapshot.Load(), l.machine.order
	if len(l.changed) == 0 && !l.dropped && old.Stopping == l.machine.Stopping() && old.HoldReason == l.machine.shortage.startsHeld {
		return
	}
	next := &Snapshot{Services: make([]*Service, len(order)), Stopping: l.machine.Stopping(), HoldReason: l.machine.shortage.startsHeld}
	kept := copy(next.Services, old.Services)
	if l.dropped {
		kept = 0 // a service was removed, so the indexes of the others have changed
	}
	for i, s := range order[kept:] {
		u := l.units[s.name]
		u.index = kept + i
		if u.dirty || u.view == nil {
			u.view, u.dirty = l.viewOf(s, u), false
		}
		next.Services[u.index] = u.view
	}
	for _, u := range l.changed {
		if s := l.machine.services[u.Name]; u.dirty && s != nil && l.units[u.Name] == u {
			u.view = l.viewOf(s, u)
			next.Services[u.index] = u.view
		}
		u.dirty = false
	}
	clear(l.changed)
	l.changed, l.dropped = l.changed[:0], false
	l.snapshot.Store(next)
	l.news.wake()
}

// markChanged records that the snapshot's entry of a unit is out of date.
func (l *Loop) markChanged(u *unit) {
	if !u.dirty {
		u.dirty = true
		l.changed = append(l.changed, u)
	}
}
