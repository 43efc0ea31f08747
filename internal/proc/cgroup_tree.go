package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// leafCgroup is the control group of this process and of what `docker exec` starts. It is below the container's own, because a
	// group that hands controllers on can have no processes (cgroups(7), "no internal processes").
	leafCgroup = "hinit"
	// cgroupPrefix begins the names of the groups of services beside it.
	cgroupPrefix = leafCgroup + "-"
	// moves is how often processes are moved out of the container's own group: more may come in meanwhile.
	moves = 10
)

// Cgroups is the control group of this container (cgroups(7), version 2), which has a group below it for each service that wants one.
type Cgroups struct {
	dir         string
	controllers []string // that the groups below have
}

// DivideCgroup moves everything in the container's own control group into a group below it, and hands the controllers of memory,
// processor and processes on. It changes nothing if that is done already. The error says why this container cannot have groups.
// Only PID 1 may: whatever else is in its group is then its own. It may wait for a lock of the kernel's.
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
	for range moves {
		if err := c.vacate(); err != nil {
			return nil, err
		}
		if c.handOn() {
			break
		}
	}
	return c, nil
}

// vacate moves the processes of the container's own group into the leaf.
func (c *Cgroups) vacate() error {
	text, err := os.ReadFile(c.dir + "/cgroup.procs")
	if err != nil {
		return fmt.Errorf("cannot read its control group: %w", err)
	}
	for pid := range bytes.FieldsSeq(text) {
		if string(pid) == "0" {
			return errors.New("its control group has processes of others; start the container with --cgroupns=private")
		}
		err := putInto(c.dir+"/"+leafCgroup+"/cgroup.procs", string(pid))
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("cannot move process %s into a control group: %w", pid, err)
		}
	}
	return nil
}

// handOn hands on the controllers that there are, and reports whether no process that came in was in the way.
func (c *Cgroups) handOn() bool {
	text, _ := os.ReadFile(c.dir + "/cgroup.controllers")
	c.controllers = nil
	for _, name := range []string{"memory", "cpu", "pids"} {
		if !slices.Contains(strings.Fields(string(text)), name) {
			continue
		}
		switch err := putInto(c.dir+"/cgroup.subtree_control", "+"+name); {
		case err == nil:
			c.controllers = append(c.controllers, name)
		case errors.Is(err, unix.EBUSY):
			return false
		}
	}
	return true
}

// Has reports whether the groups have a controller. Nil has none.
func (c *Cgroups) Has(controller string) bool {
	return c != nil && slices.Contains(c.controllers, controller)
}

// Caps are the limits of a service's control group. 0 is none.
type Caps struct {
	High, Max uint64 // bytes
	Weight    int
	PIDs      int
}

// Set has the command enter a control group of its service's own with these limits, as far as there are controllers for them. A limit
// that there was before is taken back.
func (c *Cgroups) Set(s *Setup, service string, limits Caps) {
	s.Cgroup, s.Caps = c.dir+"/"+cgroupPrefix+service, nil
	add := func(controller, file string, n uint64, none string) {
		if n > 0 {
			none = strconv.FormatUint(n, 10)
		}
		if c.Has(controller) {
			s.Caps = append(s.Caps, none+":"+file)
		}
	}
	add("memory", "memory.high", limits.High, "max")
	add("memory", "memory.max", limits.Max, "max")
	add("cpu", "cpu.weight", uint64(limits.Weight), "100")
	add("pids", "pids.max", uint64(limits.PIDs), "max")
}

// Remove removes the control group of a service if it is empty.
func (c *Cgroups) Remove(service string) error {
	return unix.Rmdir(c.dir + "/" + cgroupPrefix + service)
}

// InGroup reports whether a process is in the control group that hinit has made for a service.
func InGroup(pid int, service string) bool {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	return slices.Contains(strings.Split(cgroupPath(text, ""), "/"), cgroupPrefix+service)
}

// grouped finds the run whose control group a process is in, 0 for none. The agent cannot leave it.
func (t *Table) grouped(pid int) (id uint64) {
	at := ""
	for _, r := range t.runs {
		if r.cgroup == "" {
			continue
		}
		if at == "" {
			if at = path.Join(cgroupRoot, cgroupPath(t.proc.read(strconv.Itoa(pid)+"/cgroup"), "")); at == cgroupRoot {
				return 0
			}
		}
		// The run of a finish or stop command is in the group too; the oldest is the service's.
		if (at == r.cgroup || strings.HasPrefix(at, r.cgroup+"/")) && (id == 0 || r.id < id) {
			id = r.id
		}
	}
	return id
}

// killGroup kills everything in a run's control group at once, also what forks faster than it can be looked for, unless another run
// is in the group.
func (t *Table) killGroup(r *run) {
	if r.cgroup == "" {
		return
	}
	for _, o := range t.runs {
		if o != r && o.cgroup == r.cgroup {
			return
		}
	}
	_ = putInto(r.cgroup+"/cgroup.kill", "1") // where the kernel has none (before 5.14), the rest of the kill does
}

// putInto writes a file of the kernel's.
func putInto(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
