package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"hinit/internal/config"
	"hinit/internal/fsutil"
)

// systemRuntimeDir is where the runtime directory is when nothing else is said and /run can be written.
const systemRuntimeDir = "/run/hinit"

// Runtime is where hinit puts its control socket.
type Runtime struct {
	Socket   string // path, or "@name" for an abstract socket (unix(7)); empty: there is no place for one
	Dir      string // directory of Socket, ready for use; empty when Socket is abstract or empty
	Fallback bool   // not the place that was asked for
	Warning  string // why it is not, one line; empty when there is nothing to say
}

// PrepareRuntime finds and makes the directory of the control socket. socket is the configured path; when it is empty, the
// directory is the one HINIT_RUNTIME_DIR names, or else /run/hinit. uid is the effective user, who will own the socket.
//
// When that place cannot be used (a read-only root, another user's directory), the next of these is taken:
// /run/hinit; hinit below XDG_RUNTIME_DIR (not for root); hinit-UID below TMPDIR and below /tmp; and last an abstract
// socket named after the PID namespace, which needs no file system. Who connects is judged by peer credentials, so the
// place needs to be safe from being replaced, not from being seen: a directory is used only when it and its parent belong
// to root or to uid and nobody else can write them.
//
// It makes at most the directory and its missing parents, and may block on the disk.
//
// Root takes /run/hinit over where the build of the image has made it for the agent's user.
func PrepareRuntime(socket string, env func(string) (string, bool), uid int) Runtime {
	if uid == 0 {
		reclaim(systemRuntimeDir, os.Getpid() == 1)
	}
	return prepare(places(socket, env, uid), abstractSocket(), uid)
}

// reclaim removes a directory that another user has below one of root's, so that root can make its own. It has to be empty,
// unless this is process 1: what is in there was left by a container that was started as another user.
func reclaim(dir string, first bool) {
	parent, err := fsutil.OpenReal(filepath.Dir(dir), nil)
	if err != nil {
		return
	}
	defer parent.Close()
	above, err := parent.Lstat("")
	if err != nil || tamperProof(above, 0) != nil {
		return
	}
	name := filepath.Base(dir)
	info, err := parent.Lstat(name)
	if err != nil || !info.IsDir() || info.Sys().(*syscall.Stat_t).Uid == 0 {
		return
	}
	if entries, _, err := parent.ReadSome(name, 1); err != nil || len(entries) > 0 && !first {
		return // somebody may be using it
	}
	_ = parent.RemoveAll(name) // else it is refused, and another place found
}

// SocketCandidates returns where a client is to look for the control socket, in the order in which [PrepareRuntime] tries
// the places; uid is the client's effective user. The init may run as another user, so the places of root and of the owner
// of process 1 are among them. A place whose directory belongs to none of these is left out, for anybody could be
// listening there. A socket in the list may be missing or left over from an earlier run: connect to one after the other. An
// abstract name ("@…") can be taken by any user of the network namespace: a client must check that its peer's
// credentials (SO_PEERCRED) are those of root, of the owner of process 1, or its own.
func SocketCandidates(socket string, env func(string) (string, bool), uid int) []string {
	trusted := []int{uid, 0}
	if owner, ok := ownerOf("/proc/1"); ok {
		trusted = append(trusted, owner)
	}
	var sockets []string
	for _, who := range trusted {
		for _, p := range places(socket, env, who) {
			owner, exists := ownerOf(p.dir())
			if exists && !slices.Contains(trusted, owner) || slices.Contains(sockets, p.socket) {
				continue
			}
			sockets = append(sockets, p.socket)
		}
	}
	if name := abstractSocket(); name != "" {
		sockets = append(sockets, name)
	}
	return sockets
}

// place is one possible home of the control socket.
type place struct {
	socket string
	mode   os.FileMode // of a directory that has to be made
}

func (p place) dir() string { return filepath.Dir(p.socket) }

// places lists the directories that PrepareRuntime tries for uid, best first.
func places(socket string, env func(string) (string, bool), uid int) []place {
	// A directory of root's must let the agent's user through to the socket.
	private := os.FileMode(0o700)
	if uid == 0 {
		private = 0o711
	}
	if socket == "" {
		dir := value(env, "HINIT_RUNTIME_DIR")
		if !filepath.IsAbs(dir) {
			dir = systemRuntimeDir
		}
		socket = filepath.Join(dir, config.SocketName)
	}
	list := []place{{socket, 0o755}}
	add := func(parent, name string, mode os.FileMode) {
		p := place{filepath.Join(parent, name, config.SocketName), mode}
		if filepath.IsAbs(parent) && !slices.ContainsFunc(list, func(q place) bool { return q.socket == p.socket }) {
			list = append(list, p)
		}
	}
	add(filepath.Dir(systemRuntimeDir), filepath.Base(systemRuntimeDir), 0o755)
	if uid != 0 {
		add(value(env, "XDG_RUNTIME_DIR"), "hinit", private)
	}
	add(value(env, "TMPDIR"), "hinit-"+strconv.Itoa(uid), private)
	add("/tmp", "hinit-"+strconv.Itoa(uid), private)
	return list
}

// abstractSocket names the abstract socket of this PID namespace, "" when /proc does not tell. Two containers that share a
// network namespace, which is what abstract names live in, differ in their PID namespaces.
func abstractSocket() string {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return ""
	}
	return "@hinit-" + strconv.FormatUint(st.Ino, 10)
}

// prepare takes the first place that can be used.
func prepare(list []place, abstract string, uid int) Runtime {
	var first error
	for i, p := range list {
		err := makeDir(p.dir(), p.mode, uid)
		if err == nil {
			r := Runtime{Socket: p.socket, Dir: p.dir(), Fallback: i > 0}
			if first != nil {
				r.Warning = fmt.Sprintf("%v; using %q", first, p.dir())
			}
			return r
		}
		if first == nil {
			first = fmt.Errorf("cannot use %q for the control socket: %w", p.dir(), err)
		}
	}
	if abstract == "" {
		return Runtime{Fallback: true, Warning: fmt.Sprintf("%v; no other place can be written, so there is no control socket", first)}
	}
	return Runtime{Socket: abstract, Fallback: true, Warning: fmt.Sprintf(
		"%v; no other place can be written, so the socket is %q without a file (mount a tmpfs on /run to have one)", first, abstract,
	)}
}

// makeDir sees to it that dir is a directory that uid can write and that nobody but root and uid can tamper with, and
// makes it with mode when it is missing.
func makeDir(dir string, mode os.FileMode, uid int) error {
	parent := filepath.Dir(dir)
	info, err := os.Stat(parent)
	if errors.Is(err, fs.ErrNotExist) && parent != dir {
		if err := makeDir(parent, 0o755, uid); err != nil {
			return err
		}
		info, err = os.Stat(parent)
	}
	if err != nil {
		return bare(err)
	}
	if err := tamperProof(info, uid); err != nil {
		return fmt.Errorf("its parent directory %w", err)
	}
	made := true
	if err := os.Mkdir(dir, mode); errors.Is(err, fs.ErrExist) {
		made = false
	} else if err != nil {
		return bare(err)
	}
	// The directory is held open, so that what is checked is what was found, and a link in its place is refused.
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
			return errors.New("it is not a directory")
		}
		return bare(err)
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return bare(err)
	}
	if err := tamperProof(info, uid); err != nil {
		return fmt.Errorf("it %w", err)
	}
	if made { // whatever the umask took off
		if err := f.Chmod(mode); err != nil {
			return bare(err)
		}
	}
	return unix.Faccessat(int(f.Fd()), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}

// tamperProof refuses a directory whose entries somebody else than root and uid could replace. In a sticky directory, such
// as /tmp, nobody can touch the entries of others. Where root is not at stake, the group of a directory may write it:
// with the umask 002 of many desktops it is the user's own.
func tamperProof(info fs.FileInfo, uid int) error {
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	// In a user namespace the /tmp of the machine belongs to a user whom the namespace does not know, so that none in it
	// can be that user.
	stranger := info.Mode()&fs.ModeSticky != 0 && outsideNamespace(owner)
	if owner != 0 && owner != uid && !stranger {
		return fmt.Errorf("belongs to uid %d", owner)
	}
	others := os.FileMode(0o022)
	if uid != 0 {
		others = 0o002
	}
	if info.Mode().Perm()&others != 0 && info.Mode()&fs.ModeSticky == 0 {
		return fmt.Errorf("can be written by other users (mode %04o)", info.Mode().Perm())
	}
	return nil
}

// outsideNamespace reports whether uid stands for all users that this user namespace does not map (user_namespaces(7)).
func outsideNamespace(uid int) bool {
	overflow, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err != nil || strings.TrimSpace(string(overflow)) != strconv.Itoa(uid) {
		return false
	}
	maps, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(maps)) {
		var inside, outside, count int
		if _, err := fmt.Sscan(line, &inside, &outside, &count); err != nil || uid >= inside && uid < inside+count {
			return false
		}
	}
	return true
}

// ownerOf returns the owner of a file that is no link followed, and whether it exists.
func ownerOf(path string) (uid int, exists bool) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, false
	}
	return int(info.Sys().(*syscall.Stat_t).Uid), true
}

// bare takes the path off an error, for messages that name it already.
func bare(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
