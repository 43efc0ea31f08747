package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/isolation"
	"hinit/internal/isolation/ports"
)

// rightsByABI is the number of file rights in each version of Landlock from 0 to 9 (landlock(7)).
var rightsByABI = [...]int{0, 13, 14, 15, 15, 16, 16, 16, 16, 17}

// buildRules fills ruleBuffer with the rules of this container. more lists further paths to hide. As far as the kernel can,
// Landlock restricts the files, the TCP and UDP ports to listen on, signals and abstract sockets. It does not restrict
// connections to other machines.
func buildRules(more []string) error {
	abi := isolation.LandlockABI()
	const readFile = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX
	const writeFile = readFile | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	all := uint64(1)<<rightsByABI[min(abi, len(rightsByABI)-1)] - 1
	*ruleHeader = rules{handledFS: all, writeDir: all, writeFile: all & writeFile, readDir: all & (readFile | unix.LANDLOCK_ACCESS_FS_READ_DIR), readFile: all & readFile}
	if abi >= 4 {
		ruleHeader.handledNet = unix.LANDLOCK_ACCESS_NET_BIND_TCP
	}
	if abi >= 10 {
		ruleHeader.handledNet |= unix.LANDLOCK_ACCESS_NET_BIND_UDP
	}
	if abi >= 6 {
		ruleHeader.scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	first, last := ports.EphemeralRange()
	ruleHeader.firstPort, ruleHeader.lastPort = uint64(first), uint64(last)
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, "/proc/self/exe", 0, unix.STATX_BASIC_STATS, &st); err != nil {
		return fmt.Errorf("cannot look at its own program: %w", err)
	}
	ruleHeader.programID = programIDOf(&st)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("cannot read the mounts of the container: %w", err)
	}
	dirs, err := findHiddenPaths(string(mounts), more).imagePaths("/")
	filter, filterErr := assembleFilter()
	if err := errors.Join(err, filterErr); err != nil {
		return err
	}
	var hidden, paths []byte
	for _, path := range more {
		hidden = append(append(hidden, path...), 0)
	}
	for _, path := range slices.Concat(alwaysAllowed, dirs) {
		paths = append(append(paths, path...), 0)
	}
	ruleHeader.mountsLen, ruleHeader.hiddenLen, ruleHeader.pathsLen, ruleHeader.filterLen = uint64(len(mounts)), uint64(len(hidden)), uint64(len(paths)), uint64(len(filter))
	if text := slices.Concat(mounts, hidden, paths, filter); copy(ruleBuffer[rulesHeaderSize:], text) < len(text) {
		return fmt.Errorf("cannot keep the rules of the container: its mounts and its image have %d bytes of names", len(text))
	}
	return nil
}

// alwaysAllowed lists paths that every isolated process may use. The first letter is r for reading, or w for reading and
// writing.
var alwaysAllowed = []string{
	"w/dev/pts", "r/proc", "r/sys", "w/dev/null", "w/dev/zero", "w/dev/full", "w/dev/random", "w/dev/urandom", "w/dev/tty", "w/dev/ptmx",
}

// sharedDirs lists directories in which all users of a container can write, or that contain files of other programs. Isolated
// processes see none of these directories, except for alwaysAllowed.
var sharedDirs = []string{"/tmp", "/var/tmp", "/run", "/var/run", "/dev", "/root", "/proc", "/sys"}

// hiddenPaths are files and directories outside the image that isolated processes can't see.
type hiddenPaths []string

// findHiddenPaths returns the paths in more, sharedDirs, and the mount points of the container. A path with symbolic links is
// also returned in resolved form. A mount of a single file, such as /etc/hosts, stays visible, because the container engine
// makes it.
func findHiddenPaths(mounts string, more []string) hiddenPaths {
	all := slices.Concat(more, sharedDirs)
	for line := range strings.Lines(mounts) {
		if fields := strings.Fields(line); len(fields) > 4 {
			path := unescape(fields[4])
			if info, err := os.Stat(path); path != "/" && (err != nil || info.IsDir()) {
				all = append(all, path)
			}
		}
	}
	for _, path := range slices.Clone(all) {
		if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
			all = append(all, real)
		}
	}
	return all
}

// unescape decodes a path of /proc/self/mountinfo, where white space and backslashes are octal numbers
// (proc_pid_mountinfo(5)).
func unescape(path string) string {
	for _, c := range []byte(" \t\n\\") {
		path = strings.ReplaceAll(path, fmt.Sprintf(`\%03o`, c), string(c))
	}
	return path
}

// imagePaths returns the paths below dir that isolated processes may read, each after the letter r. A directory without hidden
// entries is one path. For any other directory, imagePaths returns the visible entries. It skips symbolic links, because their
// targets are found under their own names, or are hidden.
func (p hiddenPaths) imagePaths(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list the image: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		switch {
		case entry.Type()&fs.ModeSymlink != 0, slices.Contains(p, path):
		case slices.ContainsFunc(p, func(hidden string) bool { return isBeneath(hidden, path) }):
			more, err := p.imagePaths(path)
			if err != nil && !errors.Is(err, fs.ErrPermission) {
				return nil, err
			}
			paths = append(paths, more...)
		default:
			paths = append(paths, "r"+path)
		}
	}
	return paths, nil
}
