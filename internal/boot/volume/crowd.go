package volume

import (
	"fmt"
	"os"
)

// crowd is what all processes of this network namespace want together. Numbers that the kernel does not tell are 0.
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

// busy reports whether twice as many threads want to run as there are processors.
func (c crowd) busy(processors int) bool { return c.runnable >= 2*processors }

// short reports whether there is a socket for most ports.
func (c crowd) short() bool { return c.ports > 0 && c.sockets >= c.ports/4*3 }
