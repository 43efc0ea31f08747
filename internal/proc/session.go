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
