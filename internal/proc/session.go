package proc

import "golang.org/x/sys/unix"

// InSession reports whether pid is the process main, or in the session that main leads. Two unknown processes, 0, are never the same.
func InSession(pid, main int) bool {
	if pid <= 0 || main <= 0 {
		return false
	}
	if pid == main {
		return true
	}
	session, err := unix.Getsid(pid)
	return err == nil && session == main
}

// InRun reports whether a living process that was started at ticks (see [StartTicks]) has the number pid, in the run whose main process is
// main. The numbers of processes repeat from one start of a container to the next, so a number in a file proves nothing by itself.
func InRun(pid int, ticks uint64, main int) bool {
	started, alive := StartTicks(pid)
	return alive && started == ticks && InSession(pid, main)
}
