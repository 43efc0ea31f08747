package container

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// descriptorsEach is what a service with a log costs: two pipes. Log files are open only while something is written.
	descriptorsEach = 2
	// descriptorsKept stay free of services: for the control socket and its callers, log files, profiles being read. Who runs
	// out of them could neither be asked what is wrong nor write what the services say.
	descriptorsKept = 64
	// processesKept is the same of processes and threads: hinit's own, hooks, docker exec.
	processesKept = 32
)

// ceilings warns when so many services can't all run here, before the first that can't.
func (c *container) ceilings(services int) {
	if limit := descriptorLimit(); uint64(services*descriptorsEach+descriptorsKept) > limit {
		c.warn("%d services need about %d file descriptors and %d are allowed, so not all of them can run; start the container with --ulimit nofile=%d",
			services, services*descriptorsEach+descriptorsKept, limit, roundUp(services*descriptorsEach+descriptorsKept))
	}
	if limit, ok := processLimit("/sys/fs/cgroup"); ok && services+processesKept > limit {
		c.warn("%d services need at least %d processes and %d are allowed, so not all of them can run; start the container with a higher --pids-limit",
			services, services+processesKept, limit)
	}
}

// descriptorLimit is how many files hinit may have open. The Go runtime has raised the soft limit to the hard one.
func descriptorLimit() uint64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return unix.RLIM_INFINITY
	}
	return limit.Cur
}

// processLimit is the number of processes that the container's cgroup allows, if it has such a limit.
func processLimit(cgroups string) (int, bool) {
	for _, name := range []string{"/pids.max", "/pids/pids.max"} { // of version 2 and 1
		text, err := os.ReadFile(cgroups + name)
		if err != nil {
			continue
		}
		limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
		return limit, err == nil // "max" is none
	}
	return 0, false
}

// roundUp is the next power of two.
func roundUp(n int) int {
	p := 1024
	for p < n {
		p *= 2
	}
	return p
}

// spareDescriptors returns an error when only those are left that no service may have. New descriptors get the lowest free
// number (open(2)), so one number tells how many there are, if nobody has closed lower ones meanwhile.
func spareDescriptors() error {
	limit := descriptorLimit()
	fd, err := unix.FcntlInt(uintptr(0), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	if err == nil && uint64(fd)+descriptorsEach+descriptorsKept <= limit || errors.Is(err, unix.EBADF) {
		return nil
	}
	return fmt.Errorf("%d file descriptors are allowed, and hinit keeps the last %d for itself; start the container with a higher --ulimit nofile", limit, descriptorsKept)
}
