package proc

import "os"

// mostAncestors limits the number of ancestors that RunOf checks.
const mostAncestors = 256

// RunOf returns the run of a living process, 0 for none. It checks only this process and its ancestors, so it costs little, and
// nothing for a main process.
func (t *Table) RunOf(pid int) uint64 {
	self := os.Getpid()
	for range mostAncestors {
		if id := t.owned[pid]; id != 0 {
			return id
		}
		p, ok := t.procfs.readStat(pid)
		if !ok || pid == self || pid <= 0 {
			return 0
		}
		who := identity{p.PID, p.Start}
		if id := t.members.known[who]; t.runs[id] != nil {
			return id
		}
		if p.Parent == self || p.Parent == 0 { // an orphan, or a process from outside the container
			id := t.runOfOrphan(pid)
			if t.runs[id] == nil {
				return 0
			}
			if t.members.known != nil { // nil before the first scan
				t.members.known[who] = id
			}
			return id
		}
		pid = p.Parent
	}
	return 0
}
