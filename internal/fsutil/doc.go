// Package fsutil provides file operations that are safe for root in a directory that a hostile user owns.
//
// PID 1 runs as root and works in a volume that belongs to the agent's user. That user can replace any name there by a symbolic
// link at any moment. Two independent measures prevent harm:
//
//   - [Dir] resolves every name beneath an open directory and never through a symbolic link. If the kernel has openat2(2), it does
//     that in one step. Otherwise each component is opened separately with O_NOFOLLOW, relative to the descriptor before it.
//     Neither has a gap between check and use.
//   - [Actor] makes the file operations of one thread with the identity of the user. So even a trick that defeats the first measure
//     reaches nothing that the user could not reach without root's help. New files belong to the user.
//
// Errors read `cannot <verb> "<path>": <reason>` and wrap the system's error, so that errors.Is works with fs.ErrNotExist,
// fs.ErrExist, fs.ErrPermission, fs.ErrInvalid, fs.ErrClosed, [ErrSymlink] and every syscall.Errno.
//
// All functions block as long as the disk does. The package starts no goroutine.
package fsutil
