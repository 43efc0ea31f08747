package control

import (
	"bytes"
	"math"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/supervisor"
)

// oomFirst names the service whose main process the kernel takes first when memory runs out: it adds to the resident memory so
// many thousandths of the limit as oom_score_adj says (proc_pid_oom_score(5)). views are those of all services but the CMD, in the same order. It
// is "" when nothing runs.
func oomFirst(services []*supervisor.Service, views []client.Service) string {
	name, worst := "", 0.0
	next := 0
	for _, v := range services {
		var memory uint64
		if v.Kind == supervisor.KindCmd || v.Kind == supervisor.KindStandIn {
			memory = residentMemory(v.PID)
		} else {
			memory = views[next].MemoryBytes
			next++
		}
		if badness := float64(memory) + float64(v.OOMAdj)*memoryLimit()/1000; memory > 0 && badness > worst {
			name, worst = v.Name, badness
		}
	}
	return name
}

// memoryLimit is what the container may have of memory, or all that the machine has.
var memoryLimit = sync.OnceValue(func() float64 {
	limit := math.Inf(1)
	var machine unix.Sysinfo_t
	if unix.Sysinfo(&machine) == nil {
		limit = float64(machine.Totalram) * float64(machine.Unit)
	}
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		_ = blocking.Do(blocking.Short, func() error {
			text, err := os.ReadFile(file)
			if n, bad := strconv.ParseFloat(string(bytes.TrimSpace(text)), 64); bad == nil {
				limit = min(limit, n)
			}
			return err // there is one of the two
		})
	}
	return limit
})

// residentMemory returns the resident memory of a process in bytes, 0 when it is not known: there is no process, it is
// gone, or /proc hides it. The second number of statm counts pages (proc(5)). A process that ended since the snapshot was
// taken is still there as a zombie, with 0, or its number is free; another process with the same number would need all
// numbers to be used once in between.
func residentMemory(pid int) (bytes uint64) {
	if pid > 0 {
		_ = blocking.Do(blocking.Short, func() error {
			bytes = readResident(pid)
			return nil
		})
	}
	return bytes
}

// isStopped reports whether a process is stopped by a signal (proc_pid_stat(5), state T). False when that is not known.
func isStopped(pid int) (stopped bool) {
	if pid > 0 {
		_ = blocking.Do(blocking.Short, func() error {
			text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
			end := bytes.LastIndexByte(text, ')') // the name before it can hold anything
			stopped = err == nil && end > 0 && bytes.HasPrefix(text[end:], []byte(") T "))
			return nil
		})
	}
	return stopped
}

func readResident(pid int) uint64 {
	// Straight system calls: os.ReadFile would offer the file to the poller, and this is asked for hundreds of processes.
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/statm", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var buffer [128]byte
	n, err := unix.Read(fd, buffer[:])
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(buffer[:n], []byte{' '})
	resident, _, _ := bytes.Cut(rest, []byte{' '})
	pages, err := strconv.ParseUint(string(resident), 10, 64)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}
