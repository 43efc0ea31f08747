// Command hinit-profile NAME DIRECTORY copies the SQLite database NAME from the working directory to DIRECTORY. It uses SQLite's
// backup API, so the copy is consistent. `hinit profile export` runs it as the owner of the database, not as root, because SQLite
// parses a file that an agent has written. The process restricts itself to the two directories. It owns no goroutine.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite" // SQLite translated to Go, without cgo

	"hinit/internal/isolation"
	"hinit/internal/proc"
	"hinit/internal/proc/limits"
)

func main() {
	if filepath.Base(os.Args[0]) == proc.LimitsName {
		_, err := limits.Main(os.Args)
		fail(err)
	}
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: hinit-profile NAME DIRECTORY\n\nIt is a part of hinit profile export, which copies databases with it.")
		os.Exit(2)
	}
	err := confine(".", os.Args[2])
	if err == nil {
		err = backup(os.Args[1], filepath.Join(os.Args[2], os.Args[1]))
	}
	if err != nil {
		fail(fmt.Errorf("cannot copy database %s: %w", os.Args[1], err))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// backup copies a database while other processes may use it. If the database is locked, backup waits up to ten seconds.
func backup(from, to string) error {
	address := func(path, query string) string {
		path, _ = filepath.Abs(path)
		return (&url.URL{Scheme: "file", Path: path, RawQuery: query + "&_pragma=cache_size(-512)"}).String()
	}
	db, err := sql.Open("sqlite", address(from, "mode=ro&_pragma=busy_timeout(10000)"))
	if err != nil {
		return err
	}
	defer db.Close()
	conn, err := db.Conn(context.Background())
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Raw(func(conn any) error {
		c, is := conn.(interface {
			NewBackup(address string) (*sqlite.Backup, error)
		})
		if !is {
			return errors.ErrUnsupported
		}
		b, err := c.NewBackup(address(to, "_pragma=synchronous(OFF)&_pragma=journal_mode(OFF)"))
		if err != nil {
			return err
		}
		_, err = b.Step(-1)
		return errors.Join(err, b.Finish())
	})
}

// confine restricts this process by Landlock to reading and writing in dirs. SQLite opens a database and the files next to it by
// name, and follows symbolic links: an agent could put a link there that leads into another profile. On a kernel without
// Landlock, confine does nothing; there, profiles are not isolated either.
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
