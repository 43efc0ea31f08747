//go:build linux && (amd64 || arm64)

package entry

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

const testThreads = 8

func TestWhoHasRoomForThreadsIsNotHeldUp(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if !HasRoomFor(testThreads) {
		t.Error("no threads can be made here")
	}
}

// A thread that outlives the start of the Go runtime must block all signals. The runtime's handler would end the process
// without a message if it ran on such a thread.
func TestTheThreadsTakeNoSignal(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadStatuses(t)
	releaseThreads = 0
	made := makeThreads(testThreads, &releaseThreads)
	after := threadStatuses(t)
	HasRoomFor(0)
	if made != testThreads {
		t.Fatalf("only %d threads can be made here", made)
	}
	deaf := 0
	for name, status := range after {
		if _, old := before[name]; !old && blocksAllSignals(status) {
			deaf++
		}
	}
	if deaf < testThreads { // a new thread of the runtime begins with all signals blocked, too
		t.Errorf("%d of %d threads have the signals blocked", deaf, testThreads)
	}
	if self := fmt.Sprintf("/proc/self/task/%d/status", syscall.Gettid()); blocksAllSignals(after[self]) {
		t.Error("this thread has them blocked too")
	}
}

// blocksAllSignals reports whether a thread with this status blocks all signals except KILL and STOP, which can't be blocked.
func blocksAllSignals(status string) bool {
	return strings.Contains(status, "SigBlk:\tfffffffffffbfeff\n")
}

// threadStatuses returns the status of every thread of this process, by file name.
func threadStatuses(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, file := range files {
		if status, err := os.ReadFile(file); err == nil {
			all[file] = string(status)
		}
	}
	return all
}
