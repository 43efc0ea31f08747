package identity

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"
)

// legacyFile says whether a process may put characters into the input of its controlling terminal. The kernel has it from 6.2 on.
const legacyFile = "/proc/sys/dev/tty/legacy_tiocsti"

// LeaveTerminal gives up the controlling terminal if a shell of root's may read it too, and the kernel allows TIOCSTI
// (ioctl_tty(2)). With TIOCSTI a process types into its controlling terminal, and that shell would carry it out as root. The
// process keeps its descriptors of the terminal, its size and Ctrl-C; only /dev/tty is gone. No shell is behind the leader of a
// session, so it keeps its terminal. To be called as root, before [Become].
func LeaveTerminal() error {
	if sid, err := unix.Getsid(0); err == nil && sid == unix.Getpid() {
		return nil
	}
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENXIO) { // no terminal controls it
		return nil
	}
	if !types() {
		if err == nil {
			unix.Close(fd)
		}
		return nil
	}
	if err == nil {
		defer unix.Close(fd)
		return leave(fd)
	}
	for fd := range 3 { // there is no /dev/tty here
		if err := leave(fd); err != nil && !errors.Is(err, unix.ENOTTY) && !errors.Is(err, unix.EBADF) {
			return err
		}
	}
	return nil
}

func leave(fd int) error {
	if err := unix.IoctlSetInt(fd, unix.TIOCNOTTY, 0); err != nil {
		return &RefusedError{"to leave the terminal of root's shell", err}
	}
	return nil
}

// types reports whether the kernel lets processes type.
func types() bool {
	fd, err := unix.Open(legacyFile, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	buf := make([]byte, 16)
	n, err := unix.Read(fd, buf)
	return err != nil || !bytes.Equal(bytes.TrimSpace(buf[:n]), []byte("0"))
}
