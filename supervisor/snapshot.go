package supervisor

import (
	"cmp"
	"time"
)

// Snapshot is the state of all services at one moment. It never changes, so any goroutine may read it.
type Snapshot struct {
	Services   []*Service // all services, in the order of registration
	Stopping   bool       // the container is shutting down
	HoldReason string     // why services with Policy.Sheddable may not start (memory is short); "" if they may start
}

// Find returns the service with this name, or nil if there is none.
func (s *Snapshot) Find(name string) *Service {
	for _, v := range s.Services {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// Service is the entry of one service in a [Snapshot]. It never changes.
type Service struct {
	Name    string
	Profile string // "" if the service belongs to no profile
	// Group is the name under which operators address this and other services; "" for none.
	Group             string
	Kind              Kind
	YieldsToProfile   bool     // a profile of the same name replaces this service, see [Unit]
	Log               string   // path of the current log file; "" if the service has none
	Command           []string // command of the running process, or of the next start if no process is running
	DefinitionChanged bool     // the definition has changed since the process was started
	State             State
	Want              Want
	Reason            string    // why the service is in this state
	Since             time.Time // when the service entered this state
	ProcessSince      time.Time // when the main process last started or ended; before the first start, the time of registration
	PID               int       // PID of the main process, 0 if it is not running; never the PID of a finish command
	Run               uint64    // number of the current or last run, 0 before the first run
	Ready             bool
	// ReadySince is when the current run became ready, or zero if it is not ready. Between two runs it is when the last run
	// ended. Before the first run it is when the service was registered.
	ReadySince       time.Time
	ReportsReadiness bool      // the service reports its readiness itself
	Warning          string    // text of the last [Ready] or [StatusText]; the service controls it
	Status           string    // status of the last [NotifyMessage], about the service's current work
	Paused           bool      // an operator has stopped the process with SIGSTOP
	Started          bool      // the service has started at least once
	StaysDown        bool      // the service won't start by itself: its finish command said so, or it is parked or failed
	Restarts         int       // number of automatic restarts
	Failures         int       // number of fast exits in a row, see [Policy]
	CrashLoop        bool      // at least Policy.CrashLoopExits fast exits within Policy.CrashLoopWindow
	NextStart        time.Time // when the restart delay ends; zero if the service is not in backoff
	Needs            []string  // services and other conditions for which the service waits
	IsHeld           bool      // the service was ended or must not start because memory is short, see [Hold]
	OOMAdj           int       // oom_score_adj of the processes minus hinit's own
	LastExit         *Exit
	NextRun          time.Time    // next start by the schedule; zero without one
	RestartPolicy    RestartAfter // which exits cause an automatic restart
	Task             bool         // the service is a task: its end is expected
	Done             bool         // the last run ended by itself with a success code

	Exits         []CauseCount // number of exits by cause; do not modify
	RestartCauses []CauseCount // number of restarts by the cause of the exit before them; do not modify
}

// CauseCount is a number of exits with one cause.
type CauseCount struct {
	Cause Cause
	Count int `reexec:"N"`
}

func (s *service) snapshot(u *unit) *Service {
	v := &Service{
		Name: s.name, Profile: u.Profile, Group: u.Group, Kind: u.Kind, YieldsToProfile: u.YieldsToProfile, Log: u.LogFile, Command: u.Spec.Argv,
		State: s.state, Want: s.want, Reason: s.reason, Since: s.since,
		ProcessSince: s.processSince, Run: s.number, Ready: s.ready, ReadySince: s.readySince, ReportsReadiness: s.policy.ReportsReadiness || s.hasChecks, Warning: s.readinessText, OOMAdj: cmp.Or(u.Spec.OOMIncrease, oomAdj[u.Kind]),
		Paused: s.paused, Started: s.started, StaysDown: s.staysDown || s.state == Parked || s.state == Failed,
		Restarts: s.restarts, Failures: s.failures, CrashLoop: s.inCrashLoop, LastExit: s.lastExit,
		NextStart: s.nextRun, NextRun: s.nextRun, Task: s.policy.IsConfiguredTask, Done: s.succeeded, RestartPolicy: s.policy.RestartPolicy,
		Exits: s.exits, RestartCauses: s.restartCauses,
	}
	if s.isRunning() {
		v.PID, v.Status = s.pid, s.status
		if u.LastSpec != nil {
			v.Command, v.DefinitionChanged = u.LastSpec.Argv, true
		}
	}
	if s.state == Backoff {
		v.NextStart = s.deadline
	}
	if s.state == Waiting {
		v.Needs = append(append(v.Needs, s.needs...), s.unmetNeeds...)
	}
	return v
}

// viewOf returns the entry of one service for the next snapshot.
func (l *Loop) viewOf(s *service, u *unit) *Service {
	v := s.snapshot(u)
	held := l.machine.shortage.held[s.name]
	v.IsHeld = held != "" && !isDiskHold(held)
	return v
}

// publish stores a new snapshot with the changed services, and then shows readers the records about these changes.
func (l *Loop) publish() {
	defer l.history.publish()
	old, order := l.snapshot.Load(), l.machine.inOrder
	if len(l.changed) == 0 && !l.serviceDropped && old.Stopping == l.machine.Stopping() && old.HoldReason == l.machine.shortage.startsHeld {
		return
	}
	next := &Snapshot{Services: make([]*Service, len(order)), Stopping: l.machine.Stopping(), HoldReason: l.machine.shortage.startsHeld}
	kept := copy(next.Services, old.Services)
	if l.serviceDropped {
		kept = 0
	}
	for i, s := range order[kept:] {
		u := l.units[s.name]
		u.index = kept + i
		if u.viewOutdated || u.view == nil {
			u.view, u.viewOutdated = l.viewOf(s, u), false
		}
		next.Services[u.index] = u.view
	}
	for _, u := range l.changed {
		if s := l.machine.services[u.Name]; u.viewOutdated && s != nil && l.units[u.Name] == u {
			u.view = l.viewOf(s, u)
			next.Services[u.index] = u.view
		}
		u.viewOutdated = false
	}
	clear(l.changed)
	l.changed, l.serviceDropped = l.changed[:0], false
	l.snapshot.Store(next)
	l.snapshotChanges.wake()
}

// markChanged makes the next publish renew the entry of a unit.
func (l *Loop) markChanged(u *unit) {
	if !u.viewOutdated {
		u.viewOutdated = true
		l.changed = append(l.changed, u)
	}
}
