package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"hinit/internal/guard"
	"hinit/internal/handover"
	"hinit/internal/proc"
)

// handed is what a loop tells its successor in another image of this process.
type handed struct {
	Machine  Machine
	Services []service
	Units    []handedUnit
	Runs     map[uint64]string
	Lingers  []uint64
	Orphans  uint64
	OOMKills uint64
	History  []Record
	Notify   map[uint64]int // run → descriptor on which it says that it is ready
}

type handedUnit struct {
	Unit  Unit
	Ran   *proc.Spec // what its run was started as, where that differs from the unit
	Stdio bool       // it has this process's own
	Files [3]int     // descriptors of Stdin, Stdout and Stderr, -1 for none
}

// codec leaves out what the successor has of its own.
func codec(c *handover.Codec) *handover.Codec {
	return c.Without(
		"supervisor.Machine.Budget", "supervisor.Machine.Random", "supervisor.Machine.out",
		"supervisor.Machine.services", "supervisor.Machine.order", // they are handed over as Services
		"supervisor.Unit.Stdio", "supervisor.Unit.Stdin", "supervisor.Unit.Stdout", "supervisor.Unit.Stderr", "proc.Spec.Files",
		"supervisor.Unit.Finish", // a function; Mend puts it back
	)
}

// Yield runs call in the loop's goroutine, between two turns: nothing of the loop changes meanwhile. The error is as that of
// Do.
func (l *Loop) Yield(ctx context.Context, call func()) error { return l.ask(ctx, request{call: call}) }

// Export returns what a successor needs to go on, and the descriptors that it needs open. It must be called in the loop's
// goroutine: from Yield or OnPanic. The successor has no Unit.Finish but by Mend.
func (l *Loop) Export(c *handover.Codec) (json.RawMessage, []int, error) {
	var keep []int
	h := handed{
		Machine: l.machine, Runs: l.runs, Lingers: l.lingers, Orphans: l.orphans.Load(), OOMKills: l.oomKills,
	}
	for _, s := range l.machine.order {
		h.Services = append(h.Services, *s)
		if u := l.units[s.name]; u != nil {
			out := handedUnit{Unit: u.Unit, Stdio: u.Stdio != nil}
			if u.drifted {
				out.Ran = &u.ran
			}
			for i, f := range []*os.File{u.Stdin, u.Stdout, u.Stderr} {
				if out.Files[i] = handover.Descriptor(f); out.Files[i] >= 0 {
					keep = append(keep, out.Files[i])
				}
			}
			h.Units = append(h.Units, out)
		}
	}
	h.Notify = make(map[uint64]int)
	for run, n := range l.notifiers {
		if fd := handover.Descriptor(n.r); fd >= 0 {
			h.Notify[run] = fd
			keep = append(keep, fd)
		}
	}
	l.history.show()
	h.History, _ = l.history.Since(0)
	data, err := codec(c).Encode(&h)
	return data, keep, err
}

// Import makes a new loop the successor of one that was exported. It must be called before Run. main returns the main process
// of a run that is alive or not buried yet, 0 when there is none: what the old image started or missed and could not note is
// found out with it. The snapshot shows the services when Import returns.
func (l *Loop) Import(c *handover.Codec, data json.RawMessage, main func(run uint64) int) error {
	h := handed{Machine: l.machine}
	if err := codec(c).Decode(data, &h); err != nil {
		return fmt.Errorf("cannot take over the services: %w", err)
	}
	l.machine = h.Machine
	l.machine.services = make(map[string]*service, len(h.Services))
	for i := range h.Services {
		s := &h.Services[i]
		l.machine.services[s.name] = s
		l.machine.order = append(l.machine.order, s)
		l.units[s.name] = &unit{Unit: Unit{Name: s.name, Policy: s.policy}}
	}
	for _, u := range h.Units {
		if u.Stdio {
			u.Unit.Stdio = []*os.File{os.Stdin, os.Stdout, os.Stderr}
		}
		u.Unit.Stdin, u.Unit.Stdout, u.Unit.Stderr = handover.File(u.Files[0], "stdin"), handover.File(u.Files[1], "stdout"), handover.File(u.Files[2], "stderr")
		l.units[u.Unit.Name] = &unit{Unit: u.Unit, ran: u.Unit.Spec}
		if u.Ran != nil {
			l.units[u.Unit.Name].ran, l.units[u.Unit.Name].drifted = *u.Ran, true
		}
	}
	maps.Copy(l.runs, h.Runs)
	for run, fd := range h.Notify {
		n := &notifier{r: handover.File(fd, "notification")}
		l.notifiers[run] = n
		guard.Go("waiting for readiness", func() { n.listen(func() { l.Post(Ready{h.Runs[run], run, true, ""}) }) })
	}
	l.lingers = h.Lingers
	l.orphans.Store(h.Orphans)
	l.oomKills = h.OOMKills
	l.history.restore(h.History)
	for _, s := range l.machine.order {
		l.reconcile(s, main(s.live()))
	}
	l.dropped = true // all views are to be made
	l.publish()
	return nil
}

// Mend calls f for every unit that was taken over, to put back what could not be. It must be called after Import and before
// Run.
func (l *Loop) Mend(f func(u *Unit)) {
	for _, s := range l.machine.order {
		f(&l.units[s.name].Unit)
	}
}

// Resume adds something that a successor has to say when it runs. It must be called before Run.
func (l *Loop) Resume(e Event) { l.resumed = append(l.resumed, e) }

// reconcile notes what the machine has to be told about a service: after a fault it may know less than has happened.
func (l *Loop) reconcile(s *service, main int) {
	run := s.live()
	starting := s.state == Starting || s.state == Finishing && s.pid == 0 && !s.leftover
	switch {
	case starting && main != 0:
		l.runs[run] = s.name
		l.resumed = append(l.resumed, Spawned{s.name, main})
	case starting:
		l.resumed = append(l.resumed, SpawnFailed{Name: s.name, Error: "hinit had a fault while it was starting it", Code: 126})
	case s.pid != 0 && s.pid != main:
		l.linger(s.name, run) // whether anything of it is left is looked at next
		l.resumed = append(l.resumed,
			Remark{s.name, "how it ended is not known: hinit had a fault at that moment"},
			Exited{Name: s.name, PID: s.pid, Code: -1, Leftover: true})
	case s.leftover:
		l.linger(s.name, run)
	}
}

func (l *Loop) linger(name string, run uint64) {
	l.runs[run] = name
	if !slices.Contains(l.lingers, run) {
		l.lingers = append(l.lingers, run)
	}
}

// restore fills a new ring with the records of an old one.
func (r *Ring) restore(records []Record) {
	for _, rec := range records {
		r.slots[rec.Seq%ringSize].Store(&rec)
		r.last = rec.Seq
	}
	r.show()
}

// undo takes one step of a machine back, if it panicked in the middle of it: what is handed over then is what was true before
// the event, and the successor does not begin with half of a change.
type undo struct {
	armed    bool
	machine  Machine
	order    []*service
	touched  []*service
	services []service
}

// prepare notes what a step with e may change.
func (u *undo) prepare(m *Machine, e Event) {
	u.armed = true
	u.machine = *m
	u.order = append(u.order[:0], m.order...)
	clear(u.touched)
	u.touched, u.services = u.touched[:0], u.services[:0]
	one := m.services[subject(e)]
	switch e.(type) {
	case Add, Remark:
		u.save(one)
	case Tick:
		now := time.Now().Add(time.Second) // a little more than the step itself will look at
		for _, s := range m.order {
			if !s.deadline.IsZero() && !now.Before(s.deadline) {
				u.save(s)
			}
		}
	default:
		if one != nil && !one.policy.Once { // the end of the CMD is the end of all
			u.save(one)
			return
		}
		for _, s := range m.order {
			u.save(s)
		}
	}
}

// subject is the service that an event changes: what it is about, for Add too.
func subject(e Event) string {
	if add, ok := e.(Add); ok {
		return add.Name
	}
	return e.about()
}

func (u *undo) save(s *service) {
	if s == nil {
		return
	}
	u.touched = append(u.touched, s)
	u.services = append(u.services, s.clone())
}

// clone copies a service and what it changes in place.
func (s *service) clone() service {
	c := *s
	c.needs, c.recent = slices.Clone(s.needs), slices.Clone(s.recent)
	return c
}

// done says that the step went well.
func (u *undo) done() { u.armed = false }

// apply takes the step back that did not come to its end, if any.
func (u *undo) apply(m *Machine) {
	if !u.armed {
		return
	}
	u.armed = false
	*m = u.machine
	m.order = slices.Clone(u.order)
	for i, s := range u.touched {
		*s = u.services[i]
	}
	m.services = make(map[string]*service, len(m.order))
	for _, s := range m.order {
		m.services[s.name] = s
	}
}
