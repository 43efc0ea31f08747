package fsutil

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// Connect connects to the Unix socket rel. It returns a non-blocking stream socket, which the caller closes. If rel is a link or
// not a socket, Connect returns an error. If the server's queue is full, Connect doesn't wait, and the error wraps EAGAIN.
func (d *Dir) Connect(rel string) (fd int, err error) {
	fd = -1
	err = d.withComponents("connect to", rel, func(names []string) error {
		at, err := d.open(names, unix.O_PATH, 0)
		if err != nil {
			return err
		}
		defer closeFD(at)
		if st, err := Fstat(at); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
			return fmt.Errorf("not a socket: %w", unix.ENOTSOCK)
		}
		made, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		// The path in /proc leads to the socket that was checked, even if its name has been replaced.
		if err := unix.Connect(made, &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(at)}); err != nil {
			closeFD(made)
			return err
		}
		fd = made
		return nil
	})
	return fd, err
}
