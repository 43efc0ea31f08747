package main

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"hinit/internal/isolation"
)

// confine uses Landlock to restrict this process to reading and writing in dirs. SQLite opens a database and the files next to it
// by name, and follows symbolic links. Without the restriction, an agent could put a link there that leads into another profile.
// On a kernel without Landlock, confine does nothing; there Landlock does not isolate the profiles either.
func confine(dirs ...string) error {
	const all = unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1 // all kinds of access in Landlock version 1
	abi := isolation.LandlockABI()
	if abi == 0 {
		return nil
	}
	handled := uint64(all &^ unix.LANDLOCK_ACCESS_FS_EXECUTE)
	if abi >= 3 {
		handled |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	set, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&handled)), unsafe.Sizeof(handled), 0)
	if errno != 0 {
		return fmt.Errorf("cannot confine it: %w", errno)
	}
	defer unix.Close(int(set))
	for _, dir := range dirs {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		rule := unix.LandlockPathBeneathAttr{Allowed_access: handled, Parent_fd: int32(fd)}
		_, _, errno = unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, set, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
		_ = unix.Close(fd)
		if errno != 0 {
			return fmt.Errorf("cannot confine it: %w", errno)
		}
	}
	_, _, errno = syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	if errno == 0 {
		_, _, errno = syscall.AllThreadsSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, set, 0, 0)
	}
	if errno != 0 {
		return fmt.Errorf("cannot confine it: %w", errno)
	}
	return nil
}
