package proc

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

// A run counts as gone only when none of its processes is left. Its processes fork and end in an endless chain, so that a scan
// sees none alive. This test process is a subreaper.
func TestACometIsNotGoneUntilItIs(t *testing.T) {
	table := newTable(t)
	for id := uint64(1); id <= 5; id++ {
		_, out := spawn(t, table, Spec{ID: id, Name: "svc", Argv: testproc.Argv("comet")})
		readLine(t, out)
		orphans := 0
		count := func(x Exit) {
			if x.ID == 0 {
				orphans++
			}
		}
		testkit.Until(t, "the comet to fly", func() bool { table.Reap(true, count); return orphans > 50 })
		if err := table.Signal(id, int(unix.SIGTERM)); err != nil {
			t.Fatal(err)
		}
		if x := awaitExit(t, table, id); !x.Leftover {
			t.Error("nothing is left behind, it is said")
		}
		of := 0
		reap := func() {
			table.Reap(true, func(x Exit) {
				if x.OrphanRun == id {
					of++
				}
			})
		}
		testkit.Until(t, "the comet to be gone", func() bool {
			reap()
			return table.SignalTree(id, int(unix.SIGKILL)) == 0
		})
		// The last process may have ended after the report.
		testkit.Until(t, "an orphan of the run to end", func() bool { reap(); return of > 0 })
		if len(table.EndedRuns([]uint64{id})) == 0 {
			t.Error("it is not gone when nothing is left to signal")
		}
		table.Reap(true, func(Exit) {})
		orphans = 0
		for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
			table.Reap(true, count)
		}
		if orphans > 0 {
			t.Errorf("%d of it have ended since", orphans)
		}
		table.Forget(id)
	}
}
