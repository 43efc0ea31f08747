package probe

import "hinit/internal/procstat"

// usage is the processor time of a process.
type usage struct {
	state byte   // 0: there is no such process
	ticks uint64 // clock ticks that it and the children that it waited for have used
}

// processorTime returns what a process has used.
func processorTime(pid int) (u usage) {
	_ = inShortTurn(func() error {
		st, err := procstat.Read(pid)
		u = usage{st.State, st.CPU + st.Waited}
		return err
	})
	return u
}

// treesOf returns for every process what it and all below it have used.
func treesOf() map[int]uint64 {
	all := make(map[int]procstat.Stat)
	_ = inShortTurn(func() error {
		return procstat.Each("/proc", func(st procstat.Stat) { all[st.PID] = st })
	})
	sums := make(map[int]uint64, len(all))
	for pid, u := range all {
		for at, depth := pid, 0; at > 0 && depth <= len(all); depth++ { // processes may have moved while this was read
			sums[at] += u.CPU + u.Waited
			at = all[at].Parent
		}
	}
	return sums
}
