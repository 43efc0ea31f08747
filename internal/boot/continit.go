package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

// ContInitDir is where users put scripts that run as root at boot.
const ContInitDir = "/etc/cont-init.d"

// replaced are the scripts of the image that hinit does the work of.
var replaced = []string{"01-hermes-setup", "015-supervise-perms", "02-reconcile-profiles"}

// ContInitHooks returns the scripts in dir, in the order of their bytes, as hooks for root without arguments. The scripts of
// the image that hinit replaces are left out, and so are directories, files that cannot be executed, and, because root runs
// them, scripts that the agent's user could change; lines say so. A missing directory has no scripts. It blocks on dir.
func ContInitHooks(dir string, agent *fsutil.Actor) (hooks []Hook, lines []Line) {
	skip := func(path, format string, args ...any) {
		lines = append(lines, Line{Stderr: true, Warning: true, Text: fmt.Sprintf("cont-init: warning: skipping %s: "+format, append([]any{path}, args...)...)})
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			skip(dir, "%v", bare(err))
		}
		return nil, lines
	}
	if info, err := os.Stat(dir); err == nil && len(entries) > 0 && agentCanWrite(dir, info, agent) {
		skip(dir, "the agent's user can write it, and root would run what is in it; give it to root or mount it read-only")
		return nil, lines
	}
	for _, e := range entries { // os.ReadDir sorts by bytes
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path)
		switch {
		case slices.Contains(replaced, e.Name()):
			lines = append(lines, Line{Stderr: true, Text: "cont-init: info: skipping " + path + ": hinit does its work"})
		case err != nil:
			skip(path, "%v", bare(err))
		case info.IsDir():
		case throughAgent(path, agent):
			skip(path, "it is a link through a directory that the agent's user can write, and root would run what is put there")
		case !info.Mode().IsRegular(), info.Mode().Perm()&0o111 == 0:
			skip(path, "it cannot be executed; chmod +x it")
		case agentCanWrite(path, info, agent):
			skip(path, "the agent's user can write it, and root would run it; give it to root or mount it read-only")
		default:
			hooks = append(hooks, Hook{Name: path, Command: []string{path}, User: "root", Timeout: contInitTimeout, ContInit: true})
		}
	}
	return hooks, lines
}

// throughAgent reports whether a script is a link whose target the agent's user could exchange.
func throughAgent(path string, agent *fsutil.Actor) bool {
	link, err := os.Lstat(path)
	if err != nil || link.Mode()&fs.ModeSymlink == 0 || !agent.Switches() {
		return false
	}
	// Every name on the way counts, the links in it too; those that are left after resolving and those that were resolved.
	for _, way := range []func(string) (string, error){filepath.EvalSymlinks, readlink} {
		target, err := way(path)
		if err != nil {
			return true
		}
		for dir := filepath.Dir(target); ; dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if err != nil {
				return true
			}
			// In a sticky directory, such as /tmp, the agent can't touch what others have there.
			sticky := info.Mode()&fs.ModeSticky != 0 && info.Sys().(*syscall.Stat_t).Uid != agent.Identity().UID
			if !sticky && agentCanWrite(dir, info, agent) {
				return true
			}
			if dir == "/" {
				break
			}
		}
	}
	return false
}

// readlink returns where a link leads at first, as an absolute path.
func readlink(path string) (string, error) {
	target, err := os.Readlink(path)
	if err == nil && !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}
	return target, err
}

// agentCanWrite reports whether the agent's user could change a file or its mode. Where hinit itself is not root there is
// nobody to be protected.
func agentCanWrite(path string, info fs.FileInfo, agent *fsutil.Actor) bool {
	if !agent.Switches() {
		return false
	}
	var st unix.Statfs_t
	if unix.Statfs(path, &st) == nil && st.Flags&unix.ST_RDONLY != 0 {
		return false
	}
	id, owner := agent.Identity(), info.Sys().(*syscall.Stat_t)
	mode := info.Mode().Perm()
	inGroup := owner.Gid == id.GID || slices.Contains(id.Groups, owner.Gid)
	return owner.Uid == id.UID || mode&0o002 != 0 || mode&0o020 != 0 && inGroup
}
