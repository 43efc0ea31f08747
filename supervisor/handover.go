package supervisor

import (
	"context"
	"maps"
	"os"
	"slices"
	"time"
)

// Handover is the state that a loop passes on when PID 1 re-executes itself. The loop of the new program continues from
// this state.
type Handover struct {
	Machine  Machine
	Services []*service // all services, in the order of registration
	Units    []*unit
	Runs     map[uint64]string
	Lingers  []uint64
	Orphans  uint64
	OOMKills uint64
	History  []Record
	Notify   map[uint64]*os.File // readiness pipes of live runs, by run number
}

// RunInLoop executes call in the loop's goroutine, between two events. It blocks until call has returned, and returns the same
// errors as Do.
func (l *Loop) RunInLoop(ctx context.Context, call func()) error {
	return l.sendRequest(ctx, request{call: call})
}

// HandOver returns the state that the successor of this loop needs. Call it in the loop's goroutine (from RunInLoop or OnPanic),
// and use the result only there.
func (l *Loop) HandOver() *Handover {
	h := &Handover{
		Machine: l.machine, Services: append([]*service{}, l.machine.order...), Runs: l.runs, Lingers: l.lingeringRuns, Orphans: l.orphans.Load(), OOMKills: l.oomKills.explained,
		Notify: make(map[uint64]*os.File),
	}
	for _, s := range l.machine.order {
		if u := l.units[s.name]; u != nil {
			h.Units = append(h.Units, u)
		}
	}
	for run, n := range l.readinessPipes {
		h.Notify[run] = n.r
	}
	l.history.publish()
	h.History, _ = l.history.Since(0)
	if len(h.History) > 0 {
		h.History = append(l.history.KeptRecords(h.History[0].Seq), h.History...)
	}
	return h
}

// TakeOver gives a new loop the state h of the loop that ran before the re-execution. Call TakeOver before Run. The
// function mainPID returns the PID of a run's main process, or 0 after the process was reaped. A fault in the old loop
// may have lost the event of a start or an exit. TakeOver finds such events by comparing the state with these PIDs.
// When TakeOver returns, the snapshot shows the services.
func (l *Loop) TakeOver(h *Handover, mainPID func(run uint64) int) {
	h.Machine.Budget, h.Machine.Random, h.Machine.Parallel, h.Machine.ParallelExtra = l.machine.Budget, l.machine.Random, l.machine.Parallel, l.machine.ParallelExtra
	l.machine = h.Machine
	l.machine.effects.servicesChanged = true
	l.machine.services = make(map[string]*service, len(h.Services))
	l.machine.order = h.Services
	for _, s := range h.Services {
		l.machine.services[s.name] = s
		l.machine.dependentServices += s.policy.dependsOnOthers()
		l.units[s.name] = &unit{Unit: &Unit{Name: s.name, Policy: *s.policy}}
	}
	l.machine.resumeTurns(time.Now())
	for _, u := range h.Units {
		l.units[u.Name] = u
	}
	maps.Copy(l.runs, h.Runs)
	for run, r := range h.Notify {
		if r != nil {
			l.watchReadiness(run, &readinessPipe{r: r})
		}
	}
	l.lingeringRuns = h.Lingers
	l.orphans.Store(h.Orphans)
	l.oomKills.explained = h.OOMKills
	l.history.restore(h.History)
	for _, s := range l.machine.order {
		l.reconcile(s, mainPID(s.liveRun()))
		// The stop command has ended, but a fault of the old loop lost that event.
		if s.stopCommand.run != 0 && mainPID(s.stopCommand.run) == 0 && !slices.Contains(l.lingeringRuns, s.stopCommand.run) {
			l.addLingering(s.name, s.stopCommand.run)
			l.resumed = append(l.resumed, StopCommandEnded{Name: s.name, Run: s.stopCommand.run, Leftover: true})
		}
	}
	l.dropped = true // so that publish rebuilds all views
	l.publish()
}

// Resume adds an event that Run feeds to the machine before any other event. Call Resume before Run.
func (l *Loop) Resume(e Event) { l.resumed = append(l.resumed, e) }

// reconcile compares a service's state with mainPID, the PID of its main process (0 for none). If a fault lost the event of a
// start or an exit, reconcile queues that event for Run.
func (l *Loop) reconcile(s *service, mainPID int) {
	run := s.liveRun()
	starting := s.state == Starting || s.state == Finishing && s.pid == 0 && !s.leftover
	switch {
	case starting && mainPID != 0:
		l.runs[run] = s.name
		l.resumed = append(l.resumed, Spawned{s.name, mainPID})
	case starting:
		l.resumed = append(l.resumed, SpawnFailed{Name: s.name, Error: "hinit had a fault while it was starting it", Code: 126})
	case s.pid != 0 && s.pid != mainPID:
		l.addLingering(s.name, run) // the next reap looks for its remaining processes
		l.resumed = append(l.resumed,
			Remark{Service: s.name, Text: "how it ended is not known: hinit had a fault at that moment"},
			Exited{Name: s.name, PID: s.pid, Code: -1, Leftover: true})
	case s.leftover:
		l.addLingering(s.name, run)
	}
}

func (l *Loop) addLingering(name string, run uint64) {
	l.runs[run] = name
	if !slices.Contains(l.lingeringRuns, run) {
		l.lingeringRuns = append(l.lingeringRuns, run)
	}
}

// restore fills a new ring with records from an old ring, oldest first.
func (r *Ring) restore(records []Record) {
	for _, rec := range records {
		r.store(&rec)
		r.last = rec.Seq
	}
	r.publish()
}
