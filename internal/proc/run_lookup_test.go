package proc

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

func readPID(t *testing.T, r *bufio.Reader) int {
	t.Helper()
	line, err := r.ReadString('\n')
	pid, bad := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || bad != nil {
		t.Fatalf("%q: %v, %v", line, err, bad)
	}
	return pid
}

// The run must be found for the main process, its children, and orphans that have left its session.
func TestTheRunOfAProcessIsFound(t *testing.T) {
	table := newTable(t)
	const tree = `sleep 1000 & echo $!; setsid sh -c 'sh -c "sleep 1000 & echo \$!" & wait; exec sleep 1000' & wait`
	main, out := spawn(t, table, Spec{ID: 7, Argv: []string{"sh", "-c", tree}})
	child := readPID(t, out)
	orphan := readPID(t, out)
	other, _ := spawn(t, table, Spec{ID: 8, Argv: []string{"sleep", "1000"}})
	testkit.Until(t, "an orphan", func() bool {
		p, ok := table.procfs.readStat(orphan)
		return ok && p.Parent == os.Getpid()
	})
	for range 2 {
		for pid, want := range map[int]uint64{
			main: 7, child: 7, orphan: 7, other: 8, os.Getpid(): 0, os.Getppid(): 0, 0: 0, -1: 0, 1 << 30: 0,
		} {
			if got := table.RunOf(pid); got != want {
				t.Errorf("process %d is of run %d, want %d", pid, got, want)
			}
		}
		table.RecordMembers(7)
		table.procfs.scan()
		table.assignRuns()
	}
}
