// Package identity makes this process the agent's user, without a way back: it changes the ids of the calling thread, and leaves root's terminal.
// It links little, because the shim runs before every command. It starts no goroutine.
package identity

import (
	"errors"

	"golang.org/x/sys/unix"

	"hinit/internal/account"
)

// Become gives the calling thread the identity of u, with no way back to the one it had. The caller has locked the thread,
// and then execs: execve(2) ends all other threads, and the new program takes the identity of the thread that called it.
// The capabilities go with the uid: when no uid of the three is 0 any more the kernel clears the permitted, effective and
// ambient sets, see capabilities(7). The error is a [*RefusedError] where the kernel doesn't allow a step; then the thread is
// not to be used any more.
func Become(u account.User) error {
	gids := make([]int, len(u.Groups))
	for i, g := range u.Groups {
		gids[i] = int(g)
	}
	// x/sys makes setgroups for this thread alone. Its Setresgid and Setresuid are the ones for all threads: hence RawSyscall.
	// Groups first, uid last: after it nothing is allowed any more.
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

// setThreadIDs calls setresuid(2) or setresgid(2) for the calling thread with three times the same id.
func setThreadIDs(trap uintptr, id uint32) error {
	if _, _, errno := unix.RawSyscall(trap, uintptr(id), uintptr(id), uintptr(id)); errno != 0 {
		return errno
	}
	return nil
}

func all(want uint32, got ...int) bool {
	for _, id := range got {
		if uint32(id) != want {
			return false
		}
	}
	return true
}

// RefusedError is a step of [Become] that the kernel didn't allow.
type RefusedError struct {
	Call string // setgroups, setgid or setuid
	Err  error
}

// Error implements error.
func (r *RefusedError) Error() string { return "the kernel refuses " + r.Call + ": " + r.Err.Error() }

// Unwrap returns the kernel's reason.
func (r *RefusedError) Unwrap() error { return r.Err }
