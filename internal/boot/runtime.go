package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/account"
	"hinit/internal/fsutil"
	"hinit/internal/trust"
)

// systemRuntimeDir is the default runtime directory if /run is writable.
const systemRuntimeDir = account.RuntimeDir

// Runtime says where hinit's control socket is.
type Runtime struct {
	Socket   string // path, or "@name" for an abstract socket (unix(7)); empty if there is no place for one
	Dir      string // directory of Socket, ready for use; empty when Socket is abstract or empty
	Fallback bool   // another place than the configured one
	Warning  string // why it is another place, one line; may be empty
}

// PrepareRuntime finds and makes the directory of the control socket. socket is the configured path; when it is empty,
// HINIT_RUNTIME_DIR names the directory, else it is /run/hinit. uid is the effective user, who will own the socket.
//
// If that place cannot be used, it tries the following in turn: /run/hinit; hinit below XDG_RUNTIME_DIR (not for root); hinit-UID
// below TMPDIR and below /tmp. The last try is an abstract socket named after the PID namespace. A directory is used only if it
// and its parent belong to root or uid and no other user can write them. Callers are checked by credentials, so other users may
// see the socket, but not replace it.
//
// In a pod a volume on /run may be open to all users. Root sets its sticky bit. Any other user creates a directory of its own
// below it. Only another user can replace that directory, and clients refuse that user's socket.
func PrepareRuntime(socket string, env func(string) (string, bool), uid int) Runtime {
	if uid == 0 {
		setStickyBit(filepath.Dir(systemRuntimeDir))
		removeForeignDir(systemRuntimeDir, os.Getpid() == 1)
	}
	return prepareSocketDir(client.Places(socket, env, uid), client.AbstractSocket(), uid, InPod(env))
}

// setStickyBit sets the sticky bit of a directory of root that everybody may write, such as an emptyDir of a pod. Then only the
// owner of an entry can remove it.
func setStickyBit(dir string) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && fsutil.UID(info) == 0 && info.Mode().Perm()&0o002 != 0 {
		_ = f.Chmod(info.Mode() | fs.ModeSticky) // after an error, makeDir refuses the directory and another place is used
	}
}

// InPod reports whether the container belongs to a pod of Kubernetes. The variable can be set by anyone, so it decides only about
// words and places, never about permissions.
func InPod(env func(string) (string, bool)) bool { return Value(env, "KUBERNETES_SERVICE_HOST") != "" }

// removeForeignDir removes a directory of another user from a directory of root, so that root can create its own. A process
// other than process 1 removes only an empty directory. For process 1, the files are from an earlier container.
func removeForeignDir(dir string, first bool) {
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
	if err != nil || !info.IsDir() || fsutil.UID(info) == 0 {
		return
	}
	if entries, _, err := parent.ReadSome(name, 1); err != nil || len(entries) > 0 && !first {
		return // another process may be using it
	}
	_ = parent.RemoveAll(name) // after an error, makeDir refuses the directory and another place is used
}

// prepareSocketDir uses the first of the sockets whose directory it can prepare.
func prepareSocketDir(sockets []string, abstract string, uid int, pod bool) Runtime {
	private := os.FileMode(0o700) // of directories below a directory for temporary files
	if uid == 0 {
		private = 0o711 // the agent's user must be able to pass through
	}
	var first error
	for i, socket := range sockets {
		dir, mode := filepath.Dir(socket), private
		if i == 0 || dir == systemRuntimeDir {
			mode = 0o755
		}
		err := makeDir(dir, mode, uid, pod)
		if err == nil {
			r := Runtime{Socket: socket, Dir: dir, Fallback: i > 0}
			if first != nil {
				r.Warning = fmt.Sprintf("%v; using %q", first, dir)
			}
			return r
		}
		if first == nil {
			first = fmt.Errorf("cannot use %q for the control socket: %w", dir, err)
		}
	}
	if abstract == "" {
		return Runtime{Fallback: true, Warning: fmt.Sprintf("%v; no other place can be written, so there is no control socket", first)}
	}
	volume := "a tmpfs"
	if pod {
		volume = "an emptyDir"
	}
	return Runtime{Socket: abstract, Fallback: true, Warning: fmt.Sprintf(
		"%v; no other place can be written, so the socket is %q without a file (mount %s on /run to have one)", first, abstract, volume,
	)}
}

// makeDir creates dir if it is missing. It refuses dir unless uid can write it and only root and uid can change its entries. The
// volume of a pod above it may belong to root and be open to all.
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
		return Bare(err)
	}
	if err := tamperProof(info, uid); err != nil && (!pod || uid == 0 || fsutil.UID(info) != 0) {
		return fmt.Errorf("its parent directory %w", err)
	}
	made := true
	if err := os.Mkdir(dir, mode); errors.Is(err, fs.ErrExist) {
		made = false
	} else if err != nil {
		return Bare(err)
	}
	// The checks are done on the open directory. A link in its place is refused.
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
			return errors.New("it is not a directory")
		}
		return Bare(err)
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return Bare(err)
	}
	if err := tamperProof(info, uid); err != nil {
		return fmt.Errorf("it %w", err)
	}
	if made { // the umask may have reduced the mode
		if err := f.Chmod(mode); err != nil {
			return Bare(err)
		}
	}
	return unix.Faccessat(int(f.Fd()), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}

// tamperProof returns an error if users other than root and uid could replace entries of the directory. A sticky directory
// protects its entries. The group of a directory of another user than root may write: with umask 002 the group is usually the
// user's own.
func tamperProof(info fs.FileInfo, uid int) error {
	owner := int(fsutil.UID(info))
	// In a user namespace the machine's /tmp may belong to a user outside of the namespace.
	stranger := info.Mode()&fs.ModeSticky != 0 && trust.Outside(uint32(owner))
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

// Bare removes the path from an error, for messages that already have it.
func Bare(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
