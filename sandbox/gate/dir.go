package gate

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// EnterDir makes dir the working directory of this process, and creates it if it is missing. An empty dir changes nothing.
// resolve are flags of openat2(2). Root passes RESOLVE_NO_XDEV, because a mount may show files of users outside of the
// container, where root must create nothing.
//
// The engine's runtime enters only the root directory. It still has descriptors of the host open at that time, and a link in
// the container could lead to one of them (CVE-2024-21626). This process has no such descriptors, and EnterDir follows no
// links.
func EnterDir(dir string, resolve uint64) error {
	if dir == "" {
		return nil
	}
	fd, err := openDir(dir, resolve|unix.RESOLVE_NO_MAGICLINKS)
	if errors.Is(err, unix.ENOSYS) && resolve == 0 { // gVisor has no openat2.
		return errors.Join(os.MkdirAll(dir, 0o755), os.Chdir(dir))
	}
	if err == nil {
		defer unix.Close(fd)
		err = unix.Fchdir(fd)
	}
	return err
}

// openDir opens a directory, and creates it and its parents if they are missing.
func openDir(dir string, resolve uint64) (fd int, err error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolve}
	fd, err = unix.Openat2(unix.AT_FDCWD, "/", &how)
	at := "/"
	for name := range strings.SplitSeq(dir, "/") {
		if err != nil {
			return -1, err
		}
		above := fd
		at = path.Join(at, name)
		if fd, err = unix.Openat2(unix.AT_FDCWD, at, &how); errors.Is(err, unix.ENOENT) {
			if err = unix.Mkdirat(above, name, 0o755); err == nil {
				fd, err = unix.Openat2(unix.AT_FDCWD, at, &how)
			}
		}
		unix.Close(above)
	}
	return fd, err
}
