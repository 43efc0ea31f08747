// Package fsutil does file operations that a hostile owner of the directory can't turn against root.
//
// PID 1 runs as root and works in a volume that belongs to the agent's user. That user can swap any name there for a symbolic
// link at any moment. Two independent locks prevent harm:
//
//   - [Dir] resolves every name beneath an open directory and never through a symbolic link. The kernel does it in one
//     step where it has openat2(2); elsewhere each component is opened on its own with O_NOFOLLOW, relative to the
//     descriptor before it. Neither has a gap between check and use.
//   - [Actor] makes the file operations of one thread as the user itself, so that even a trick which beats the first
//     lock reaches nothing that the user could not reach without root's help, and new files belong to the user.
//
// Errors read `cannot <verb> "<path>": <reason>` and wrap the system's error, so that errors.Is works with fs.ErrNotExist,
// fs.ErrExist, fs.ErrPermission, fs.ErrInvalid, fs.ErrClosed, [ErrSymlink] and every syscall.Errno.
//
// Everything here blocks for as long as the disk does. The package starts no goroutine.
package fsutil
