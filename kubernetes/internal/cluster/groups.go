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

// parentGroup is the parent control group of both nodes. Each cache has its own group, because runs with different caches can run
// at the same time. A kubelet kills all processes in its group that it doesn't know.
var parentGroup = "hinit-kubernetes" + cacheSuffix()

// cacheSuffix returns a suffix for names that differs between caches, or "" for the default cache.
func cacheSuffix() string {
	dir := os.Getenv(CacheVar)
	if dir == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(dir))
	return "-" + hex.EncodeToString(sum[:4])
}

// onlyCgroupV2 reports whether this machine uses only cgroup v2.
func onlyCgroupV2() bool {
	var st unix.Statfs_t
	return unix.Statfs(groupsRoot, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// cgroupRoots returns the root directories of the control groups. There is one with cgroup v2, and one for each controller
// with cgroup v1.
func cgroupRoots() []string {
	if onlyCgroupV2() {
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

func createGroups() error {
	for _, h := range cgroupRoots() {
		for _, dir := range []string{parentGroup, parentGroup + "/" + nodeName(1), parentGroup + "/" + nodeName(2)} {
			parent, path := filepath.Dir(filepath.Join(h, dir)), filepath.Join(h, dir)
			if onlyCgroupV2() {
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
			// Fill the new cpuset, because cgroup v1 makes it empty and then lets no process in.
			for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
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

// removeGroups removes the control groups of this run, or of an earlier run that was killed. It tries for up to five seconds,
// because the last processes in the groups may still be ending.
func removeGroups() {
	for range 50 {
		left := false
		for _, h := range append(cgroupRoots(), groupsRoot+"/unified") { // Include the hierarchy in which runc creates groups.
			var dirs []string
			_ = filepath.WalkDir(filepath.Join(h, parentGroup), func(path string, d fs.DirEntry, err error) error {
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
