package proc

import (
	"os"
	"strconv"
	"strings"
)

// Confinement is what the kernel says of how a process is confined (proc_pid_status(5)). Each child has at least as much of it.
type Confinement struct {
	UID        uint32
	NoNewPrivs bool
	Filters    int // filters of system calls
}

// Confined returns the confinement of a process. It touches only /proc, but in PID 1 it takes a turn (internal/blocking).
func Confined(pid int) (c Confinement, err error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		n, _ := strconv.ParseUint(fields[0], 10, 32) // of other lines it is no number
		switch name {
		case "Uid":
			c.UID = uint32(n)
		case "NoNewPrivs":
			c.NoNewPrivs = n == 1
		case "Seccomp_filters":
			c.Filters = int(n)
		}
	}
	return c, err
}
