package metrics

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/internal/procusage"
)

// processList is a snapshot of the container's processes.
type processList struct {
	root          string
	all           procusage.Table
	pidsByService map[string][]int // process ids by service
}

// resourceUsage is the total resource usage of several processes.
type resourceUsage struct {
	processes, threads int
	cpu                float64 // seconds, including the time of reaped children, so that the sum does not shrink when a child ends
	memory             uint64
	fds                int // number of open descriptors; -1 if a process can't be counted, because a partial sum would mislead
}

// readProcesses reads all processes from root, the path of a proc file system, and finds their services in roots. It returns nil
// if it can't read the processes.
func readProcesses(root string, roots proc.ServiceRoots) *processList {
	all, err := procusage.Read(root, nil)
	if err != nil {
		return nil
	}
	o := &processList{root: root, all: all, pidsByService: make(map[string][]int, len(roots.Mains))}
	for pid, main := range roots.Owners(all) {
		if name := roots.Mains[main]; main != 0 {
			o.pidsByService[name] = append(o.pidsByService[name], pid)
		}
	}
	return o
}

// sum returns the total resource usage of the processes with the given pids.
func (o *processList) sum(pids ...int) (u resourceUsage) {
	for _, pid := range pids {
		one, is := o.all[pid]
		if !is {
			continue
		}
		u.processes++
		u.threads += one.Threads
		u.cpu += float64(one.CPU+one.Waited) / procstat.Hertz
		u.memory += one.Memory
		if n := countFDs(o.root, pid); n < 0 || u.fds < 0 {
			u.fds = -1
		} else {
			u.fds += n
		}
	}
	return u
}

// countFDs returns the number of open descriptors of a process, or -1 if this user may not count them.
func countFDs(root string, pid int) int {
	dir, err := os.Open(filepath.Join(root, strconv.Itoa(pid), "fd"))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return 0 // the process has ended
		}
		return -1
	}
	defer dir.Close()
	n := 0
	if fsutil.Entries(int(dir.Fd()), func(string, fs.FileMode) bool { n++; return true }) != nil {
		return -1
	}
	return n
}
