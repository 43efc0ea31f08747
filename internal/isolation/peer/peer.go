// Package peer tells services other than PID 1 whether a client is an isolated profile.
//
// It never mistakes a living isolated process for one that isn't isolated. It owns no goroutine, and reads only /proc.
package peer

import (
	"net"
	"os"

	"hinit/internal/proc"
)

// IsIsolated reports whether the client of a Unix socket is an isolated profile. Such a client has more filters of system calls
// than this process. A process that has ended counts as isolated.
func IsIsolated(conn net.Conn, pid int) bool {
	own, err := proc.Confined(os.Getpid())
	theirs, err2 := proc.Confined(pid)
	return err != nil || err2 != nil || theirs.Filters > own.Filters || proc.PeerGone(conn)
}
