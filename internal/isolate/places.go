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

// confinement is what Landlock confines: all access to files, TCP ports that are listened on, signals and abstract sockets. Connections
// to other machines stay free.
var confinement = landlock.Config{
	HandledAccessFS: ll.AccessFSExecute | ll.AccessFSWriteFile | ll.AccessFSReadFile | ll.AccessFSReadDir | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile |
		ll.AccessFSMakeChar | ll.AccessFSMakeDir | ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeBlock | ll.AccessFSMakeSym |
		ll.AccessFSRefer | ll.AccessFSTruncate | ll.AccessFSIoctlDev | ll.AccessFSResolveUnix,
	HandledAccessNet: ll.AccessNetBindTCP,
	Scoped:           ll.ScopeAbstractUnixSocket | ll.ScopeSignal,
}

// shared are the places of a container that all its users write to, or that have files of other programs. The devices that every program
// needs are in the rules by name.
var shared = []string{"/tmp", "/var/tmp", "/run", "/var/run", "/dev", "/root", "/proc", "/sys"}

// places are files and directories that are not part of the image.
type places []string

// hiddenPlaces adds the shared places and the mounts of the container to more, and where links lead. A mounted file is the engine's, such as
// /etc/hosts.
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

// unescape returns a path of mountinfo, whose spaces are octal numbers (proc_pid_mountinfo(5)).
func unescape(path string) string {
	for _, c := range []byte(" \t\n\\") {
		path = strings.ReplaceAll(path, `\`+fmt.Sprintf("%03s", strconv.FormatUint(uint64(c), 8)), string(c))
	}
	return path
}

// image returns the largest directories, and the other files, beneath dir that have no hidden place in them. Links lead to a place that is
// found by its own name, or is hidden.
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
