// Package fsutil provides file operations that are safe for root in a directory that a hostile user owns.
//
// PID 1 runs as root and works in a volume that belongs to the agent's user. The agent's user can replace any name in the
// volume by a symbolic link at any moment. Two independent measures prevent harm:
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

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/faultinject"
	"hinit/internal/trust"
)

// ErrSymlink means that a path contains a symbolic link. Links are refused even if they lead to a place inside the directory.
var ErrSymlink = trust.ErrSymlink

// Dir is an open directory. Names are resolved relative to it, and never through a symbolic link. It stays the same directory when
// its path is renamed or replaced. Names may lead into file systems that are mounted inside it.
//
// A name, the parameter rel of the methods, is a path with slashes. Empty and "." components are skipped. A leading slash, a ".."
// component or a NUL byte is the error fs.ErrInvalid. Every operation has the identity of the actor given to [OpenDir].
//
// All methods may be called from several goroutines. Close waits for running operations; later ones fail with fs.ErrClosed.
type Dir struct {
	path      string
	actor     *Actor
	owner     *Actor       // acts as the owner of a home of [Actor.WithHomesOf], if the directory is in a home; otherwise nil
	noOpenat2 *atomic.Bool // without openat2, paths are walked by component; shared with the results of Sub

	mu sync.RWMutex // an operation holds it for reading while it uses fd
	fd int          // descriptor of the directory (O_PATH); -1 when closed
}

// OpenDir opens the directory at path for operations with the identity of a; nil means [ProcessActor]. It trusts path, and
// follows links in it. The caller closes the Dir.
func OpenDir(path string, a *Actor) (*Dir, error) {
	a = cmp.Or(a, ProcessActor())
	d := newDir(path, a)
	err := a.Do(func() (err error) {
		d.fd, err = openat(unix.AT_FDCWD, path, unix.O_PATH|unix.O_DIRECTORY, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot open directory %q: %w", path, err)
	}
	return d, nil
}

func newDir(path string, a *Actor) *Dir {
	return &Dir{path: path, actor: a, noOpenat2: new(atomic.Bool), fd: -1}
}

// Close closes the directory. A second Close returns fs.ErrClosed.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fd < 0 {
		return fmt.Errorf("cannot close directory %q: %w", d.path, fs.ErrClosed)
	}
	closeFD(d.fd)
	d.fd = -1
	return nil
}

// Path returns the path by which the directory was opened, with the names given to Sub. It is for messages and the configuration
// of other programs. Opening this path again would lose the protection of the Dir.
func (d *Dir) Path() string { return d.path }

// OpenSubdir opens the directory rel as another Dir with the same actor. The caller closes both.
func (d *Dir) OpenSubdir(rel string) (*Dir, error) {
	return d.openSubdir(rel, func(names []string) (int, error) { return d.open(names, unix.O_PATH|unix.O_DIRECTORY, 0) })
}

// openSubdir opens the directory rel with the function open. Inside a home of [Actor.WithHomesOf], the new Dir acts as the owner
// of the home.
func (d *Dir) openSubdir(rel string, open func(names []string) (int, error)) (*Dir, error) {
	sub := &Dir{path: filepath.Join(d.path, rel), actor: d.actor, owner: d.owner, noOpenat2: d.noOpenat2, fd: -1}
	err := d.withComponents("open directory", rel, func(names []string) (err error) {
		if sub.fd, err = open(names); err != nil || sub.owner != nil || d.actor.ownedHomes == nil {
			return err
		}
		switch up, is := d.actor.ownedHomes.findHome(d.path, names); {
		case is && up == len(names):
			sub.owner = d.actor.ownedHomes.ownerOfFD(sub.fd)
		case is:
			sub.owner = d.ownerOf(names[:up])
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return sub, nil
}

// WithIdentity calls fn with a Dir for the same directory, and switches the identity once for all operations in fn. The rules
// of [Actor.Do] apply. Only the goroutine of fn may use this Dir and the results of its Sub: in another goroutine, their
// operations would have the identity of the process. fn must not close the Dir, because that closes d.
func (d *Dir) WithIdentity(fn func(*Dir) error) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.fd < 0 {
		return fmt.Errorf("cannot use directory %q: %w", d.path, fs.ErrClosed)
	}
	return d.actor.Do(func() error {
		return fn(&Dir{path: d.path, actor: d.actor.WithoutSwitch(), owner: d.owner, noOpenat2: d.noOpenat2, fd: d.fd})
	})
}

// Lstat returns the status of rel without following a link. "" and "." mean the directory d itself.
func (d *Dir) Lstat(rel string) (info fs.FileInfo, err error) {
	var st unix.Stat_t
	err = d.statWith(rel, func(at int, name string, flags int) error { return unix.Fstatat(at, name, &st, flags) })
	if err != nil {
		return nil, err
	}
	return newStat(filepath.Base(filepath.Join(d.path, rel)), st), nil
}

// statWith calls stat for one stat system call. stat gets the directory of rel, the base name of rel, and flags that keep the
// call from following links.
func (d *Dir) statWith(rel string, stat func(at int, name string, flags int) error) error {
	return d.withComponents("stat", rel, func(names []string) error {
		if len(names) == 0 {
			return retryEINTR(func() error { return stat(d.fd, "", unix.AT_EMPTY_PATH) })
		}
		return d.inParent(names, func(parent int, base string) error {
			return retryEINTR(func() error { return stat(parent, base, unix.AT_SYMLINK_NOFOLLOW) })
		})
	})
}

// CreatedAt returns the creation time of the file rel, in nanoseconds since 1970 (statx(2), STATX_BTIME). A later file may get
// the same inode number, but never the same time. If the file system doesn't store this time, the error wraps
// errors.ErrUnsupported.
func (d *Dir) CreatedAt(rel string) (born int64, err error) {
	err = d.statWith(rel, func(at int, name string, flags int) error {
		var st unix.Statx_t
		err := unix.Statx(at, name, flags, unix.STATX_BTIME, &st)
		if err == nil && st.Mask&unix.STATX_BTIME == 0 {
			err = errors.ErrUnsupported
		}
		born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
		return err
	})
	return born, err
}

// RefreshCache asks the server of a network file system for the state of rel, whatever this machine has cached. Then this machine
// looks up changed names in the directory rel again.
func (d *Dir) RefreshCache(rel string) error {
	return d.statWith(rel, func(at int, name string, flags int) error {
		return unix.Statx(at, name, flags|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &unix.Statx_t{})
	})
}

// CheckExists returns nil if rel exists, even as a link. Otherwise the error wraps fs.ErrNotExist. It makes only one system
// call for a missing name, fewer than [Dir.Lstat].
func (d *Dir) CheckExists(rel string) error {
	return d.withComponents("stat", rel, func(names []string) error {
		fd, err := d.open(names, unix.O_PATH, 0)
		if err == nil {
			closeFD(fd)
		}
		return err
	})
}

// Mkdir creates the directory rel and all missing directories above it, with the permission bits mode (less the umask). An
// existing directory keeps its mode. If one of the names is a link or another kind of file, Mkdir returns an error.
func (d *Dir) Mkdir(rel string, mode fs.FileMode) error {
	return d.withComponents("make directory", rel, func(names []string) error {
		fd, err := d.open(nil, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer func() { closeFD(fd) }()
		for _, name := range names {
			err := callWithFault(faultinject.CallMkdir, name, func() error { return unix.Mkdirat(fd, name, uint32(mode.Perm())) })
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return err
			}
			next, err := openComponent(fd, name, unix.O_PATH|unix.O_DIRECTORY, 0)
			if err != nil {
				return err
			}
			closeFD(fd)
			fd = next
		}
		return nil
	})
}

// Rename renames oldrel to newrel, both relative to d. A file or link at newrel is replaced. A link at oldrel is renamed itself.
func (d *Dir) Rename(oldrel, newrel string) error {
	return d.withComponents("rename", oldrel, func(names []string) error {
		to, err := splitPath(newrel)
		if err != nil {
			return fmt.Errorf("to %q: %w", d.displayPath(newrel), err)
		}
		return d.inParent(names, func(oldParent int, oldBase string) error {
			err := d.inParent(to, func(newParent int, newBase string) error {
				return callWithFault(faultinject.CallRename, oldBase, func() error { return unix.Renameat(oldParent, oldBase, newParent, newBase) })
			})
			if err != nil {
				return fmt.Errorf("to %q: %w", d.displayPath(newrel), err)
			}
			return nil
		})
	})
}

// withComponents checks rel and calls fn with its components, with the identity of the actor. The Dir can't be closed during
// the call. It adds verb and rel to an error of fn.
func (d *Dir) withComponents(verb, rel string, fn func(names []string) error) error {
	names, err := splitPath(rel)
	if err == nil {
		d.mu.RLock()
		defer d.mu.RUnlock()
		if d.fd < 0 {
			err = fs.ErrClosed
		} else {
			err = d.actor.Do(func() error { return d.asOwner(verb, names, func() error { return fn(names) }) })
		}
	}
	if err != nil {
		return fmt.Errorf("cannot %s %q: %w", verb, d.displayPath(rel), err)
	}
	return nil
}

// withParent prepares an operation on a name like withComponents: fn gets the directory of rel, and the last component as base.
// fn must not follow a link at base.
func (d *Dir) withParent(verb, rel string, fn func(parent int, base string) error) error {
	return d.withComponents(verb, rel, func(names []string) error { return d.inParent(names, fn) })
}

func (d *Dir) displayPath(rel string) string {
	if rel == "" || rel == "." {
		return d.path
	}
	return strings.TrimSuffix(d.path, "/") + "/" + rel
}

// splitPath splits a name into its components. See Dir for names that it refuses.
func splitPath(rel string) ([]string, error) {
	if strings.HasPrefix(rel, "/") || strings.IndexByte(rel, 0) >= 0 {
		return nil, fmt.Errorf("not a relative name: %w", fs.ErrInvalid)
	}
	names := make([]string, 0, strings.Count(rel, "/")+1)
	for name := range strings.SplitSeq(rel, "/") {
		switch name {
		case "", ".":
		case "..":
			return nil, fmt.Errorf("%q in the name: %w", "..", fs.ErrInvalid)
		default:
			names = append(names, name)
		}
	}
	return names, nil
}

// ID identifies a file by device and inode, whatever its name. The zero value means no file.
type ID struct {
	Dev uint64 `reexec:"dev"`
	Ino uint64 `reexec:"ino"`
}

// IDOf returns the ID of the file that info describes.
func IDOf(info fs.FileInfo) ID { return ID{Stat(info).Dev, Stat(info).Ino} }

// ConnectSocket connects to the Unix socket rel. It returns a non-blocking stream socket, which refuses file descriptors if the
// kernel can do that. The caller closes it after [blocking.DrainSocket]. A link, or anything but a socket, is an error. If the
// server's queue is full, the error wraps EAGAIN; Connect doesn't wait.
func (d *Dir) ConnectSocket(rel string) (fd int, err error) {
	fd = -1
	err = d.withComponents("connect to", rel, func(names []string) error {
		at, err := d.open(names, unix.O_PATH, 0)
		if err != nil {
			return err
		}
		defer closeFD(at)
		if st, err := Fstat(at); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
			return fmt.Errorf("not a socket: %w", unix.ENOTSOCK)
		}
		made, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		blocking.RefuseDescriptors(uintptr(made))
		// this path leads to the checked socket, even if its name has been replaced
		if err := unix.Connect(made, &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(at)}); err != nil {
			closeFD(made)
			return err
		}
		fd = made
		return nil
	})
	return fd, err
}
