// Package trust checks whether a user other than root could change something on which root relies. Such a thing is a file that
// root reads, a program that it runs, or a directory on its PATH.
//
// It resolves a path component by component, including symbolic links. It checks each component on the descriptor from which it
// opens the next one. Since no name is looked up twice, nothing can be exchanged between the check and the use. The exec shim
// links this package, so it imports little. It starts no goroutine.
package trust

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks limits the symbolic links on a path, as in path_resolution(7).
const maxLinks = 40

// ErrSymlink means that a path contains a symbolic link that is not followed.
var ErrSymlink = errors.New("symbolic link refused")

// linkError is [ErrSymlink] with the path of the link.
type linkError string

func (e linkError) Error() string { return strconv.Quote(string(e)) + ": " + ErrSymlink.Error() }
func (e linkError) Unwrap() error { return ErrSymlink }

// Violation says how a user other than root could change a path.
type Violation struct {
	Path   string // component that the user can change: the file, a link, or a directory above
	Why    string // reason, such as "belongs to uid 10000", "can be written by everybody" or "can be written by gid 50"
	Remedy string // command that ends the violation
	Link   bool   // a link was followed after Path, so the user may have chosen the file
}

// String returns the violation as a sentence, with the remedy.
func (d *Violation) String() string { return d.Path + " " + d.Why + "; " + d.Remedy }

// Rule says whether users other than root could change an inode, by its owner and mode. If they could, why says how, and
// remedy is a command that prevents it, without its file argument. Otherwise both are "".
type Rule func(st *unix.Stat_t) (why, remedy string)

// overflowUID is the owner that the kernel shows for files of users that don't exist in this user namespace.
const overflowUID = 65534

// IsOverflowUID reports whether uid is the owner that the kernel shows for users that don't exist in this user namespace.
func IsOverflowUID(uid uint32) bool { return uid == overflowUID && !isMapped(overflowUID) }

// isMapped reports whether a user exists in this user namespace (user_namespaces(7)). If /proc/self/uid_map can't be read, it
// returns true.
func isMapped(uid uint32) bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) != 3 {
			return true
		}
		first, err := strconv.ParseUint(words[0], 10, 32)
		count, err2 := strconv.ParseUint(words[2], 10, 64)
		if err != nil || err2 != nil || uint64(uid) >= first && uint64(uid)-first < count {
			return true
		}
	}
	return false
}

// RootOnly is the [Rule] of sshd: the inode must belong to root, and neither its group nor others may write to it. Rights
// from an access control list appear in the group's bits (acl(5)).
func RootOnly(st *unix.Stat_t) (why, remedy string) {
	switch {
	case st.Uid != 0 && !IsOverflowUID(st.Uid):
		return "belongs to uid " + strconv.FormatUint(uint64(st.Uid), 10), "chown root"
	case isWritable(st, 0o002):
		return "can be written by everybody", "chmod o-w"
	case isWritable(st, 0o020):
		return "can be written by gid " + strconv.FormatUint(uint64(st.Gid), 10), "chmod g-w"
	}
	return "", ""
}

// OwnedBy returns a [Rule] like [RootOnly] that also accepts inodes of the user uid.
func OwnedBy(uid uint32) Rule {
	return func(st *unix.Stat_t) (why, remedy string) {
		own := *st
		if own.Uid == uid {
			own.Uid = 0
		}
		return RootOnly(&own)
	}
}

// NotChangeableBy returns a [Rule] that rejects each inode that the user uid with the given groups could change.
func NotChangeableBy(uid uint32, groups []uint32) Rule {
	return func(st *unix.Stat_t) (why, remedy string) {
		if st.Uid == uid || isWritable(st, 0o002) || isWritable(st, 0o020) && slices.Contains(groups, st.Gid) {
			return RootOnly(st)
		}
		return "", ""
	}
}

// isWritable reports whether an inode's mode has at least one of the bits. It returns false for a symbolic link, whose mode has
// no meaning.
func isWritable(st *unix.Stat_t, bits uint32) bool {
	return st.Mode&unix.S_IFMT != unix.S_IFLNK && st.Mode&bits != 0
}

// Open opens a regular file for reading. violation is about the first component of the path that rule rejects; it is nil if rule
// accepts all. Open accepts a file on a read-only mount and a sticky directory that root owns, where users can change only
// their own entries. A nil rule accepts everything.
//
// path must be absolute. Open blocks while the disks on the path do, but not on a FIFO.
func Open(path string, rule Rule) (fd int, violation *Violation, err error) {
	return open(path, &walk{rule: rule})
}

// OpenAnyMount is [Open] without the exception for read-only mounts, because the file may also be reachable on a writable mount.
func OpenAnyMount(path string, rule Rule) (fd int, violation *Violation, err error) {
	return open(path, &walk{rule: rule, anyMount: true})
}

func open(path string, w *walk) (fd int, violation *Violation, err error) {
	defer w.close()
	if err := w.resolve(path); err != nil {
		return -1, w.violation, err
	}
	if w.st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, w.violation, errors.New("not a regular file")
	}
	fd, err = Retry(func() (int, error) {
		return unix.Openat(w.parent, w.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return -1, w.violation, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, w.violation, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG { // the file was exchanged since the last check
		unix.Close(fd)
		return -1, w.violation, errors.New("not a regular file")
	}
	w.recordFirstViolation(fd, &st)
	return fd, w.violation, nil
}

// Check resolves a path like [Open], but does not open it. It also rejects a directory in which another user could create
// entries, such as a sticky directory that everybody can write. If the path does not exist, the error is [unix.ENOENT], and
// the violation says whether another user could create it.
func Check(path string, rule Rule) (*Violation, error) {
	w := &walk{rule: rule}
	defer w.close()
	err := w.resolve(path)
	w.violation = cmp.Or(w.violation, w.stickyViolation)
	return w.violation, err
}

// Stat resolves a path like [Open], and returns its status. The caller must check whether violation says that a user may have
// chosen the file with a link.
func Stat(path string, rule Rule) (st unix.Stat_t, violation *Violation, err error) {
	w := &walk{rule: rule}
	defer w.close()
	err = w.resolve(path)
	return w.st, w.violation, err
}

// OpenDir opens a directory with O_PATH. It follows only links in directories that root alone can write to, and the same
// holds for each directory on the way to the target of a link. As the last component, it refuses a link unless lastLink is
// set. If mode is not 0, OpenDir creates missing directories with this mode (less the umask). made reports whether it has
// created the last one. A relative path begins at the working directory. OpenDir does not wait for the server of a directory
// on the path.
func OpenDir(path string, lastLink bool, mode uint32) (fd int, made bool, err error) {
	w := &walk{openType: unix.O_DIRECTORY, lastLink: lastLink, mode: mode}
	defer w.close()
	if err = w.resolve(path); err == nil && w.st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = unix.ENOTDIR
	}
	if err != nil {
		return -1, false, err
	}
	fd, w.current = w.current, -1
	return fd, w.made, nil
}

// walk is the state of the resolution of one path.
type walk struct {
	rule            Rule
	openType        int        // type of the last component: O_DIRECTORY in OpenDir, otherwise 0
	lastLink        bool       // parameter lastLink of OpenDir
	mode            uint32     // parameter mode of OpenDir
	made            bool       // result made of OpenDir
	anyMount        bool       // whether to check files on a read-only mount, too
	violation       *Violation // the first violation at the path
	stickyViolation *Violation // violation at the last directory if it is sticky: other users can create entries in it
	parent          int        // descriptor of the directory that contains current
	current         int        // descriptor of the last resolved component, opened with O_PATH
	st              unix.Stat_t
	path            string // path of current, without symbolic links
	name            string // name of current in parent
}

func (w *walk) close() {
	unix.Close(w.parent)
	unix.Close(w.current)
}

const openFlags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC

// resolve resolves path, following symbolic links. After it succeeds, w.current is the result.
func (w *walk) resolve(path string) error {
	w.parent, w.current = -1, -1
	start := "/"
	if !strings.HasPrefix(path, start) {
		start = "."
		if w.openType == 0 {
			return errors.New("not an absolute path")
		}
	}
	if err := w.start(start); err != nil {
		return err
	}
	names := strings.Split(path, "/")
	for links := 0; len(names) > 0; {
		name := names[0]
		names = names[1:]
		if name == "" || name == "." {
			continue
		}
		if err := w.enter(name); err != nil {
			return err
		}
		if w.st.Mode&unix.S_IFMT != unix.S_IFLNK {
			continue
		}
		links++
		if links > maxLinks {
			return unix.ELOOP
		}
		if w.openType != 0 && (len(names) == 0 && !w.lastLink || !onlyRootWrites(w.parent)) {
			return linkError(w.path)
		}
		target, err := w.follow()
		if err != nil {
			return err
		}
		names = append(strings.Split(target, "/"), names...)
	}
	return nil
}

// onlyRootWrites reports whether only root can write to the open directory dir. Any other writer can make links in it, even if
// the sticky bit is set.
func onlyRootWrites(dir int) bool {
	var st unix.Stat_t
	return unix.Fstat(dir, &st) == nil && st.Uid == 0 && st.Mode&0o022 == 0
}

// start sets w.current to dir, the root directory or the working directory, and examines it.
func (w *walk) start(dir string) error {
	fd, err := Retry(func() (int, error) { return unix.Open(dir, openFlags|unix.O_DIRECTORY, 0) })
	if err != nil {
		return err
	}
	w.moveTo(-1, fd)
	w.path, w.name = dir, "."
	return w.examine()
}

// moveTo sets w.current to fd and w.parent to parent, the directory that contains fd.
func (w *walk) moveTo(parent, fd int) {
	unix.Close(w.parent)
	w.parent, w.current = parent, fd
}

// enter moves to the entry name of the directory w.current, and examines it. In OpenDir it doesn't examine a directory: that
// could wait for a server.
func (w *walk) enter(name string) error {
	flags := openFlags | w.openType
	open := func() (int, error) { return unix.Openat(w.current, name, flags, 0) }
	fd, err := Retry(open)
	w.made = false
	if w.mode != 0 && errors.Is(err, unix.ENOENT) {
		_, err = Retry(func() (int, error) { return 0, unix.Mkdirat(w.current, name, w.mode) })
		w.made = err == nil
		if w.made || errors.Is(err, unix.EEXIST) {
			fd, err = Retry(open)
		}
	}
	if w.openType != 0 && errors.Is(err, unix.ENOTDIR) { // the component may be a link
		flags = openFlags
		fd, err = Retry(open)
	}
	if err != nil {
		return err
	}
	w.moveTo(w.current, fd)
	w.name = name
	switch {
	case name == "..":
		w.path = w.path[:max(1, strings.LastIndexByte(w.path, '/'))]
	case w.path == "/":
		w.path += name
	default:
		w.path += "/" + name
	}
	if flags&unix.O_DIRECTORY != 0 {
		w.st.Mode = unix.S_IFDIR
		return nil
	}
	return w.examine()
}

// examine reads the status of w.current into w.st, and records a violation.
func (w *walk) examine() error {
	if err := unix.Fstat(w.current, &w.st); err != nil {
		return err
	}
	w.recordFirstViolation(w.current, &w.st)
	return nil
}

// recordFirstViolation passes an inode's status to the rule, and records the first violation. It finds none at inodes on
// read-only mounts, unless anyMount is set.
func (w *walk) recordFirstViolation(fd int, st *unix.Stat_t) {
	w.stickyViolation = nil
	if w.rule == nil || w.violation != nil {
		return
	}
	why, remedy := w.rule(st)
	if why == "" {
		return
	}
	var fs unix.Statfs_t
	if !w.anyMount && unix.Fstatfs(fd, &fs) == nil && fs.Flags&unix.ST_RDONLY != 0 {
		return
	}
	violation := &Violation{Path: w.path, Why: why, Remedy: remedy + " " + w.path}
	if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0 && st.Uid == 0 {
		w.stickyViolation = violation
		return
	}
	w.violation = violation
}

// follow returns the target of the symbolic link w.current, and sets w.current to the directory from which to resolve the target.
func (w *walk) follow() (string, error) {
	if w.violation != nil {
		w.violation.Link = true
	}
	buf := make([]byte, unix.PathMax)
	n, err := Retry(func() (int, error) { return unix.Readlinkat(w.current, "", buf) })
	if err != nil {
		return "", err
	}
	target := string(buf[:n])
	unix.Close(w.current)
	if strings.HasPrefix(target, "/") {
		w.current = -1
		return target, w.start("/")
	}
	w.current, w.parent = w.parent, -1
	w.path = w.path[:max(1, strings.LastIndexByte(w.path, '/'))]
	if err := unix.Fstat(w.current, &w.st); err != nil {
		return "", err
	}
	return target, nil
}

// Retry makes a system call again for as long as a signal interrupts it (EINTR).
func Retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// ContainsPath reports whether the value of a variable contains the path dir, or a path inside dir: alone, in a list, or in an
// option. If the answer is uncertain, it returns true.
func ContainsPath(value, dir string) bool {
	for {
		i := strings.Index(value, dir)
		if i < 0 {
			return false
		}
		value = value[i+len(dir):]
		if value == "" || !strings.Contains(fileNameBytes, value[:1]) {
			return true
		}
	}
}

// fileNameBytes are the bytes after a path that can be part of the same name. Then the text names another file.
const fileNameBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
