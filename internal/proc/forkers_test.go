package proc

import (
	"maps"
	"os"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testproc"
)

// The search for children of an ended service must read only the threads of PID 1 that start processes. PID 1 has two
// of them, and many more for calls that may block.
func TestOnlyThreadsThatStartProcessesAreSearchedForChildren(t *testing.T) {
	runtime.LockOSThread() // the process must become a child of this thread
	defer runtime.UnlockOSThread()
	table := newTable(t)
	spawn(t, table, Spec{ID: 1, Argv: testproc.Argv("exit", "3")})
	oldest := os.Getpid()
	want := []int{oldest}
	if own := unix.Gettid(); own != oldest {
		want = append(want, own)
	}
	if got := slices.Sorted(maps.Keys(table.forkers)); !slices.Equal(got, slices.Sorted(slices.Values(want))) { // thread IDs wrap
		t.Errorf("after a start the children of the threads %v are read, want %v", got, want)
	}
	if x := awaitExit(t, table, 1); x.Code != 3 || x.Leftover {
		t.Errorf("%+v", x)
	}
	if table.hasUnknownChild() {
		t.Error("it has no child, and may have an unknown one")
	}
	if got := slices.Collect(maps.Keys(table.forkers)); !slices.Equal(got, want[:1]) {
		t.Errorf("without children, those of the threads %v are read, want %v", got, want[:1])
	}
}
