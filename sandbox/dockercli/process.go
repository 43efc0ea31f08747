package dockercli

import (
	"fmt"

	"hinit/internal/proc"
	"hinit/internal/procstat"
)

// ProcessName returns a name for a process that is never reused: its pid and start time. It also returns the pid of its parent.
func ProcessName(pid int) (name string, parent int, err error) {
	s, err := procstat.Read(pid)
	if err != nil {
		return "", 0, fmt.Errorf("cannot look at process %d: %w", pid, err)
	}
	return fmt.Sprintf("%d.%d", pid, s.Start), s.Parent, nil
}

// IsAlive reports whether the process with a name from ProcessName is alive. A zombie is not.
func IsAlive(name string) bool {
	var pid int
	var start uint64
	_, _ = fmt.Sscanf(name, "%d.%d", &pid, &start) // an invalid name leaves pid 0, which does not exist
	now, lives := proc.StartTicks(pid)
	return lives && now == start
}
