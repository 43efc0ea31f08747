package profiles

import (
	"hinit/internal/blocking"
	"hinit/internal/procstat"
)

// StartTime returns the start time of the process pid, in clock ticks since the machine booted. A PID can be reused, but PID and
// start time together identify a process. StartTime also works for a zombie. The error wraps fs.ErrNotExist if no such process
// exists. StartTime reads only /proc and doesn't block.
func StartTime(pid int) (uint64, error) {
	st, err := processStat(pid)
	return st.Start, err
}

// alive reports whether the process pid is running, and returns its start time. A zombie is not running, unless only its first
// thread has ended.
func alive(pid int) (startTime uint64, ok bool) {
	if pid <= 0 {
		return 0, false
	}
	st, err := processStat(pid)
	return st.Start, err == nil && !st.Dead()
}

func processStat(pid int) (procstat.Stat, error) {
	return blocking.Get(blocking.Short, func() (procstat.Stat, error) { return procstat.Read(pid) })
}
