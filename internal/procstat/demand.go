package procstat

import (
	"fmt"
	"os"
)

// Demand describes the load that all processes together cause. A number is 0 if the kernel does not report it.
type Demand struct {
	Runnable int // threads on this machine that are running or wait for a processor
	Sockets  int // number of open sockets in this network namespace
}

// ReadDemand returns the current demand. It reads only /proc, so it does not wait for a disk. PID 1 calls it under the
// limits of package internal/blocking.
func ReadDemand() (d Demand) {
	load, _ := os.ReadFile("/proc/loadavg")
	network, _ := os.ReadFile("/proc/net/sockstat")
	_, _ = fmt.Sscanf(string(load), "%s %s %s %d/", new(string), new(string), new(string), &d.Runnable)
	_, _ = fmt.Sscanf(string(network), "sockets: used %d", &d.Sockets)
	return d
}

// Busy reports whether there are at least two runnable threads for each processor.
func (d Demand) Busy(processors int) bool { return d.Runnable >= 2*processors }
