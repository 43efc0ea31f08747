package proc

import (
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"hinit/internal/handover"
)

// state is what a table tells its successor in another image of this process. What is not in it is looked up anew.
type state struct {
	Nonce string
	Marks marker
	Runs  []run
	Known []member
}

// member is a process that is known to belong to a run.
type member struct {
	Who identity
	Run uint64
}

// Export returns what a successor needs to go on with the same processes.
func (t *Table) Export(c *handover.Codec) (json.RawMessage, error) {
	s := state{Nonce: t.nonce, Marks: t.marks}
	for _, r := range t.runs {
		s.Runs = append(s.Runs, *r)
	}
	for who, id := range t.fam.known {
		s.Known = append(s.Known, member{who, id})
	}
	return c.Encode(&s)
}

// Resume is New for a process that was another image of hinit before and had a table then: its children are this one's. A
// main process that ended before it could be buried here is reported by the next Reap; one that was buried without anybody
// having been told of it is no longer the main process of its run ([Table.Main]).
func Resume(c *handover.Codec, data json.RawMessage) (*Table, error) {
	t, err := New()
	if err != nil {
		return nil, err
	}
	var s state
	if err := c.Decode(data, &s); err != nil {
		return nil, fmt.Errorf("cannot take over the processes: %w", err)
	}
	t.nonce, t.marks = s.Nonce, s.Marks
	for _, r := range s.Runs {
		if r.main != 0 && !isChild(r.main) {
			r.main = 0
		}
		t.runs[r.id] = &r
		if r.main != 0 {
			t.owned[r.main] = r.id
		}
		if r.mark != 0 {
			t.byMark[r.mark] = r.id
		}
	}
	t.fam.known = make(map[identity]uint64, len(s.Known))
	for _, m := range s.Known {
		t.fam.known[m.Who] = m.Run
	}
	return t, nil
}

// Main returns the main process of a run that is not buried, or 0.
func (t *Table) Main(id uint64) int {
	if r := t.runs[id]; r != nil {
		return r.main
	}
	return 0
}

// isChild reports whether a process is a child of this one that is not buried.
func isChild(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}
