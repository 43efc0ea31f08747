package proc

import "golang.org/x/sys/unix"

// InSession reports whether pid is the process main, or belongs to the session that main leads. A PID of 0 means unknown; the
// result is then false.
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

// InRun reports whether pid is a living process that was started at ticks (see [StartTicks]), in the session of the main
// process main. PIDs repeat after a restart of the container, so a PID read from a file proves nothing by itself.
func InRun(pid int, ticks uint64, main int) bool {
	started, alive := StartTicks(pid)
	return alive && started == ticks && InSession(pid, main)
}
