// Package ports finds ports of an isolated profile that another profile could take, because the kernel may choose them for any
// program. It owns no goroutine.
package ports

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// EphemeralRange returns the first and the last port that the kernel chooses for a socket without a port (ip(7)). Without /proc
// both are 0.
func EphemeralRange() (first, last int) {
	chosen, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	_, _ = fmt.Sscan(string(chosen), &first, &last)
	return first, last
}

// CheckNotEphemeral returns an error if the kernel may choose port for a socket of another profile. Landlock permits bind(2) with
// port 0, which programs need, and listen(2) without a port. The kernel never chooses reserved ports.
func CheckNotEphemeral(port int) error {
	first, last := EphemeralRange()
	reserved, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_reserved_ports")
	isReserved := func(part string) bool {
		var first, last int
		if got, _ := fmt.Sscanf(part, "%d-%d", &first, &last); got == 1 {
			last = first
		}
		return port >= first && port <= last
	}
	if port < first || port > last || slices.ContainsFunc(strings.Split(string(reserved), ","), isReserved) {
		return nil
	}
	return fmt.Errorf("another profile can take its port %d, because the kernel chooses ports from %d to %d for any program; choose another port, "+
		"reserve it in net.ipv4.ip_local_reserved_ports (docker: --sysctl), or set isolation.missing to degrade", port, first, last)
}
