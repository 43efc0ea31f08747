package boot

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/account"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/trust"
)

const systemRuntimeDir = account.RuntimeDir

// Runtime is the location of hinit's control socket.
type Runtime struct {
	Socket  string // path, or "@name" for an abstract socket (unix(7)); "" if no location works
	Dir     string // directory of Socket, ready for use; "" without such a directory
	Warning string // why the socket is not in the usual directory; "" if it is
}

// PrepareRuntime chooses and makes the directory of the control socket. socket is the configured path. If it is "",
// HINIT_RUNTIME_DIR names the directory; the default is /run/hinit. uid is the effective user, the owner of the socket.
//
// If that directory can't be used, PrepareRuntime tries /run/hinit, hinit in XDG_RUNTIME_DIR (not as root), and hinit-UID in
// TMPDIR and in /tmp. The last resort is an abstract socket, named after the PID namespace. A directory can be used if it and
// its parent belong to root or uid, and no other user can write to them. Others may connect, because hinit checks the user of
// every client, but they must not be able to replace the socket.
//
// In a pod, a volume on /run may be writable for all users. As root, hinit sets the sticky bit of this volume. As another user,
// it makes a private directory in it. The owner of the volume could replace the directory, but clients refuse a socket of
// another user.
func PrepareRuntime(socket string, env func(string) (string, bool), uid int) Runtime {
	if uid == 0 {
		setStickyBit(filepath.Dir(systemRuntimeDir))
		removeForeignDir(systemRuntimeDir, os.Getpid() == 1)
	}
	return prepareSocketDir(client.SocketPaths(socket, env, uid), client.AbstractSocket(), uid, InPod(env))
}

// setStickyBit sets the sticky bit of a directory that root owns and everybody may write to, such as an emptyDir volume of a pod.
// The bit prevents other users from removing hinit's files.
func setStickyBit(dir string) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && fsutil.UID(info) == 0 && info.Mode().Perm()&0o002 != 0 {
		_ = f.Chmod(info.Mode() | fs.ModeSticky) // after an error, makeDir refuses the directory
	}
}

// InPod reports whether the container belongs to a Kubernetes pod. Anybody can set this variable, so use the result only for
// messages and places, never for permissions.
func InPod(env func(string) (string, bool)) bool { return EnvOf(env, "KUBERNETES_SERVICE_HOST") != "" }

// removeForeignDir removes dir if root owns its parent directory but not dir, so that root can make dir again. If this process is
// PID 1 (isInit), the content comes from an earlier container. Otherwise only an empty directory is removed.
func removeForeignDir(dir string, isInit bool) {
	parent, err := fsutil.OpenNoLink(filepath.Dir(dir), nil)
	if err != nil {
		return
	}
	defer parent.Close()
	above, err := parent.Lstat("")
	if err != nil || checkTamperProof(above, 0) != nil {
		return
	}
	name := filepath.Base(dir)
	info, err := parent.Lstat(name)
	if err != nil || !info.IsDir() || fsutil.UID(info) == 0 {
		return
	}
	if entries, _, err := parent.ReadAtMost(name, 1); err != nil || len(entries) > 0 && !isInit {
		return
	}
	_ = parent.RemoveAll(name) // after an error, makeDir refuses the directory
}

// prepareSocketDir chooses the first of the sockets with a usable directory. Otherwise it chooses the abstract socket; if
// abstract is "", the result has no socket.
func prepareSocketDir(sockets []string, abstract string, uid int, pod bool) Runtime {
	private := os.FileMode(0o700) // mode of a directory below a directory for temporary files
	if uid == 0 {
		private = 0o711 // the agent's user must be able to reach the socket
	}
	var first error
	for i, socket := range sockets {
		dir, mode := filepath.Dir(socket), private
		if i == 0 || dir == systemRuntimeDir {
			mode = 0o755
		}
		err := makeDir(dir, mode, uid, pod)
		if err == nil {
			r := Runtime{Socket: socket, Dir: dir}
			if first != nil {
				r.Warning = fmt.Sprintf("%v; using %q", first, dir)
			}
			return r
		}
		first = cmp.Or(first, fmt.Errorf("cannot use %q for the control socket: %w", dir, err))
	}
	if abstract == "" {
		return Runtime{Warning: fmt.Sprintf("%v; no other place can be written, so there is no control socket", first)}
	}
	return Runtime{Socket: abstract, Warning: fmt.Sprintf(
		"%v; no other place can be written, so the socket is %q without a file (mount %s on /run to have one)", first, abstract, ChooseAdvice(pod, "a tmpfs", "an emptyDir"),
	)}
}

// makeDir makes dir if it is missing. It refuses dir unless uid can write to it, and only root and uid can change its entries.
// In a pod, the parent may be a volume of root that is open to all users.
func makeDir(dir string, mode os.FileMode, uid int, pod bool) error {
	parent := filepath.Dir(dir)
	info, err := os.Stat(parent)
	if errors.Is(err, fs.ErrNotExist) && parent != dir {
		if err := makeDir(parent, 0o755, uid, pod); err != nil {
			return err
		}
		info, err = os.Stat(parent)
	}
	if err != nil {
		return WithoutPath(err)
	}
	if err := checkTamperProof(info, uid); err != nil && (!pod || uid == 0 || fsutil.UID(info) != 0) {
		return fmt.Errorf("its parent directory %w", err)
	}
	err = os.Mkdir(dir, mode)
	made := err == nil
	if !made && !errors.Is(err, fs.ErrExist) {
		return WithoutPath(err)
	}
	// No user can replace an open directory between the checks. O_NOFOLLOW refuses a symbolic link.
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
			return errors.New("it is not a directory")
		}
		return WithoutPath(err)
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return WithoutPath(err)
	}
	if err := checkTamperProof(info, uid); err != nil {
		return fmt.Errorf("it %w", err)
	}
	if made {
		if err := f.Chmod(mode); err != nil {
			return WithoutPath(err)
		}
	}
	return unix.Faccessat(int(f.Fd()), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}

// checkTamperProof returns an error if users other than root and uid could replace entries of a directory. A sticky directory
// protects its entries. Without root, the group may have write permission: with umask 002 the group is usually the user's own.
func checkTamperProof(info fs.FileInfo, uid int) error {
	owner := int(fsutil.UID(info))
	// Inside a user namespace, the machine's /tmp may belong to a user outside of the namespace.
	stranger := info.Mode()&fs.ModeSticky != 0 && trust.IsOverflowUID(uint32(owner))
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

// WithoutPath removes the path from an error, for messages that name it already.
func WithoutPath(err error) error { return config.WithoutPath(err) }
