// Package trust says whether another user than root could change a thing that root relies on. Such a thing is a file that root
// reads, a program that it runs, or a directory on its PATH.
//
// A path is resolved component by component, links included, and each component is judged on the descriptor that the next one is
// opened from. Nothing is looked at by name twice, so there is nothing to swap between the check and the use. The package is
// linked into the exec shim, which is why it imports so little. It starts no goroutine.
package trust

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many links a path may lead through, as in path_resolution(7).
const maxLinks = 40

// Doubt is how somebody besides root could have a say in a path.
type Doubt struct {
	Path   string // the component that can be changed: the file, a link, or a directory above
	Why    string // "belongs to uid 10000", "can be written by everybody", "can be written by gid 50"
	Remedy string // the command that ends it
	Link   bool   // a link behind it was followed, so that somebody besides root may have chosen the file
}

// String is the doubt in words, with its remedy.
func (d *Doubt) String() string { return d.Path + " " + d.Why + "; " + d.Remedy }

// Judge says how others could change an inode that has this owner and this mode, and with which command that ends. An empty why
// means that they can't.
type Judge func(st *unix.Stat_t) (why, remedy string)

// overflow is whom the kernel names as the owner of what belongs to a user that this user namespace doesn't have.
const overflow = 65534

// Outside reports whether uid stands for all users that this user namespace does not have.
func Outside(uid uint32) bool { return uid == overflow && !mapped(overflow) }

// mapped reports whether a process of this user namespace could be that user (user_namespaces(7)). Without /proc it could.
func mapped(uid uint32) bool {
	fd, err := retry(func() (int, error) { return unix.Open("/proc/self/uid_map", unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	n, err := retry(func() (int, error) { return unix.Read(fd, buf) })
	if err != nil || n == len(buf) {
		return true
	}
	for line := range strings.Lines(string(buf[:n])) {
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

// RootOnly judges as sshd judges its files: what counts belongs to root and can't be written by its group or by others. An access
// list shows in the group's bits.
func RootOnly(st *unix.Stat_t) (why, remedy string) {
	switch {
	case st.Uid != 0 && !Outside(st.Uid):
		return "belongs to uid " + strconv.FormatUint(uint64(st.Uid), 10), "chown root"
	case writable(st, 0o002):
		return "can be written by everybody", "chmod o-w"
	case writable(st, 0o020):
		return "can be written by gid " + strconv.FormatUint(uint64(st.Gid), 10), "chmod g-w"
	}
	return "", ""
}

// OwnedBy judges as [RootOnly] does for a reader that is this user: what belongs to the user itself is as good as root's.
func OwnedBy(uid uint32) Judge {
	return func(st *unix.Stat_t) (why, remedy string) {
		own := *st
		if own.Uid == uid {
			own.Uid = 0
		}
		return RootOnly(&own)
	}
}

// NotBy judges what one user could change, who is in these groups.
func NotBy(uid uint32, groups []uint32) Judge {
	return func(st *unix.Stat_t) (why, remedy string) {
		switch {
		case st.Uid == uid || writable(st, 0o002) || writable(st, 0o020) && slices.Contains(groups, st.Gid):
			return RootOnly(st)
		}
		return "", ""
	}
}

// writable reports whether a mode has one of the bits. The mode of a link means nothing.
func writable(st *unix.Stat_t, bits uint32) bool {
	return st.Mode&unix.S_IFMT != unix.S_IFLNK && st.Mode&bits != 0
}

// Open opens a regular file for reading. doubt is the first component of the path that others could change, as the judge decides;
// nil for none. A read-only mount leaves no doubt. Neither does a sticky directory of root's, where a user can change only its
// own entries. A nil judge doubts nothing.
//
// path is absolute. Open blocks as long as the disks do on which the path lies, but on no FIFO.
func Open(path string, judge Judge) (fd int, doubt *Doubt, err error) {
	return open(path, &walk{judge: judge})
}

// OpenAnyMount is [Open] without the exception for a read-only mount: another mount may let somebody change the file later.
func OpenAnyMount(path string, judge Judge) (fd int, doubt *Doubt, err error) {
	return open(path, &walk{judge: judge, anyMount: true})
}

func open(path string, w *walk) (fd int, doubt *Doubt, err error) {
	defer w.close()
	if err := w.resolve(path); err != nil {
		return -1, w.doubt, err
	}
	if w.st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, w.doubt, errors.New("not a regular file")
	}
	fd, err = retry(func() (int, error) {
		return unix.Openat(w.parent, w.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return -1, w.doubt, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, w.doubt, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG { // exchanged since
		unix.Close(fd)
		return -1, w.doubt, errors.New("not a regular file")
	}
	w.question(fd, &st)
	return fd, w.doubt, nil
}

// Look resolves a path as [Open] does and opens nothing. For a directory the doubt tells also who could make a name in it: a sticky
// one that everybody can write is in doubt. For what doesn't exist the error is [unix.ENOENT], and the doubt tells whether somebody
// besides root could make it.
func Look(path string, judge Judge) (*Doubt, error) {
	w := &walk{judge: judge}
	defer w.close()
	err := w.resolve(path)
	if w.doubt == nil {
		w.doubt = w.open
	}
	return w.doubt, err
}

// walk is the resolution of one path.
type walk struct {
	judge    Judge
	anyMount bool   // a read-only mount leaves the doubt
	doubt    *Doubt // the first
	open     *Doubt // of the last directory, if it is sticky: others can make names in it
	parent   int    // the directory of what was resolved last
	at       int    // what was resolved last, an O_PATH descriptor
	st       unix.Stat_t
	where    string // its path, without a link
	name     string // its name in parent
}

func (w *walk) close() {
	unix.Close(w.parent)
	unix.Close(w.at)
}

const look = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC

// resolve leaves w at what path leads to, which is no link.
func (w *walk) resolve(path string) error {
	w.parent, w.at = -1, -1
	if !strings.HasPrefix(path, "/") {
		return errors.New("not an absolute path")
	}
	if err := w.root(); err != nil {
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
		if links++; links > maxLinks {
			return unix.ELOOP
		}
		target, err := w.follow()
		if err != nil {
			return err
		}
		names = append(strings.Split(target, "/"), names...)
	}
	return nil
}

// root begins at the root directory.
func (w *walk) root() error {
	fd, err := retry(func() (int, error) { return unix.Open("/", look|unix.O_DIRECTORY, 0) })
	if err != nil {
		return err
	}
	w.step(-1, fd)
	w.where, w.name = "/", "."
	return w.examine()
}

// step makes fd, whose directory is parent, the place of w.
func (w *walk) step(parent, fd int) {
	unix.Close(w.parent)
	w.parent, w.at = parent, fd
}

// enter goes to a name in the directory that w is at.
func (w *walk) enter(name string) error {
	fd, err := retry(func() (int, error) { return unix.Openat(w.at, name, look, 0) })
	if err != nil {
		return err
	}
	w.step(w.at, fd)
	w.name = name
	switch {
	case name == "..":
		w.where = w.where[:max(1, strings.LastIndexByte(w.where, '/'))]
	case w.where == "/":
		w.where += name
	default:
		w.where += "/" + name
	}
	return w.examine()
}

// examine judges where w is.
func (w *walk) examine() error {
	if err := unix.Fstat(w.at, &w.st); err != nil {
		return err
	}
	w.question(w.at, &w.st)
	return nil
}

// question notes the first doubt.
func (w *walk) question(fd int, st *unix.Stat_t) {
	w.open = nil
	if w.judge == nil || w.doubt != nil {
		return
	}
	why, remedy := w.judge(st)
	if why == "" {
		return
	}
	var fs unix.Statfs_t
	if !w.anyMount && unix.Fstatfs(fd, &fs) == nil && fs.Flags&unix.ST_RDONLY != 0 {
		return
	}
	doubt := &Doubt{Path: w.where, Why: why, Remedy: remedy + " " + w.where}
	if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0 && st.Uid == 0 {
		w.open = doubt
		return
	}
	w.doubt = doubt
}

// follow returns where the link that w is at leads, and goes to where that begins.
func (w *walk) follow() (string, error) {
	if w.doubt != nil {
		w.doubt.Link = true
	}
	buf := make([]byte, unix.PathMax)
	n, err := retry(func() (int, error) { return unix.Readlinkat(w.at, "", buf) })
	if err != nil {
		return "", err
	}
	target := string(buf[:n])
	if strings.HasPrefix(target, "/") {
		unix.Close(w.at)
		w.at = -1
		return target, w.root()
	}
	unix.Close(w.at)
	w.at, w.parent = w.parent, -1
	w.where = w.where[:max(1, strings.LastIndexByte(w.where, '/'))]
	if err := unix.Fstat(w.at, &w.st); err != nil {
		return "", err
	}
	return target, nil
}

func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// Leads reports whether a variable's value leads to a directory or below it: alone, in a list, or in an option. It says yes too
// often rather than too rarely.
func Leads(value, dir string) bool {
	for {
		i := strings.Index(value, dir)
		if i < 0 {
			return false
		}
		value = value[i+len(dir):]
		if value == "" || !inName(value[0]) {
			return true
		}
	}
}

// inName reports whether a byte goes on with the name of a directory, so that it is another one.
func inName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.'
}
