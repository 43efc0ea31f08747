package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"syscall"

	"hinit/internal/procstat"

	"golang.org/x/sys/unix"
)

// Confinement describes the restrictions that the kernel enforces on a process (proc_pid_status(5)). A child is always at least
// as confined as its parent.
type Confinement struct {
	UID        uint32
	NoNewPrivs bool
	Filters    int // number of seccomp filters
}

// Confined returns the confinement of a process. It reads only /proc. PID 1 calls Confined under the limits of package
// internal/blocking.
func Confined(pid int) (c Confinement, err error) {
	status := procstat.StatusOf(strconv.Itoa(pid))
	uid, known := status.Number("Uid", 10)
	if !known {
		return c, fmt.Errorf("cannot look at process %d: %w", pid, fs.ErrNotExist)
	}
	nnp, _ := status.Number("NoNewPrivs", 10)
	filters, _ := status.Number("Seccomp_filters", 10) // older kernels have no such line
	return Confinement{uint32(uid), nnp == 1, int(filters)}, nil
}

// PeerGone reports whether the process that connected to a Unix socket has ended (unix(7), SO_PEERPIDFD). Its PID may then
// belong to another process. Call PeerGone after you have looked up something by the peer's PID: the result false proves that
// the PID still belonged to the peer. PeerGone does not block. On kernels before 6.5 the result is always false.
func PeerGone(conn net.Conn) bool {
	gone := true
	err := onSocket(conn, func(fd int) error {
		pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err != nil {
			gone = err != unix.ENOPROTOOPT
			return nil
		}
		defer unix.Close(pidfd)
		exited := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(exited, 0)
		gone = err != nil || n > 0
		return nil
	})
	return err != nil || gone
}

// Peer returns the credentials of the process on the other side of a Unix socket, as the kernel reports them (unix(7),
// SO_PEERCRED).
func Peer(conn net.Conn) (cred *unix.Ucred, err error) {
	err = onSocket(conn, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	return cred, err
}

// onSocket calls do with the descriptor of a socket. The descriptor stays open until do returns.
func onSocket(conn net.Conn, do func(fd int) error) (err error) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return errors.New("not a socket")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) { err = do(int(fd)) })
	return errors.Join(failed, err)
}
