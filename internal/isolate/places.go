package isolate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// confinement lists what Landlock confines: all access to files, TCP ports to listen on, signals and abstract sockets. Connections
// to other machines stay free.
var confinement = landlock.Config{
	HandledAccessFS: ll.AccessFSExecute | ll.AccessFSWriteFile | ll.AccessFSReadFile | ll.AccessFSReadDir | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile |
		ll.AccessFSMakeChar | ll.AccessFSMakeDir | ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeBlock | ll.AccessFSMakeSym |
		ll.AccessFSRefer | ll.AccessFSTruncate | ll.AccessFSIoctlDev | ll.AccessFSResolveUnix,
	HandledAccessNet: ll.AccessNetBindTCP,
	Scoped:           ll.ScopeAbstractUnixSocket | ll.ScopeSignal,
}

// shared are the directories that all users of a container can write to, or that hold files of other programs. The rules name the
// devices that every program needs.
var shared = []string{"/tmp", "/var/tmp", "/run", "/var/run", "/dev", "/root", "/proc", "/sys"}

// places are files and directories that do not belong to the image.
type places []string

// hiddenPlaces returns more, the shared places and the mounts of the container, each also by the path that its links lead to. It
// leaves out mounted files: the engine makes them, such as /etc/hosts.
func hiddenPlaces(more []string) (places, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot read the mounts of the container: %w", err)
	}
	all := slices.Concat(more, shared)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			if path := unescape(fields[4]); path != "/" && !isFile(path) {
				all = append(all, path)
			}
		}
	}
	for _, path := range slices.Clone(all) {
		if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
			all = append(all, real)
		}
	}
	return all, nil
}

// unescape returns a path of mountinfo. The file writes spaces as octal numbers (proc_pid_mountinfo(5)).
func unescape(path string) string {
	for _, c := range []byte(" \t\n\\") {
		path = strings.ReplaceAll(path, `\`+fmt.Sprintf("%03s", strconv.FormatUint(uint64(c), 8)), string(c))
	}
	return path
}

// image returns the largest directories below dir without a hidden place in them, and the other files. It skips links: the target of
// a link is found by its own name, or is hidden.
func (p places) image(dir string) (dirs, files []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot list the image: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		switch {
		case entry.Type()&fs.ModeSymlink != 0, slices.Contains(p, path):
		case slices.ContainsFunc(p, func(hidden string) bool { return beneath(hidden, path) }):
			moreDirs, moreFiles, err := p.image(path)
			if err != nil && !errors.Is(err, fs.ErrPermission) {
				return nil, nil, err
			}
			dirs, files = append(dirs, moreDirs...), append(files, moreFiles...)
		case entry.IsDir():
			dirs = append(dirs, path)
		default:
			files = append(files, path)
		}
	}
	return dirs, files, nil
}
