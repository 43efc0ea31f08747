package lease

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	guardInterval = 20 * time.Millisecond
	// guardDuration is for how long after the end of the lease the guard kills processes if the init is stopped. An init that is
	// stopped after this time has already ended its gateways.
	guardDuration = 5 * time.Second
)

// guard kills all other processes in the container if the lease ends while the init is stopped, by SIGSTOP or a tracer. A
// stopped init can't do so itself. The guard works only if the init is process 1 of a PID namespace, because kill(2) with -1 then
// reaches all other processes.
type guard struct {
	end atomic.Int64 // End of the lease as last reported to the init, on CLOCK_BOOTTIME; 0: none.
	log func(format string, args ...any)
}

// watch checks the lease and the init until ctx ends. If the init is not process 1, it does nothing.
func (g *guard) watch(ctx context.Context) {
	if os.Getppid() != 1 {
		return
	}
	tick := time.NewTicker(guardInterval)
	defer tick.Stop()
	for told := int64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		end := g.end.Load()
		if over := boottime() - time.Duration(end); end == 0 || over < 0 || over > guardDuration || !isStopped(1) {
			continue
		}
		// Ignore the error: kill fails only if there is no other process; this signal spares this process and process 1.
		_ = unix.Kill(-1, unix.SIGKILL)
		if told != end {
			told = end
			g.log("the lease has ended and hinit is stopped: killed every other process of the container")
		}
	}
}

// isStopped reports whether a process is stopped by a signal or a tracer (proc_pid_stat(5)).
func isStopped(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	i := bytes.LastIndex(text, []byte(") "))
	return err == nil && i >= 0 && i+2 < len(text) && bytes.IndexByte([]byte("Tt"), text[i+2]) >= 0
}
