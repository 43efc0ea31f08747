package proc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupRoot is where the kernel shows the container its control groups (cgroups(7)).
const cgroupRoot = "/sys/fs/cgroup"

// maxCgroups is the maximum number of cgroups that are read for one service: its own cgroup and those below it. An agent may
// create any number.
const maxCgroups = 64

// memoryCgroups finds the control group in which the kernel counts the memory of a service.
type memoryCgroups struct {
	root         string
	readProcFile func(name string) []byte // function that reads a file below /proc
}

// cgroupOf returns the directory of the cgroup of a process. It returns "" if the process is in the container's own cgroup.
// Any other cgroup was made by hinit ([Cgroups]), by the service itself, or by a program that started the service.
func (c memoryCgroups) cgroupOf(pid int) string {
	for _, v := range []struct{ controller, dir string }{{"memory", "memory"}, {"", ""}} { // control groups of version 1, then of version 2
		own, of := containerCgroup(cgroupPath(c.readProcFile("self/cgroup"), v.controller)), cgroupPath(c.readProcFile(strconv.Itoa(pid)+"/cgroup"), v.controller)
		below, is := strings.CutPrefix(of, strings.TrimSuffix(own, "/")+"/")
		if !is || own == "" || own == containerCgroup(of) || strings.Contains(of, "..") {
			continue
		}
		// the path starts at the root of the host or of the container, depending on the cgroup namespace
		for _, dir := range []string{path.Join(c.root, v.dir, of), path.Join(c.root, v.dir, below)} {
			if pids, ok := cgroupPIDs(dir); ok && pids[pid] {
				return dir
			}
		}
	}
	return ""
}

// oomKillsInOwnCgroup returns how many processes the kernel has killed for lack of memory in the cgroup of the process main.
// The result ok is false if hinit did not make this cgroup, or if the cgroup does not limit memory.
func (c memoryCgroups) oomKillsInOwnCgroup(main int) (killed uint64, ok bool) {
	dir := c.cgroupOf(main)
	if !strings.HasPrefix(path.Base(dir), cgroupPrefix) {
		return 0, false
	}
	return oomKillsIn(dir)
}

// containerCgroup returns the cgroup of the container, given the cgroup of PID 1. They differ if PID 1 has moved into
// leafCgroup.
func containerCgroup(path string) string {
	if above, is := strings.CutSuffix(path, "/"+leafCgroup); is {
		return cmp.Or(above, "/")
	}
	return path
}

// cgroupPath finds the path of a cgroup in text, the content of /proc/PID/cgroup. Version 1 has a path for each controller,
// such as "memory". The empty controller stands for version 2, which has one path for all.
func cgroupPath(text []byte, controller string) string {
	for line := range bytes.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), ":")
		controllers, at, ok := strings.Cut(rest, ":")
		if ok && slices.Contains(strings.Split(controllers, ","), controller) {
			return at
		}
	}
	return ""
}

// cgroupPIDs returns the processes in a cgroup and in the cgroups below it. ok is false if a cgroup can't be read, or if
// there are more than maxCgroups.
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

// cgroupMemory returns the memory that a cgroup uses, in bytes, and two parts of it: shared memory, and kernel memory such as
// TCP buffers. Page tables count as memory of processes. The total leaves out inactive file pages, because the
// kernel drops them first. With swap it includes swapped-out memory. Otherwise it also leaves out active file pages and
// reclaimable slabs. ok is false if the cgroup does not measure memory.
func cgroupMemory(dir string, swap bool) (n, shared, kernel uint64, ok bool) {
	stat, _ := os.ReadFile(path.Join(dir, "memory.stat"))
	value := func(name string) uint64 { n, _ := numberField(stat, name); return n }
	idle, swapped, shared := uint64(0), uint64(0), max(value("shmem"), value("total_shmem"))
	kernel = value("kernel") - min(value("kernel"), value("slab_reclaimable")+value("pagetables")) + value("sock")
	if n, ok = readNumber(path.Join(dir, "memory.current")); ok {
		idle = value("inactive_file")
		swapped, _ = readNumber(path.Join(dir, "memory.swap.current"))
	} else if n, ok = readNumber(path.Join(dir, "memory.usage_in_bytes")); ok {
		idle, swapped = value("total_inactive_file"), value("total_swap")
	}
	if !swap {
		swapped = 0
		idle += value("slab_reclaimable") + max(value("active_file"), value("total_active_file"))
	}
	return n - min(idle, n) + swapped, shared, kernel, ok
}

// readNumber reads a cgroup file that holds one number. ok is false if it holds "max" (no limit) or can't be read.
func readNumber(file string) (n uint64, ok bool) {
	text, _ := os.ReadFile(file)
	n, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
	return n, err == nil
}

// numberField returns the number after a name in a cgroup file such as memory.stat. Each line of such a file has a name and a
// number.
func numberField(text []byte, name string) (n uint64, ok bool) {
	for line := range bytes.Lines(text) {
		if f := bytes.Fields(line); len(f) == 2 && string(f[0]) == name {
			n, err := strconv.ParseUint(string(f[1]), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

const (
	// leafCgroup is the control group of PID 1, and of processes that `docker exec` starts. PID 1 can't stay in the container's
	// own group, because a group whose children have controllers must not contain processes (cgroups(7), "no internal
	// processes").
	leafCgroup = "hinit"
	// cgroupPrefix is the prefix of the name of a service's control group. These groups are siblings of leafCgroup.
	cgroupPrefix = leafCgroup + "-"
	// maxMoveAttempts is how many times DivideCgroup moves all processes out of the container's own group. Processes that start
	// during a move may appear in the group again.
	maxMoveAttempts = 10
)

// Cgroups is the container's own control group (cgroups(7), version 2). It has a child group for each service with limits.
type Cgroups struct {
	dir         string
	controllers []string // controllers that the child groups can use
}

// DivideCgroup prepares the container's control group for child groups: it moves all processes into leafCgroup, and enables the
// controllers for memory, processor and number of processes. A second call changes nothing. The error says why this container
// can't have child groups. Only PID 1 may call DivideCgroup, because every process in the group must belong to this container.
// The call may wait for a lock of the kernel.
func DivideCgroup() (*Cgroups, error) { return divideCgroup(cgroupRoot) }

func divideCgroup(root string) (*Cgroups, error) {
	var fs unix.Statfs_t
	switch err := unix.Statfs(root, &fs); {
	case os.Getpid() != 1 || os.Geteuid() != 0:
		return nil, errors.New("only PID 1 as root divides its control group")
	case err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC:
		return nil, fmt.Errorf("%s has no control groups of version 2", root)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	dir := path.Join(root, containerCgroup(cgroupPath(own, "")))
	if pids, ok := cgroupPIDs(dir); err != nil || !ok || !pids[os.Getpid()] {
		return nil, fmt.Errorf("%s does not show the container's own control group; start the container with --cgroupns=private", root)
	}
	if _, err := os.Stat(dir + "/cgroup.type"); err != nil {
		return nil, fmt.Errorf("%s is the machine's own control group; start the container with --cgroupns=private", dir)
	}
	if err := os.Mkdir(dir+"/"+leafCgroup, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("its control group is not writable (%w)", err)
	}
	c := &Cgroups{dir: dir}
	for range maxMoveAttempts {
		if err := c.moveToLeaf(); err != nil {
			return nil, err
		}
		if c.enableControllers() {
			break
		}
	}
	return c, nil
}

// moveToLeaf moves all processes of the container's own group into leafCgroup.
func (c *Cgroups) moveToLeaf() error {
	text, err := os.ReadFile(c.dir + "/cgroup.procs")
	if err != nil {
		return fmt.Errorf("cannot read its control group: %w", err)
	}
	for pid := range bytes.FieldsSeq(text) {
		if string(pid) == "0" {
			return errors.New("its control group has processes of others; start the container with --cgroupns=private")
		}
		if err := WriteKernelFile(c.dir+"/"+leafCgroup+"/cgroup.procs", string(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("cannot move process %s into a control group: %w", pid, err)
		}
	}
	return nil
}

// enableControllers enables the controllers for child groups. It returns false if a new process in the container's own group
// prevents that. The caller then moves that process and tries again.
func (c *Cgroups) enableControllers() bool {
	text, _ := os.ReadFile(c.dir + "/cgroup.controllers")
	c.controllers = nil
	for _, name := range []string{"memory", "cpu", "pids"} {
		if !slices.Contains(strings.Fields(string(text)), name) {
			continue
		}
		switch err := WriteKernelFile(c.dir+"/cgroup.subtree_control", "+"+name); {
		case err == nil:
			c.controllers = append(c.controllers, name)
		case errors.Is(err, unix.EBUSY):
			return false
		}
	}
	return true
}

// HasController reports whether child groups have a controller, such as "memory". A nil Cgroups has none.
func (c *Cgroups) HasController(controller string) bool {
	return c != nil && slices.Contains(c.controllers, controller)
}

// CgroupLimits are the limits of one service's control group. 0 means no limit.
type CgroupLimits struct {
	High, Max uint64 // memory.high and memory.max, in bytes
	// share of the processor, relative to other groups (cpu.weight); 0 means the default, 100
	Weight int
	// maximum number of processes and threads (pids.max)
	PIDs int
}

// Assign makes the new process run in the control group of a service, with these limits. They replace all earlier limits of the
// group. Assign ignores a limit whose controller is not available.
func (c *Cgroups) Assign(s *Setup, service string, limits CgroupLimits) {
	s.Cgroup, s.CgroupWrites = c.dir+"/"+cgroupPrefix+service, nil
	add := func(controller, file string, n uint64, none string) {
		if n > 0 {
			none = strconv.FormatUint(n, 10)
		}
		if c.HasController(controller) {
			s.CgroupWrites = append(s.CgroupWrites, none+":"+file)
		}
	}
	add("memory", "memory.high", limits.High, "max")
	add("memory", "memory.max", limits.Max, "max")
	add("cpu", "cpu.weight", uint64(limits.Weight), "100")
	add("pids", "pids.max", uint64(limits.PIDs), "max")
}

// Remove removes the control group of a service. It fails if the group still contains a process.
func (c *Cgroups) Remove(service string) error {
	return unix.Rmdir(c.dir + "/" + cgroupPrefix + service)
}

// InServiceCgroup reports whether a process is in the control group that hinit made for a service.
func InServiceCgroup(pid int, service string) bool {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	return slices.Contains(strings.Split(cgroupPath(text, ""), "/"), cgroupPrefix+service)
}

// runByCgroup returns the run whose control group contains process pid. An agent's process can't leave its control group, so
// the answer is certain. It is 0 if several services share the group, as commands of a profile share the group of its gateway.
func (t *Table) runByCgroup(pid int) (id uint64) {
	at, service := "", ""
	for _, r := range t.runs {
		if r.cgroup == "" {
			continue
		}
		if at == "" {
			at = path.Join(cgroupRoot, cgroupPath(t.procfs.readFile(strconv.Itoa(pid)+"/cgroup"), "")) + "/"
		}
		switch inside := strings.HasPrefix(at, r.cgroup+"/"); {
		case inside && id != 0 && r.service != service:
			return 0
		// prefer the run of the service, because its finish and stop commands have higher numbers
		case inside && (id == 0 || r.id < id):
			id, service = r.id, r.service
		}
	}
	return id
}

// killCgroup kills all processes in the control group of a run in one step, even if they fork fast. It does nothing if another
// run uses the same group.
func (t *Table) killCgroup(r *run) {
	if r.cgroup == "" {
		return
	}
	for _, o := range t.runs {
		if o != r && o.cgroup == r.cgroup {
			return
		}
	}
	// Linux before 5.14 lacks the file, and the caller then kills the processes one by one.
	_ = WriteKernelFile(r.cgroup+"/cgroup.kill", "1")
}

// WriteKernelFile writes to an existing file of a kernel file system such as /sys/fs/cgroup. It never creates a file.
func WriteKernelFile(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
