package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const groupsRoot = "/sys/fs/cgroup"

// group holds the control groups of both nodes. Runs with caches of their own have groups of their own: a kubelet ends what it does not know.
var group = "hinit-kubernetes" + ownName()

// ownName is "" for the default cache, else a suffix that no other cache has.
func ownName() string {
	dir := os.Getenv(CacheVar)
	if dir == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(dir))
	return "-" + hex.EncodeToString(sum[:4])
}

// unified reports whether this machine has control groups of version 2 only.
func unified() bool {
	var st unix.Statfs_t
	return unix.Statfs(groupsRoot, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// hierarchies are the directories that have control groups: one in version 2, one for each controller in version 1.
func hierarchies() []string {
	if unified() {
		return []string{groupsRoot}
	}
	entries, err := os.ReadDir(groupsRoot)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() && e.Name() != "unified" {
			out = append(out, filepath.Join(groupsRoot, e.Name()))
		}
	}
	return out
}

// makeGroups makes the control groups of the nodes.
func makeGroups() error {
	for _, h := range hierarchies() {
		for _, dir := range []string{group, group + "/" + nodeName(1), group + "/" + nodeName(2)} {
			parent, path := filepath.Dir(filepath.Join(h, dir)), filepath.Join(h, dir)
			if unified() {
				if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+cpu +cpuset +memory +pids"), 0); err != nil {
					return err
				}
			}
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
			if filepath.Base(h) != "cpuset" {
				continue
			}
			for _, name := range []string{"cpuset.cpus", "cpuset.mems"} { // a new group of version 1 has none, and takes no process
				text, err := os.ReadFile(filepath.Join(parent, name))
				if err == nil {
					err = os.WriteFile(filepath.Join(path, name), text, 0)
				}
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// removeGroups removes the groups of this run, or of an earlier one that was killed. Their processes are gone or about to go.
func removeGroups() {
	for range 50 {
		left := false
		for _, h := range append(hierarchies(), groupsRoot+"/unified") { // runc makes groups there too
			var dirs []string
			_ = filepath.WalkDir(filepath.Join(h, group), func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			slices.SortFunc(dirs, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
			for _, dir := range dirs {
				left = os.Remove(dir) != nil || left
			}
		}
		if !left {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
}
