package identity

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"
)

// tiocstiSetting contains 0 if the kernel refuses TIOCSTI. It exists since Linux 6.2.
const tiocstiSetting = "/proc/sys/dev/tty/legacy_tiocsti"

// LeaveTerminal gives up the controlling terminal if the kernel allows TIOCSTI (ioctl_tty(2)). With TIOCSTI a process can
// insert characters into the input of its controlling terminal. A root shell on this terminal would run them as commands.
// The process keeps its descriptors of the terminal, so the window size and Ctrl-C still work; only /dev/tty is gone. The
// leader of a session keeps its terminal, because no shell reads the terminal after it. Call LeaveTerminal as root, before
// [Become].
func LeaveTerminal() error {
	if sid, err := unix.Getsid(0); err == nil && sid == unix.Getpid() {
		return nil
	}
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENXIO) { // the process has no controlling terminal
		return nil
	}
	if !allowsTyping() {
		if err == nil {
			unix.Close(fd)
		}
		return nil
	}
	if err == nil {
		defer unix.Close(fd)
		return leave(fd)
	}
	for fd := range 3 { // the container has no /dev/tty
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

// allowsTyping reports whether the kernel allows TIOCSTI.
func allowsTyping() bool {
	fd, err := unix.Open(tiocstiSetting, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	buf := make([]byte, 16)
	n, err := unix.Read(fd, buf)
	return err != nil || !bytes.Equal(bytes.TrimSpace(buf[:n]), []byte("0"))
}
