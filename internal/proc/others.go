package proc

import (
	"os"
	"strconv"
	"strings"

	"hinit/internal/procstat"
)

// StartTicks returns the start time of a process, in clock ticks since the boot of the machine (proc_pid_stat(5)). PID and
// start time together identify a process. The result is false if the process does not exist, or is a zombie.
func StartTicks(pid int) (uint64, bool) {
	if pid <= 0 {
		return 0, false
	}
	st, err := procstat.Read(pid)
	return st.Start, err == nil && !st.Dead()
}

// Origin returns the name (comm) of a process, or "" for a process that is gone. inside reports whether the process may be a
// descendant of this one. Normally every process of a container is, because the kernel makes orphans children of PID 1. The
// exceptions are processes that were started from outside, for example by docker exec.
func Origin(pid int) (name string, inside bool) {
	if pid <= 0 {
		return "", false // the process belongs to another namespace
	}
	comm, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm") // "" for a process that is gone
	name = strings.TrimSuffix(string(comm), "\n")
	for range 64 { // after 64 ancestors the answer is unknown
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
