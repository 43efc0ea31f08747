// Package peer tells programs other than PID 1 whether the client of their Unix socket is an isolated profile.
//
// It never mistakes a living isolated process for one that isn't isolated. The package owns no goroutine, and reads only /proc.
package peer

import (
	"net"
	"os"

	"hinit/internal/proc"
)

// IsIsolated reports whether process pid, the client of the Unix socket conn, belongs to an isolated profile. Such a client has
// more system call filters than this process. If the client has exited, the result is true.
func IsIsolated(conn net.Conn, pid int) bool {
	own, err := proc.Confined(os.Getpid())
	theirs, err2 := proc.Confined(pid)
	return err != nil || err2 != nil || theirs.Filters > own.Filters || proc.PeerGone(conn)
}
