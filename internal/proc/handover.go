package proc

import "golang.org/x/sys/unix"

// Handover is the state that a table passes on when PID 1 re-executes itself. The table of the new program reads everything
// else from the kernel.
type Handover struct {
	Nonce string
	Marks marker
	Runs  []run
	Known []member
}

// member is a process that belongs to a known run.
type member struct {
	Who identity
	Run uint64
}

// HandOver returns the state that the new program needs to continue with the same processes.
func (t *Table) HandOver() Handover {
	s := Handover{Nonce: t.nonce, Marks: t.marks}
	for _, r := range t.runs {
		s.Runs = append(s.Runs, *r)
	}
	for who, id := range t.members.known {
		s.Known = append(s.Known, member{who, id})
	}
	return s
}

// TakeOver makes a table from the state of the table before a re-execution. The children of the old table are still children of
// this process. The next Reap reports main processes that have ended but were not reaped. If the old program reaped a main
// process without reporting it, MainPID returns 0 for its run.
func TakeOver(s Handover) (*Table, error) {
	t, err := New()
	if err != nil {
		return nil, err
	}
	t.nonce, t.marks = s.Nonce, s.Marks
	for _, r := range s.Runs {
		if r.mainPID != 0 {
			if _, reaped := peekAt(unix.P_PID, r.mainPID); reaped {
				r.mainPID = 0
			}
		}
		t.runs[r.id] = &r
		if r.mainPID != 0 {
			t.owned[r.mainPID] = r.id
		}
		if r.mark != 0 {
			t.byMark[r.mark] = r.id
		}
	}
	t.members.known = make(map[identity]uint64, len(s.Known))
	for _, m := range s.Known {
		t.members.known[m.Who] = m.Run
	}
	return t, nil
}

// MainPID returns the PID of the main process of a run, or 0 after the process was reaped.
func (t *Table) MainPID(id uint64) int {
	if r := t.runs[id]; r != nil {
		return r.mainPID
	}
	return 0
}
