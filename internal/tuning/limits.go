package tuning

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"hinit/internal/blocking"
	"hinit/internal/procstat"

	"golang.org/x/sys/unix"
)

// cgroupDir is where the container sees its own cgroup.
const cgroupDir = "/sys/fs/cgroup"

const (
	// descriptorsEach is what a service with a log costs: two pipes. Log files are open only while something is written.
	descriptorsEach = 2
	// descriptorsKept stay free of services: for the control socket, its clients, log files and profiles.
	descriptorsKept = 64
	// processesKept is the same of processes and threads: hinit's own, hooks, docker exec.
	processesKept = 32
)

const (
	// processMargin is how many process numbers of the container are left when the status says that they run out.
	processMargin = 8
	// mostScanned is up to which limit processes are counted to find the service with most of them.
	mostScanned = 8192
)

// InheritNothing lets no child inherit more than the three standard descriptors: whoever started PID 1 may have left others open,
// to files that the agent must not read.
func InheritNothing() {
	if unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	entries, err := os.ReadDir("/proc/self/fd") // a kernel before 5.11, or seccomp
	if err != nil {
		return
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

// TooFewFor says which limits of the container are too low for so many services.
func TooFewFor(services int) (warnings []string) {
	needed := services*descriptorsEach + descriptorsKept
	if limit := descriptorLimit(); uint64(needed) > limit {
		warnings = append(warnings, fmt.Sprintf("%d services need about %d file descriptors and %d are allowed, so not all of them can run; start the container with --ulimit nofile=%d",
			services, needed, limit, roundUp(needed)))
	}
	if limit, ok := processLimit(cgroupDir); ok && services+processesKept > limit {
		warnings = append(warnings, fmt.Sprintf("%d services need at least %d processes and %d are allowed, so not all of them can run; start the container with a higher --pids-limit",
			services, services+processesKept, limit))
	}
	return warnings
}

// descriptorLimit is how many files hinit may have open. The Go runtime has raised the soft limit to the hard one.
func descriptorLimit() uint64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return unix.RLIM_INFINITY
	}
	return limit.Cur
}

// roundUp is the next power of two, from 1024 on.
func roundUp(n int) int { return max(1024, 1<<bits.Len(uint(n-1))) }

// SpareDescriptors returns an error when only those descriptors are left that no service may have. New descriptors get the lowest free
// number (open(2)), so one number tells how many there are, if no lower one was closed meanwhile.
func SpareDescriptors() error {
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

// ProcessesUsedUp says that the process numbers of the container are used up, and by which service, else "". leaders returns the main
// processes of the services, by name; it is called only where they are used up. ProcessesUsedUp does not block on a disk.
func ProcessesUsedUp(leaders func() map[string]int) (text string) {
	_ = blocking.Do(blocking.Short, func() error {
		text = processesUsedUp(cgroupDir, "/proc", leaders)
		return nil
	})
	return text
}

func processesUsedUp(cgroup, proc string, leaders func() map[string]int) string {
	limit, ok := processLimit(cgroup)
	if !ok {
		return ""
	}
	used, ok := cgroupNumber(cgroup, "pids.current", "pids/pids.current")
	if !ok || used < limit-processMargin {
		return ""
	}
	text := fmt.Sprintf("%d of the %d process numbers of the container are used, so it can start next to nothing", used, limit)
	if limit > mostScanned {
		return text
	}
	// A service that has few of them is not to blame: the others belong to no service, or have left theirs.
	if name, most := mostProcesses(proc, leaders()); most >= limit/4 {
		text += fmt.Sprintf("; %s has %d of them or more; to end it: hinit stop %s", name, most, name)
	}
	return text
}

// processLimit is the number of processes that the container's cgroup allows, if it has such a limit.
func processLimit(cgroup string) (int, bool) {
	return cgroupNumber(cgroup, "pids.max", "pids/pids.max")
}

// FreeProcesses returns how many process numbers the container may take besides those in use. limited is false where its control group
// tells no limit; one around it may have a limit all the same.
func FreeProcesses() (free int, limited bool) {
	limit, limited := processLimit(cgroupDir)
	used, told := cgroupNumber(cgroupDir, "pids.current", "pids/pids.current")
	return limit - used, limited && told
}

// cgroupNumber reads a number of the control group, where it has the first of these names: of version 2 or 1. "max" is none.
func cgroupNumber(cgroup string, names ...string) (int, bool) {
	for _, name := range names {
		if text, err := os.ReadFile(filepath.Join(cgroup, name)); err == nil {
			n, err := strconv.Atoi(strings.TrimSpace(string(text)))
			return n, err == nil
		}
	}
	return 0, false
}

// mostProcesses finds the service with most processes, by their session. A process that has begun another one is not counted.
func mostProcesses(proc string, leaders map[string]int) (name string, most int) {
	sessions := make(map[int]int)
	_ = procstat.Each(proc, func(st procstat.Stat) { sessions[st.Session]++ }) // what can be read counts; 0 is no session
	for _, service := range slices.Sorted(maps.Keys(leaders)) {
		leader := leaders[service]
		if n := sessions[leader]; leader > 1 && n > most {
			name, most = service, n
		}
	}
	return name, most
}
