// Package identity permanently makes this process the agent's user: it changes the ids of the calling thread, and leaves root's
// terminal and files. It has few imports, because the shim runs before every command. It starts no goroutine.
package identity

import (
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
