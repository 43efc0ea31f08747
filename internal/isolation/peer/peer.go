// Package peer tells programs other than PID 1 whether the client of their Unix socket is an isolated profile.
//
// It never mistakes a living isolated process for another process. It owns no goroutine, and reads only /proc.
package peer

import (
	"net"
	"os"

	"hinit/internal/proc"
)

// IsIsolated reports whether process pid, the client of the connection conn, belongs to an isolated profile: it has more
// filters of system calls than this process. A client that has exited counts as isolated.
func IsIsolated(conn net.Conn, pid int) bool {
	own, err := proc.ReadConfinement(os.Getpid())
	theirs, err2 := proc.ReadConfinement(pid)
	return err != nil || err2 != nil || theirs.Filters > own.Filters || proc.PeerExited(conn)
}
