package proc

import "os"

// mostAncestors limits how many ancestors of a process Of checks.
const mostAncestors = 256

// RunOf returns the run that a living process belongs to, 0 for none. It checks this process and its ancestors only. That costs
// nothing for a main process, and little for others.
func (t *Table) RunOf(pid int) uint64 {
	self := os.Getpid()
	for range mostAncestors {
		if id := t.owned[pid]; id != 0 {
			return id
		}
		p, ok := t.procfs.stat(pid)
		if !ok || pid == self || pid <= 0 {
			return 0
		}
		who := identity{p.PID, p.Start}
		if id := t.members.known[who]; t.runs[id] != nil {
			return id
		}
		if p.Parent == self || p.Parent == 0 { // an orphan, or a process from outside the container
			id := t.origin(pid)
			if t.runs[id] == nil {
				return 0
			}
			if t.members.known != nil { // an earlier scan has found its run
				t.members.known[who] = id
			}
			return id
		}
		pid = p.Parent
	}
	return 0
}
