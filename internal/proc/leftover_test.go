package proc

import (
	"io"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

func TestADaemonIsLeftBehindAlsoWhereOneProcessEndsAlone(t *testing.T) {
	table := newTable(t)
	for id, script := range map[uint64]string{
		1: "exec >&-; true", 2: "(setsid sleep 100 >/dev/null 2>&1 &); exit 3", 3: "sleep 100 >/dev/null 2>&1 & exit 3",
	} {
		_, out := spawn(t, table, Spec{ID: id, Argv: []string{"/bin/sh", "-c", script}})
		_, _ = io.Copy(io.Discard, out)
		x := awaitExit(t, table, id)
		if want := id != 1; x.Leftover != want {
			t.Errorf("%q: leftover is %v", script, x.Leftover)
		}
		if x.Leftover {
			table.SignalTree(id, int(unix.SIGKILL))
			testkit.Until(t, "the tree to be gone", func() bool {
				table.Reap(true, func(Exit) {})
				return len(table.EndedRuns([]uint64{id})) == 1
			})
		}
		table.Forget(id)
	}
}

// BenchmarkStart measures the start of a process, with and without a higher oom_score_adj.
func BenchmarkStart(b *testing.B) {
	for _, oom := range []int{0, 800} {
		b.Run(strconv.Itoa(oom), func(b *testing.B) {
			table, err := New()
			if err != nil {
				b.Fatal(err)
			}
			id := uint64(0)
			for b.Loop() {
				id++
				if _, err := table.Spawn(Spec{ID: id, Argv: []string{"/bin/true"}, OOMIncrease: oom}); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				for ended := false; !ended; {
					table.Reap(false, func(Exit) { ended = true })
				}
				table.Forget(id)
				b.StartTimer()
			}
		})
	}
}

// BenchmarkEnd measures the end of one process while 200 others run.
func BenchmarkEnd(b *testing.B) {
	table, err := New()
	if err != nil {
		b.Fatal(err)
	}
	const others = 200
	for id := range uint64(others) {
		if _, err := table.Spawn(Spec{ID: id + 1, Argv: []string{"/bin/sleep", "1000"}}); err != nil {
			b.Fatal(err)
		}
	}
	ended := func(id uint64) bool {
		found := false
		table.Reap(true, func(x Exit) { found = found || x.ID == id })
		return found
	}
	id := uint64(others)
	for b.Loop() {
		id++
		if _, err := table.Spawn(Spec{ID: id, Argv: []string{"/bin/true"}}); err != nil {
			b.Fatal(err)
		}
		for !ended(id) {
		}
		table.Forget(id)
	}
	for id := range uint64(others) {
		_ = table.Signal(id+1, int(unix.SIGKILL))
	}
	for none := false; !none; {
		none = table.Reap(false, func(Exit) {})
	}
}
