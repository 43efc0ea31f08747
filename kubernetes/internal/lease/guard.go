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
	guardEvery = 20 * time.Millisecond
	// guardTime is how long after the end of a lease an init that is stopped counts as one that has not ended its gateways.
	guardTime = 5 * time.Second
)

// guard ends everything in the container when the lease has ended and the init is stopped, so that it can't do so itself. It works where the init is
// process 1 of a PID namespace, whose other processes kill(2) reaches with -1.
type guard struct {
	end atomic.Int64 // CLOCK_BOOTTIME, of the lease as the init was told; 0 for none
	log func(format string, args ...any)
}

// watch works until ctx ends.
func (g *guard) watch(ctx context.Context) {
	if os.Getppid() != 1 {
		return
	}
	tick := time.NewTicker(guardEvery)
	defer tick.Stop()
	for told := int64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		end := g.end.Load()
		if over := boottime() - time.Duration(end); end == 0 || over < 0 || over > guardTime || !stopped(1) {
			continue
		}
		_ = unix.Kill(-1, unix.SIGKILL) // this process and process 1 are left; without others it fails
		if told != end {
			told = end
			g.log("the lease has ended and hinit is stopped: killed every other process of the container")
		}
	}
}

// stopped reports whether a signal or a tracer has stopped a process (proc_pid_stat(5)).
func stopped(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	i := bytes.LastIndex(text, []byte(") "))
	return err == nil && i >= 0 && i+2 < len(text) && bytes.IndexByte([]byte("Tt"), text[i+2]) >= 0
}
