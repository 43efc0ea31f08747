// Package isolated tells services that are not PID 1 whether a client is an isolated profile.
//
// It promises that an isolated process is never taken for another one while it lives. It owns no goroutine, and reads only /proc.
package isolated

import (
	"net"
	"os"

	"hinit/internal/proc"
)

// Peer reports whether a process that connected to a Unix socket has more filters of system calls than this one, as isolated profiles
// have. A process that is gone counts as isolated.
func Peer(conn net.Conn, pid int) bool {
	own, err := proc.Confined(os.Getpid())
	theirs, err2 := proc.Confined(pid)
	return err != nil || err2 != nil || theirs.Filters > own.Filters || proc.PeerGone(conn)
}
