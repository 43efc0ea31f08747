// Package identity turns this process into the agent's user for good: it changes the ids of the calling thread, and leaves root's
// terminal. It has few imports, because the shim runs before every command of the agent. It starts no goroutine.
package identity

import (
	"bytes"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"hinit/internal/account"
)

// Become gives the calling thread the identity of u for good. The caller first locks the goroutine to its thread. After the
// call, it calls execve(2), which ends all other threads, so that the new program has only this identity. The thread also loses
// its capabilities, because the kernel clears them when no uid is 0 any more (capabilities(7)). If the kernel refuses a step,
// the error is a [*RefusedError]. After any error the thread must not be used again.
func Become(u account.User) error {
	gids := make([]int, len(u.Groups))
	for i, g := range u.Groups {
		gids[i] = int(g)
	}
	// unix.Setgroups changes only this thread. But unix.Setresgid and unix.Setresuid change all threads, so use RawSyscall for
	// the ids. The groups come first and the uid last, because with the new uid a thread can't change its ids any more.
	if err := unix.Setgroups(gids); err != nil {
		return &RefusedError{"setgroups", err}
	}
	if err := setThreadIDs(sysSetresgid, u.GID); err != nil {
		return &RefusedError{"setgid", err}
	}
	if err := setThreadIDs(sysSetresuid, u.UID); err != nil {
		return &RefusedError{"setuid", err}
	}
	// with a saved uid of 0, the program could become root again
	if r, e, s := unix.Getresuid(); !allEqual(u.UID, r, e, s) {
		return errors.New("the kernel kept a uid of root")
	}
	if r, e, s := unix.Getresgid(); !allEqual(u.GID, r, e, s) {
		return errors.New("the kernel kept a gid of root")
	}
	return nil
}

// setThreadIDs sets the real, effective and saved id of the calling thread. trap is the number of setresuid(2) or setresgid(2).
func setThreadIDs(trap uintptr, id uint32) error {
	if _, _, errno := unix.RawSyscall(trap, uintptr(id), uintptr(id), uintptr(id)); errno != 0 {
		return errno
	}
	return nil
}

func allEqual(want uint32, got ...int) bool {
	return !slices.ContainsFunc(got, func(id int) bool { return uint32(id) != want })
}

// RefusedError means that the kernel has refused a step of [Become] or [LeaveTerminal].
type RefusedError struct {
	Step string // refused step: setgroups, setgid, setuid, or what LeaveTerminal tried
	Err  error
}

// Error implements error.
func (r *RefusedError) Error() string { return "the kernel refuses " + r.Step + ": " + r.Err.Error() }

// Unwrap returns the kernel's error.
func (r *RefusedError) Unwrap() error { return r.Err }

// tiocstiSetting is the sysctl, since Linux 6.2, that is 0 if the kernel refuses TIOCSTI.
const tiocstiSetting = "/proc/sys/dev/tty/legacy_tiocsti"

// LeaveTerminal gives up the controlling terminal if the kernel allows TIOCSTI (ioctl_tty(2)). With TIOCSTI, a process can type
// on its controlling terminal, and a root shell would run the text as commands. The process keeps its descriptors of the
// terminal, so the window size and Ctrl-C work; only /dev/tty is gone. The leader of a session keeps its terminal, because no
// shell reads the terminal afterwards. Call LeaveTerminal as root, before [Become].
func LeaveTerminal() error {
	if sid, err := unix.Getsid(0); err == nil && sid == unix.Getpid() {
		return nil
	}
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENXIO) { // the process has no controlling terminal
		return nil
	}
	if err == nil {
		defer unix.Close(fd)
	}
	switch {
	case !allowsTIOCSTI():
		return nil
	case err == nil:
		return leaveTerminalOf(fd)
	}
	for fd := range 3 { // without /dev/tty in the container, try the standard streams
		if err := leaveTerminalOf(fd); err != nil && !errors.Is(err, unix.ENOTTY) && !errors.Is(err, unix.EBADF) {
			return err
		}
	}
	return nil
}

func leaveTerminalOf(fd int) error {
	if err := unix.IoctlSetInt(fd, unix.TIOCNOTTY, 0); err != nil {
		return &RefusedError{"to leave the terminal of root's shell", err}
	}
	return nil
}

// allowsTIOCSTI reports whether the kernel allows TIOCSTI.
func allowsTIOCSTI() bool {
	fd, err := unix.Open(tiocstiSetting, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	buf := make([]byte, 16)
	n, err := unix.Read(fd, buf)
	return err != nil || !bytes.Equal(bytes.TrimSpace(buf[:n]), []byte("0"))
}
