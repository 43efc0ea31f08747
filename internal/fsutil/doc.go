// Package fsutil provides file operations that are safe for root in a directory that a hostile user owns.
//
// PID 1 runs as root and works in a volume that belongs to the agent's user. That user can replace any name there by a symbolic
// link at any moment. Two independent measures prevent harm:
//
//   - [Dir] resolves every name relative to an open directory, and never through a symbolic link. If the kernel has openat2(2),
//     it does that in one step. Otherwise each component is opened separately with O_NOFOLLOW, relative to the descriptor of the
//     component before it. Neither method has a gap between check and use.
//   - [Actor] performs file operations with the identity of the user, by switching the identity of one thread. So even a trick
//     that defeats the first measure only reaches files that the user could reach without root. New files belong to the user.
//
// Errors have the form `cannot <verb> "<path>": <reason>` and wrap the system's error, so that errors.Is works with
// fs.ErrNotExist, fs.ErrExist, fs.ErrPermission, fs.ErrInvalid, fs.ErrClosed, [ErrSymlink] and every syscall.Errno.
//
// All functions block as long as the disk does. The package starts no goroutine.
package fsutil
