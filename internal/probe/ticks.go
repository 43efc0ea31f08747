package probe

import (
	"hinit/internal/blocking"
	"hinit/internal/procstat"
)

// usage is the processor time of a process.
type usage struct {
	state byte   // 0 if there is no such process
	ticks uint64 // clock ticks used by the process and its reaped children
}

// processorTime returns the usage of a process.
func processorTime(pid int) usage {
	st, _ := blocking.Get(blocking.Short, func() (procstat.Stat, error) { return procstat.Read(pid) })
	return usage{st.State, st.CPU + st.Waited}
}

// treesOf returns for every process the ticks used by it and all its descendants.
func treesOf() map[int]uint64 {
	all := make(map[int]procstat.Stat)
	_ = inShortTurn(func() error {
		return procstat.Each("/proc", func(st procstat.Stat) { all[st.PID] = st })
	})
	sums := make(map[int]uint64, len(all))
	for pid, u := range all {
		for at, depth := pid, 0; at > 0 && depth <= len(all); depth++ { // the limit ends a loop: parents may have changed while /proc was read
			sums[at] += u.CPU + u.Waited
			at = all[at].Parent
		}
	}
	return sums
}
