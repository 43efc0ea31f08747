package control

import (
	"math"
	"sync"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/procstat"
	"hinit/internal/tuning"
	"hinit/supervisor"
)

// oomFirst names the service whose main process the kernel kills first when memory runs out, "" when nothing runs. oom_score_adj
// adds thousandths of the limit to the resident memory (proc_pid_oom_score(5)). views are the listed services. A check's own
// process is left out: it ends in a moment, and has no name that users know.
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
			memory = look(v.PID).Memory
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
	_ = blocking.Do(blocking.Short, func() error {
		if n, ok := tuning.MemoryLimit(); ok {
			limit = min(limit, float64(n))
		}
		return nil
	})
	return limit
})

// look returns what the kernel says of a process, nothing when that is not known: the process is gone, or /proc hides it.
func look(pid int) (st procstat.Stat) {
	if pid > 0 {
		_ = blocking.Do(blocking.Short, func() (err error) {
			st, err = procstat.Read(pid)
			return err
		})
	}
	return st
}

// stopped reports whether a signal has stopped a process (proc_pid_stat(5)).
func stopped(st procstat.Stat) bool { return st.State == 'T' }

// paused reports whether a service that is up does nothing because a signal has stopped its process.
func paused(v *supervisor.Service, st procstat.Stat) bool {
	return v.Paused || v.State == supervisor.Up && stopped(st)
}
