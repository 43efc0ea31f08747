package proc

import (
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Confinement is what the kernel says of how a process is confined (proc_pid_status(5)). Each child has at least as much of it.
type Confinement struct {
	UID        uint32
	NoNewPrivs bool
	Filters    int // filters of system calls
}

// Confined returns the confinement of a process. It touches only /proc, but in PID 1 it takes a turn (internal/blocking).
func Confined(pid int) (c Confinement, err error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		n, _ := strconv.ParseUint(fields[0], 10, 32) // of other lines it is no number
		switch name {
		case "Uid":
			c.UID = uint32(n)
		case "NoNewPrivs":
			c.NoNewPrivs = n == 1
		case "Seccomp_filters":
			c.Filters = int(n)
		}
	}
	return c, err
}

// PeerGone reports whether the process that connected to a Unix socket has ended (unix(7), SO_PEERPIDFD). Its process number may then
// belong to another process. Ask after a judgement by the number: false means that the number was the peer's all the time. It does not
// block. Kernels before 6.5 can't say: false.
func PeerGone(conn net.Conn) bool {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := true
	failed := raw.Control(func(fd uintptr) {
		pidfd, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err != nil {
			gone = err != unix.ENOPROTOOPT
			return
		}
		defer unix.Close(pidfd)
		exited := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(exited, 0)
		gone = err != nil || n > 0
	})
	return failed != nil || gone
}
