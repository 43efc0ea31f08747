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
	"hinit/internal/procstat"
	"hinit/supervisor"
)

// oomFirst names the service whose main process the kernel kills first when memory runs out, "" when nothing runs. oom_score_adj
// adds thousandths of the limit to the resident memory (proc_pid_oom_score(5)). views are of those of the services that are listed. A
// look of a check is over in a moment, and nobody knows it by its name.
func oomFirst(services []*supervisor.Service, views []client.Service) string {
	measured := make(map[string]uint64, len(views))
	for _, v := range views {
		measured[v.Name] = v.MemoryBytes
	}
	name, worst := "", 0.0
	for _, v := range services {
		if v.Kind == supervisor.KindCheck {
			continue
		}
		memory, known := measured[v.Name]
		if !known {
			memory = residentMemory(v.PID)
		}
		if badness := float64(memory) + float64(v.OOMAdj)*memoryLimit()/1000; memory > 0 && badness > worst {
			name, worst = v.Name, badness
		}
	}
	return name
}

// memoryLimit is the container's memory limit, or the machine's memory.
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

// residentMemory returns the resident memory of a process in bytes, 0 when it is not known: the process is gone, or /proc hides it.
// The second number of statm counts pages (proc(5)).
func residentMemory(pid int) (bytes uint64) {
	if pid > 0 {
		_ = blocking.Do(blocking.Short, func() error {
			bytes = readResident(pid)
			return nil
		})
	}
	return bytes
}

// isStopped reports whether a signal has stopped a process (proc_pid_stat(5), state T), false when that is not known.
func isStopped(pid int) (stopped bool) {
	if pid > 0 {
		_ = blocking.Do(blocking.Short, func() error {
			st, err := procstat.Read(pid)
			stopped = err == nil && st.State == 'T'
			return nil
		})
	}
	return stopped
}

func readResident(pid int) uint64 {
	// Direct system calls: os.ReadFile would offer each of hundreds of files to the poller.
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
