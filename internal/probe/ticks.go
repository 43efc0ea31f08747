package probe

import (
	"hinit/internal/blocking"
	"hinit/internal/procstat"
)

// usage holds the state and the processor time of a process.
type usage struct {
	state byte   // state letter as in /proc/PID/stat; 0 if the process does not exist
	ticks uint64 // clock ticks used by the process and its reaped children
}

// processorTime returns the usage of the process pid.
func processorTime(pid int) usage {
	st, _ := blocking.Get(blocking.Short, func() (procstat.Stat, error) { return procstat.Read(pid) })
	return usage{st.State, st.CPU + st.Waited}
}

// treeTicks returns, for each process, the number of ticks that the process and all its descendants have used.
func treeTicks() map[int]uint64 {
	all := make(map[int]procstat.Stat)
	_ = runShortCall(func() error {
		return procstat.Each("/proc", func(st procstat.Stat) { all[st.PID] = st })
	})
	sums := make(map[int]uint64, len(all))
	for pid, u := range all {
		for at, depth := pid, 0; at > 0 && depth <= len(all); depth++ { // the limit ends a cycle of parents, which may appear because parents change while /proc is read
			sums[at] += u.CPU + u.Waited
			at = all[at].Parent
		}
	}
	return sums
}
