package proc

import (
	"bytes"
	"cmp"
	"os"
	"path"
	"strconv"
	"strings"
)

// cgroupRoot is the directory in which the container sees its cgroups (cgroups(7)).
const cgroupRoot = "/sys/fs/cgroup"

// maxCgroups is the maximum number of cgroups that are read for one service: its own cgroup and the cgroups below it.
const maxCgroups = 64

// memoryCgroups finds the cgroups in which the kernel measures the memory of services.
type memoryCgroups struct {
	root         string
	readProcFile func(name string) []byte // reads a file below /proc
}

// cgroupOf returns the directory of a process's cgroup if it is below the container's own cgroup, and otherwise "". Such a cgroup
// was made by hinit ([Cgroups]), by the service itself, or by a program that started the service.
func (c memoryCgroups) cgroupOf(pid int) string {
	for _, v := range []struct{ controller, dir string }{{"memory", "memory"}, {"", ""}} { // version 1, then version 2
		own, of := containerCgroup(cgroupPath(c.readProcFile("self/cgroup"), v.controller)), cgroupPath(c.readProcFile(strconv.Itoa(pid)+"/cgroup"), v.controller)
		if own == "" || of == "" || own == containerCgroup(of) || strings.Contains(of, "..") {
			continue
		}
		below, is := strings.CutPrefix(of, strings.TrimSuffix(own, "/")+"/")
		if !is {
			continue
		}
		for _, dir := range []string{path.Join(c.root, v.dir, of), path.Join(c.root, v.dir, below)} { // with and without a cgroup namespace
			if pids, ok := cgroupPIDs(dir); ok && pids[pid] {
				return dir
			}
		}
	}
	return ""
}

// oomKillsInOwnCgroup returns the number of processes that the kernel has killed for lack of memory in the cgroup of the process
// main. ok is true only if hinit made this cgroup and the cgroup limits memory.
func (c memoryCgroups) oomKillsInOwnCgroup(main int) (killed uint64, ok bool) {
	dir := c.cgroupOf(main)
	if !strings.HasPrefix(path.Base(dir), cgroupPrefix) {
		return 0, false
	}
	return oomKillsIn(dir)
}

// containerCgroup returns the container's cgroup, given the cgroup of PID 1. They differ if PID 1 has moved into the child
// cgroup leafCgroup.
func containerCgroup(path string) string {
	if above, is := strings.CutSuffix(path, "/"+leafCgroup); is {
		return cmp.Or(above, "/")
	}
	return path
}

// cgroupPath returns the path of the cgroup for a controller. text is the content of /proc/PID/cgroup. An empty controller
// stands for version 2, which has one hierarchy for all controllers.
func cgroupPath(text []byte, controller string) string {
	for line := range bytes.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), ":")
		controllers, at, ok := strings.Cut(rest, ":")
		for one := range strings.SplitSeq(controllers, ",") {
			if ok && one == controller {
				return at
			}
		}
	}
	return ""
}

// cgroupPIDs returns the processes in a cgroup and in the cgroups below it. ok is false if they can't be read.
func cgroupPIDs(dir string) (pids map[int]bool, ok bool) {
	pids = make(map[int]bool)
	dirs := []string{dir}
	for i := 0; i < len(dirs); i++ {
		text, err := os.ReadFile(path.Join(dirs[i], "cgroup.procs"))
		if err != nil {
			return nil, false
		}
		for word := range bytes.FieldsSeq(text) {
			if pid, err := strconv.Atoi(string(word)); err == nil {
				pids[pid] = true
			}
		}
		list, err := os.ReadDir(dirs[i])
		if err != nil || len(dirs) > maxCgroups {
			return nil, false
		}
		for _, e := range list {
			if e.IsDir() {
				dirs = append(dirs, path.Join(dirs[i], e.Name()))
			}
		}
	}
	return pids, true
}

// cgroupMemory returns the memory that a cgroup uses, in bytes, and the parts of it that are shared memory and memory of the
// kernel. The latter includes the buffers of TCP, but no page tables, which belong to processes. Inactive file pages don't count,
// because the kernel drops these first. If swap is true, swapped-out memory is included.
// If swap is false, active file pages and reclaimable slabs are left out, because the kernel can drop these later. ok is false if
// the cgroup does not measure memory.
func cgroupMemory(dir string, swap bool) (n, shared, kernel uint64, ok bool) {
	stat, _ := os.ReadFile(path.Join(dir, "memory.stat"))
	value := func(name string) uint64 { n, _ := valueOf(stat, name); return n }
	idle, swapped, shared := uint64(0), uint64(0), max(value("shmem"), value("total_shmem"))
	kernel = value("kernel") - min(value("kernel"), value("slab_reclaimable")+value("pagetables")) + value("sock")
	if n, ok = readNumber(path.Join(dir, "memory.current")); ok { // version 2
		idle = value("inactive_file")
		swapped, _ = readNumber(path.Join(dir, "memory.swap.current"))
	} else if n, ok = readNumber(path.Join(dir, "memory.usage_in_bytes")); ok { // version 1
		idle, swapped = value("total_inactive_file"), value("total_swap")
	}
	if !swap {
		swapped = 0
		idle += value("slab_reclaimable") + max(value("active_file"), value("total_active_file"))
	}
	return n - min(idle, n) + swapped, shared, kernel, ok
}

// readNumber reads a file of a cgroup that holds one number. ok is false for "max" and for a file that can't be read.
func readNumber(file string) (n uint64, ok bool) {
	text, _ := os.ReadFile(file)
	n, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
	return n, err == nil
}

// valueOf returns the number after a name in a file of a cgroup, such as memory.stat.
func valueOf(text []byte, name string) (n uint64, ok bool) {
	for line := range bytes.Lines(text) {
		if f := bytes.Fields(line); len(f) == 2 && string(f[0]) == name {
			n, err := strconv.ParseUint(string(f[1]), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
