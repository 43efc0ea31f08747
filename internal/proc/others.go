package proc

import (
	"os"
	"strconv"
	"strings"

	"hinit/internal/procstat"
)

// StartTicks returns when a process was started, in clock ticks since the machine booted (proc_pid_stat(5)). With the number of the
// process it names the process: no other gets both. It reports false when there is no such process, or only what is left of one that
// has ended.
func StartTicks(pid int) (uint64, bool) {
	if pid <= 0 {
		return 0, false
	}
	st, err := procstat.Read(pid)
	return st.Start, err == nil && !st.Dead()
}

// Origin returns the name that a process goes by (comm), "" when it is gone, and whether it may descend from this one. Every process of
// the container but this one does, unless it was started from outside, as by docker exec: the kernel makes orphans children of this one.
func Origin(pid int) (name string, inside bool) {
	if pid <= 0 {
		return "", false // this process's namespace does not see it
	}
	comm, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm") // it is gone
	name = strings.TrimSuffix(string(comm), "\n")
	for range 64 { // of a longer chain, nothing is known
		st, err := procstat.Read(pid)
		if err != nil || st.Parent == os.Getpid() {
			return name, true
		}
		if pid = st.Parent; pid <= 1 {
			return name, false
		}
	}
	return name, true
}
