package supervisor

import (
	"context"
	"maps"
	"os"
	"slices"
	"time"
)

// Handover is the state that a loop passes to the loop of the new program when PID 1 re-executes itself. internal/reexec
// encodes it.
type Handover struct {
	Machine       Machine
	Services      []*service // all services, in the order of registration
	Units         []*unit
	Runs          map[uint64]string // service names by run number
	LingeringRuns []uint64          `reexec:"Lingers"`
	Orphans       uint64
	OOMKills      uint64
	History       []Record
	Notify        map[uint64]*os.File // readiness pipes of live runs, by run number
}

// RunInLoop executes call in the loop's goroutine, between two events. It blocks until call has returned. It returns the same
// errors as Do.
func (l *Loop) RunInLoop(ctx context.Context, call func()) error {
	return l.sendRequest(ctx, request{call: call})
}

// HandOver returns the state for the loop of the next program. Call it, and use the result, only in the loop's goroutine: in
// RunInLoop or OnPanic.
func (l *Loop) HandOver() *Handover {
	h := &Handover{
		Machine: l.machine, Services: append([]*service{}, l.machine.inOrder...), Runs: l.runs, LingeringRuns: l.lingeringRuns, Orphans: l.orphans.Load(), OOMKills: l.oomKills.explainedUpTo,
		Notify: make(map[uint64]*os.File),
	}
	for _, s := range l.machine.inOrder {
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

// TakeOver fills a new loop with the state of the loop before the re-execution. Call it before Run. mainPID returns the PID of
// a run's main process, or 0 if the process has been reaped. If the old loop panicked, the state may lack a start or an exit.
// TakeOver detects that with mainPID. When it returns, the snapshot shows all services.
func (l *Loop) TakeOver(h *Handover, mainPID func(run uint64) int) {
	h.Machine.ShutdownBudget, h.Machine.Random, h.Machine.MaxStarting, h.Machine.ExtraStarting = l.machine.ShutdownBudget, l.machine.Random, l.machine.MaxStarting, l.machine.ExtraStarting
	l.machine = h.Machine
	l.machine.inOrder = h.Services
	l.machine.rebuildIndexes()
	for _, s := range h.Services {
		l.machine.stepResult.changed = append(l.machine.stepResult.changed, s.name) // the first step of the new loop checks all waiting services
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
	l.lingeringRuns = h.LingeringRuns
	l.orphans.Store(h.Orphans)
	l.oomKills.explainedUpTo = h.OOMKills
	l.history.restore(h.History)
	for _, s := range l.machine.inOrder {
		l.reconcile(s, mainPID(s.liveRun()))
		if x := s.lastExit; x != nil && x.PID != 0 && x.Tail == nil {
			l.firstEvents = append(l.firstEvents, LastLines{s.name, x.Run, nil})
		}
		// The stop command has ended, but the old loop panicked before it handled StopCommandEnded. Repeat the event.
		if s.stopCommand.run != 0 && mainPID(s.stopCommand.run) == 0 && !slices.Contains(l.lingeringRuns, s.stopCommand.run) {
			l.addLingering(s.name, s.stopCommand.run)
			l.firstEvents = append(l.firstEvents, StopCommandEnded{Name: s.name, Run: s.stopCommand.run, Leftover: true})
		}
	}
	l.serviceDropped = true
	l.publish()
}

// QueueFirst queues an event that Run handles before all other events. Call it before Run.
func (l *Loop) QueueFirst(e Event) { l.firstEvents = append(l.firstEvents, e) }

// reconcile compares the state of a service with the PID of its main process (0 if none is alive). It queues a start or an exit
// that the old loop lost in a panic.
func (l *Loop) reconcile(s *service, mainPID int) {
	run := s.liveRun()
	starting := s.state == Starting || s.state == Finishing && s.pid == 0 && !s.leftover
	switch {
	case starting && mainPID != 0:
		l.runs[run] = s.name
		l.firstEvents = append(l.firstEvents, Spawned{s.name, mainPID})
	case starting:
		l.firstEvents = append(l.firstEvents, SpawnFailed{Name: s.name, Error: "hinit had a fault while it was starting it", Code: 126})
	case s.pid != 0 && s.pid != mainPID:
		l.addLingering(s.name, run) // the next reap looks for living descendants
		l.firstEvents = append(l.firstEvents,
			Remark{Service: s.name, Text: "how it ended is not known: hinit had a fault at that moment"},
			Exited{Name: s.name, PID: s.pid, Code: -1, Leftover: true})
	case s.leftover:
		l.addLingering(s.name, run)
	}
}

// addLingering records a run whose main process has ended. Each later reap checks whether the descendants of the run have ended
// too.
func (l *Loop) addLingering(name string, run uint64) {
	l.runs[run] = name
	if !slices.Contains(l.lingeringRuns, run) {
		l.lingeringRuns = append(l.lingeringRuns, run)
	}
}

// restore fills a new ring. The records must be sorted by Seq.
func (r *Ring) restore(records []Record) {
	for _, rec := range records {
		r.store(&rec)
		r.last = rec.Seq
	}
	r.publish()
}
