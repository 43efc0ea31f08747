package fleet

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// cost is the processor time that programs have used, by name. On a busy machine it says more than
// elapsed time.
type cost map[string]float64

// processorTime returns the processor time of all processes of the test's PID namespace.
func processorTime() cost {
	c := cost{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // Ignore the error: the pattern is valid.
	for _, file := range stats {
		text, _ := os.ReadFile(file) // The process may have ended.
		name, rest, ok := strings.Cut(string(text), ") ")
		var user, system float64
		fields := strings.Fields(rest)
		if !ok || len(fields) < 13 {
			continue
		}
		_, _ = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
		_, name, _ = strings.Cut(name, "(")
		c[name] += (user + system) / 100 // The sum is in clock ticks, see proc_pid_stat(5).
	}
	return c
}

// since formats the costs since an earlier measurement, the largest first.
func (c cost) since(then cost) string {
	var rows []string
	for name, now := range c {
		if d := now - then[name]; d >= 0.5 {
			rows = append(rows, fmt.Sprintf("%7.1f s %s", d, name))
		}
	}
	slices.Sort(rows)
	slices.Reverse(rows)
	return strings.Join(rows, ", ")
}
