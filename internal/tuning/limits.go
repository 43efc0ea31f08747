// Package tuning sets PID 1's own threads, memory and file descriptors, and checks the limits of its container. It works before
// the first service starts, or while PID 1 is idle. Its goroutines only make the threads, and then end.
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

// cgroupDir is the directory in which the container sees its own control group.
const cgroupDir = "/sys/fs/cgroup"

const (
	// descriptorsPerService is how many descriptors a service with a log needs: its two pipes. Log files are open only while they
	// are written.
	descriptorsPerService = 2
	// reservedDescriptors is how many descriptors hinit reserves for itself: control socket, clients, log files and profiles.
	reservedDescriptors = 64
	// reservedProcesses is how many processes and threads the container needs besides services: hinit itself, hooks, docker exec.
	reservedProcesses = 32
)

const (
	// lowProcessWarning is the number of free process numbers below which the status shows a warning.
	lowProcessWarning = 8
	// maxScannedLimit is the highest process limit of a container with which hinit still searches for the service with most
	// processes.
	maxScannedLimit = 8192
)

// LimitWarnings returns a warning for each limit of the container that is too low for the given number of services.
func LimitWarnings(services int) (warnings []string) {
	needed := services*descriptorsPerService + reservedDescriptors
	if limit := descriptorLimit(); uint64(needed) > limit {
		warnings = append(warnings, fmt.Sprintf("%d services need about %d file descriptors and %d are allowed, so not all of them can run; start the container with --ulimit nofile=%d",
			services, needed, limit, max(1024, 1<<bits.Len(uint(needed-1)))))
	}
	if limit, ok := processLimit(cgroupDir); ok && services+reservedProcesses > limit {
		warnings = append(warnings, fmt.Sprintf("%d services need at least %d processes and %d are allowed, so not all of them can run; raise the limit (docker: --pids-limit; a pod: podPidsLimit of the kubelet)",
			services, services+reservedProcesses, limit))
	}
	return warnings
}

func descriptorLimit() uint64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return unix.RLIM_INFINITY
	}
	return limit.Cur
}

// CheckDescriptors returns an error if another service would use descriptors that hinit reserves for itself
// (reservedDescriptors). It opens a descriptor to estimate the number of open ones, because a new descriptor gets the lowest
// free number (open(2)).
func CheckDescriptors() error {
	limit := descriptorLimit()
	fd, err := unix.FcntlInt(uintptr(0), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	if err == nil && uint64(fd)+descriptorsPerService+reservedDescriptors <= limit || errors.Is(err, unix.EBADF) {
		return nil
	}
	return fmt.Errorf("%d file descriptors are allowed, and hinit keeps the last %d for itself; start the container with a higher --ulimit nofile", limit, reservedDescriptors)
}

// ProcessesUsedUp returns a warning if the process numbers of the container are almost used up, and "" otherwise. If one
// service has many processes, the warning names it. leaders returns the main processes of the services by name;
// ProcessesUsedUp calls it only for a warning, and does not block on a disk.
func ProcessesUsedUp(leaders func() map[string]int) (text string) {
	blocking.Run(blocking.ShortCalls, func() { text = processesUsedUp(cgroupDir, "/proc", leaders) })
	return text
}

func processesUsedUp(cgroup, proc string, leaders func() map[string]int) string {
	free, limited := freeProcesses(cgroup)
	if !limited || free > lowProcessWarning {
		return ""
	}
	limit, _ := processLimit(cgroup)
	text := fmt.Sprintf("%d of the %d process numbers of the container are used, so it can start next to nothing", limit-free, limit)
	if limit > maxScannedLimit {
		return text
	}
	// Do not name a service with few processes. The processes then belong to no service, or have left the session of their
	// service.
	if name, most := mostProcesses(proc, leaders()); most >= limit/4 {
		text += fmt.Sprintf("; %s has %d of them or more; to end it: hinit stop %s", name, most, name)
	}
	return text
}

// processLimit returns the maximum number of processes that the container's control group allows. The second result is false if
// the group has no limit.
func processLimit(cgroup string) (int, bool) {
	return cgroupNumber(cgroup, "pids.max", "pids/pids.max")
}

// FreeProcesses returns the number of process numbers that the container may still use. limited is false if its control group has
// no limit, although an outer control group may still have one.
func FreeProcesses() (free int, limited bool) { return freeProcesses(cgroupDir) }

func freeProcesses(cgroup string) (free int, limited bool) {
	limit, limited := processLimit(cgroup)
	used, known := cgroupNumber(cgroup, "pids.current", "pids/pids.current")
	return limit - used, limited && known
}

// cgroupNumber reads a number from the first file of the control group that exists. names are the file's names in version 2 and
// in version 1 of control groups. The second result is false if the file contains no number (for example "max"), or if no file
// exists.
func cgroupNumber(cgroup string, names ...string) (int, bool) {
	for _, name := range names {
		if text, err := os.ReadFile(filepath.Join(cgroup, name)); err == nil {
			n, err := strconv.Atoi(strings.TrimSpace(string(text)))
			return n, err == nil
		}
	}
	return 0, false
}

// mostProcesses returns the name of the service with the most processes, and their number. It counts the processes in the session
// of the service's main process. Processes that have moved to another session are not counted.
func mostProcesses(proc string, leaders map[string]int) (name string, count int) {
	sessions := make(map[int]int)
	_ = procstat.EachProcess(proc, func(st procstat.Stat) { sessions[st.Session]++ })
	for _, service := range slices.Sorted(maps.Keys(leaders)) {
		leader := leaders[service]
		if n := sessions[leader]; leader > 1 && n > count {
			name, count = service, n
		}
	}
	return name, count
}
