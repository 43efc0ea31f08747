// Package identity permanently makes this process the agent's user: it changes the ids of the calling thread, and leaves root's
// terminal and files. It has few imports, because the shim runs before every command. It starts no goroutine.
package identity

import (
	"bytes"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"hinit/internal/account"
)

// Become permanently gives the calling thread the identity of u. The caller must lock the goroutine to its thread before this
// call, and call execve(2) after it. execve(2) ends all other threads, and the new program gets the identity of the calling
// thread. The thread also loses its capabilities: the kernel clears the permitted, effective and ambient sets once no uid is 0,
// see capabilities(7). The error is a [*RefusedError] if the kernel refuses a step. After any error the caller must not use the
// thread any more.
func Become(u account.User) error {
	gids := make([]int, len(u.Groups))
	for i, g := range u.Groups {
		gids[i] = int(g)
	}
	// setgroups of x/sys changes only this thread, but its Setresgid and Setresuid change all threads: hence RawSyscall. The
	// groups come first and the uid last, because a thread with the new uid may not change its ids any more.
	if err := unix.Setgroups(gids); err != nil {
		return &RefusedError{"setgroups", err}
	}
	if err := setThreadIDs(sysSetresgid, u.GID); err != nil {
		return &RefusedError{"setgid", err}
	}
	if err := setThreadIDs(sysSetresuid, u.UID); err != nil {
		return &RefusedError{"setuid", err}
	}
	// A saved id of root would let the program go back.
	if r, e, s := unix.Getresuid(); !all(u.UID, r, e, s) {
		return errors.New("the kernel kept a uid of root")
	}
	if r, e, s := unix.Getresgid(); !all(u.GID, r, e, s) {
		return errors.New("the kernel kept a gid of root")
	}
	return nil
}

// setThreadIDs sets the real, effective and saved id of the calling thread to id. The parameter trap is the number of
// setresuid(2) or setresgid(2).
func setThreadIDs(trap uintptr, id uint32) error {
	if _, _, errno := unix.RawSyscall(trap, uintptr(id), uintptr(id), uintptr(id)); errno != 0 {
		return errno
	}
	return nil
}

func all(want uint32, got ...int) bool {
	return !slices.ContainsFunc(got, func(id int) bool { return uint32(id) != want })
}

// RefusedError means that the kernel didn't allow a step of [Become] or [LeaveTerminal].
type RefusedError struct {
	Call string // setgroups, setgid or setuid; or a phrase that describes the step of LeaveTerminal
	Err  error
}

// Error implements error.
func (r *RefusedError) Error() string { return "the kernel refuses " + r.Call + ": " + r.Err.Error() }

// Unwrap returns the kernel's reason.
func (r *RefusedError) Unwrap() error { return r.Err }

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
	if err == nil {
		defer unix.Close(fd)
	}
	switch {
	case !allowsTyping():
		return nil
	case err == nil:
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
