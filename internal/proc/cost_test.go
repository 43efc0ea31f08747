package proc

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Neither the system calls nor the allocations of a start may grow with the number of running processes. A running process must
// keep no descriptor open.
func TestAStartCostsTheSameBesideMany(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	table := newTable(t)
	calls := countSyscalls(t)
	id := uint64(0)
	start := func(argv ...string) {
		id++
		if _, err := table.Spawn(Spec{ID: id, Argv: argv, Env: os.Environ(), Files: []*os.File{nil, os.Stderr, os.Stderr}}); err != nil {
			t.Fatal(err)
		}
	}
	type cost struct{ calls, allocations, descriptors int }
	beside := func(many int) cost {
		for int(id) < many {
			start("/bin/sleep", "1000")
		}
		open := openDescriptors(t)
		var made, allocated []int
		for range 31 {
			objects, from := allocationCount(), calls()
			start("/bin/true")
			made, allocated = append(made, calls()-from), append(allocated, allocationCount()-objects)
			awaitExit(t, table, id)
			table.Forget(id)
			id--
		}
		slices.Sort(made)
		slices.Sort(allocated)
		return cost{made[len(made)/2], allocated[len(allocated)/2], openDescriptors(t) - open}
	}
	few, many := beside(10), beside(200)
	t.Logf("beside 10: %+v, beside 200: %+v", few, many)
	if many.calls > few.calls+2 || many.allocations > few.allocations+2 {
		t.Errorf("a start costs %+v beside 10 processes, and %+v beside 200", few, many)
	}
	if few.descriptors > 0 || many.descriptors > 0 {
		t.Errorf("descriptors stay open: %d beside 10 processes, %d beside 200", few.descriptors, many.descriptors)
	}
}

func allocationCount() int {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.Mallocs)
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// countSyscalls returns a function that returns the number of system calls of this thread (perf_event_open(2)), or always
// 0 if the kernel doesn't permit that.
func countSyscalls(t *testing.T) func() int {
	t.Helper()
	var text []byte
	for _, dir := range []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"} {
		text, _ = os.ReadFile(dir + "/events/raw_syscalls/sys_enter/id")
		if len(text) > 0 {
			break
		}
	}
	event, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	fd := -1
	if err == nil {
		attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_TRACEPOINT, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Config: event}
		fd, err = unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	}
	if err != nil {
		t.Logf("system calls are not counted: %v", err)
		return func() int { return 0 }
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return func() int {
		var value [8]byte
		if n, err := unix.Read(fd, value[:]); n != 8 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		return int(*(*uint64)(unsafe.Pointer(&value[0])))
	}
}
