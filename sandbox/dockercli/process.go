package dockercli

import (
	"fmt"

	"hinit/internal/proc"
	"hinit/internal/procstat"
)

// ProcessName returns a name for a process that no later process has: its id and start time. It also returns the parent of the
// process.
func ProcessName(pid int) (name string, parent int, err error) {
	s, err := procstat.Read(pid)
	if err != nil {
		return "", 0, fmt.Errorf("cannot look at process %d: %w", pid, err)
	}
	return fmt.Sprintf("%d.%d", pid, s.Start), s.Parent, nil
}

// IsAlive reports whether the process with this name is alive. A zombie is not.
func IsAlive(name string) bool {
	var pid int
	var start uint64
	_, _ = fmt.Sscanf(name, "%d.%d", &pid, &start) // without a number there is no process
	now, lives := proc.StartTicks(pid)
	return lives && now == start
}
