package testkit

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"runtime"
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

// slotSearchMu is locked by the test of this binary that is searching for a free slot.
var slotSearchMu sync.Mutex

// TakeSlot waits for one of the slots of this run, and returns the function that frees it. All test binaries of one `make test`
// share the slots, so that the number of running tests does not grow with the number of packages. With too many tests, time
// limits pass, and the tests' repeated checks use up the processors. Without a shared directory, TakeSlot does nothing.
func TakeSlot() (free func()) {
	slotSearchMu.Lock()
	defer slotSearchMu.Unlock()
	for sharedDir != "" {
		for i := range 2 * runtime.NumCPU() { // two for each processor, because most of these tests wait for a program
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
