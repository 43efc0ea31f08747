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

// Each stop and each crash read the list of children of every thread of PID 1. All but two of these threads never start a process:
// they exist for calls that may block.
func TestTheEndOfAServiceIsSearchedInThreadsThatStartProcesses(t *testing.T) {
	runtime.LockOSThread() // so that the process is a child of this thread
	defer runtime.UnlockOSThread()
	table := newTable(t)
	spawn(t, table, Spec{ID: 1, Argv: testproc.Argv("exit", "3")})
	oldest := os.Getpid()
	want := []int{oldest}
	if own := unix.Gettid(); own != oldest {
		want = append(want, own)
	}
	if got := slices.Sorted(maps.Keys(table.forkers)); !slices.Equal(got, want) {
		t.Errorf("after a start the children of the threads %v are read, want %v", got, want)
	}
	if x := exitOf(t, table, 1); x.Code != 3 || x.Leftover {
		t.Errorf("%+v", x)
	}
	if table.hasUnknownChild() {
		t.Error("it has no child, and may have an unknown one")
	}
	if got := slices.Collect(maps.Keys(table.forkers)); !slices.Equal(got, want[:1]) {
		t.Errorf("without children, those of the threads %v are read, want %v", got, want[:1])
	}
}
