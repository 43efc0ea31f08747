package volume

import (
	"fmt"
	"os"
)

// crowd counts the demand of all processes in this network namespace. A number is 0 if the kernel does not report it.
type crowd struct {
	runnable int // threads of the machine that run, or wait for a processor
	sockets  int // open sockets
	ports    int // ports that the kernel may choose from
}

// readCrowd reads three files of the kernel. It touches no disk.
func readCrowd() (c crowd) {
	read := func(file, format string, to ...any) {
		text, _ := os.ReadFile(file)
		_, _ = fmt.Sscanf(string(text), format, to...)
	}
	var load float64
	first, last := 0, -1
	read("/proc/loadavg", "%f %f %f %d/", &load, &load, &load, &c.runnable)
	read("/proc/net/sockstat", "sockets: used %d", &c.sockets)
	read("/proc/sys/net/ipv4/ip_local_port_range", "%d %d", &first, &last)
	c.ports = last - first + 1
	return c
}

// busy reports whether there are at least two runnable threads for each processor.
func (c crowd) busy(processors int) bool { return c.runnable >= 2*processors }

// short reports whether the open sockets may use three quarters of the ports.
func (c crowd) short() bool { return c.ports > 0 && c.sockets >= c.ports/4*3 }
