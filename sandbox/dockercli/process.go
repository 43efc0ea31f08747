package dockercli

import (
	"fmt"

	"hinit/internal/proc"
	"hinit/internal/procstat"
)

// Process names a process so that no later one has the same name: its number and the time when it began. It returns the process's
// parent too.
func Process(pid int) (name string, parent int, err error) {
	s, err := procstat.Read(pid)
	if err != nil {
		return "", 0, fmt.Errorf("cannot look at process %d: %w", pid, err)
	}
	return fmt.Sprintf("%d.%d", pid, s.Start), s.Parent, nil
}

// Lives reports whether the process of this name exists. One that has ended and was not reaped yet does not live.
func Lives(name string) bool {
	var pid int
	var start uint64
	_, _ = fmt.Sscanf(name, "%d.%d", &pid, &start) // what is no number is no process
	now, lives := proc.StartTicks(pid)
	return lives && now == start
}
