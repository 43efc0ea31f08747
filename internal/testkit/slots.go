package testkit

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// slotHolders has the names of the tests of this binary that have a slot.
var slotHolders sync.Map

// Parallel calls t.Parallel, and then takes a slot for the rest of the test. A subtest takes no slot if one of its parent tests
// has one. Otherwise tests with a slot could wait for their subtests, while the subtests wait for a slot.
func Parallel(t *testing.T) {
	t.Helper()
	t.Parallel()
	for above := t.Name(); above != "."; above = path.Dir(above) {
		if _, has := slotHolders.Load(above); has {
			return
		}
	}
	t.Cleanup(TakeSlot())
	slotHolders.Store(t.Name(), nil)
	t.Cleanup(func() { slotHolders.Delete(t.Name()) })
}

// ShareSlots limits parallel tests like [LimitParallel], for test binaries whose parallel tests all take a slot. In a run with a
// shared directory, the number of slots is the only limit of these tests. With another limit, tests that wait for a slot could
// block the subtests of a test that has one.
func ShareSlots(n int) {
	if sharedDir != "" {
		n = 1000
	}
	LimitParallel(n)
}

// processorTime is the time of all processors since the boot of the machine, in ticks of 10 ms.
type processorTime struct{ idle, total uint64 }

// idlePeriod is the time of all processors, in ticks, of which a quarter must be idle before a test takes an additional slot.
const idlePeriod = 100

// readProcessorTime reads the first line of /proc/stat (proc(5)): user, nice, system, idle and others.
func readProcessorTime() (all processorTime) {
	text, _ := os.ReadFile("/proc/stat") // ignore the error: without times, there are no additional slots
	line, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(line) {
		ticks, _ := strconv.ParseUint(field, 10, 64) // the first field is no number, and counts as 0
		all.total += ticks
		if i == 4 {
			all.idle = ticks
		}
	}
	return all
}

// slotSearchMu is locked by the test of this binary that is searching for a free slot.
var slotSearchMu sync.Mutex

// TakeSlot waits for one of the slots of this run, and returns the function that frees it. All test binaries of one `make test`
// share the slots, so that the number of running tests does not grow with the number of packages. With too many tests, time
// limits pass, and the tests' repeated checks use up the processors. While the processors are idle, there are twice as many
// slots. Without a shared directory, TakeSlot does nothing.
func TakeSlot() (free func()) {
	slotSearchMu.Lock()
	defer slotSearchMu.Unlock()
	var before processorTime
	for slots := 0; sharedDir != ""; {
		switch now := readProcessorTime(); {
		case slots == 0:
			slots, before = 2*runtime.NumCPU(), now // two for each processor, because most of these tests wait for a program
		case now.total-before.total >= idlePeriod:
			slots = 2 * runtime.NumCPU()
			if 4*(now.idle-before.idle) > now.total-before.total {
				slots *= 2
			}
			before = now
		}
		for i := range slots {
			lock, err := os.OpenFile(filepath.Join(sharedDir, fmt.Sprintf("slot%d.lock", i)), os.O_CREATE|os.O_RDWR, 0o644)
			if err != nil {
				return func() {} // running without a slot is better than waiting for ever
			}
			free = func() { _ = lock.Close() } // ignore the error: the end of the process frees the slot too
			if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
				return free
			}
			free()
		}
		time.Sleep(20*time.Millisecond + rand.N(30*time.Millisecond)) //nolint:forbidigo // no system call waits for one of several locks
	}
	return func() {}
}
