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

// holders has the names of the tests of this binary that have a slot.
var holders sync.Map

// Parallel does what t.Parallel does, and then takes a slot for the rest of the test. A subtest takes none if a test above it has
// one. Otherwise tests with a slot could wait for their subtests, which wait for a slot.
func Parallel(t *testing.T) {
	t.Helper()
	t.Parallel()
	for above := t.Name(); above != "."; above = path.Dir(above) {
		if _, has := holders.Load(above); has {
			return
		}
	}
	t.Cleanup(Slot())
	holders.Store(t.Name(), nil)
	t.Cleanup(func() { holders.Delete(t.Name()) })
}

// ShareSlots is [AtOnce] for test binaries whose parallel tests all take a slot. In a run with a shared directory, only the slots limit
// these tests. With another limit, tests that wait for a slot could keep a subtest of a test that has one from running.
func ShareSlots(n int) {
	if shared != "" {
		n = 1000
	}
	AtOnce(n)
}

// searching is held by the test of this binary that looks for a free slot.
var searching sync.Mutex

// Slot waits for one of the slots of this run, and returns the function that frees it. All test binaries of one `make test` share
// the slots. So the number of these tests that run at a time does not grow with the number of packages that run at a time. With too
// many, time limits pass, and the checks that tests repeat take the processors. Without a shared directory, Slot does nothing.
func Slot() (free func()) {
	searching.Lock()
	defer searching.Unlock()
	for shared != "" {
		for i := range 2 * runtime.NumCPU() { // most of these tests wait for a program that they drive
			lock, err := os.OpenFile(filepath.Join(shared, fmt.Sprintf("slot%d.lock", i)), os.O_CREATE|os.O_RDWR, 0o644)
			if err != nil {
				return func() {} // a test without a slot is better than a test that waits for ever
			}
			free = func() { _ = lock.Close() } // the end of the process would free the slot too
			if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
				return free
			}
			free()
		}
		time.Sleep(20*time.Millisecond + rand.N(30*time.Millisecond)) //nolint:forbidigo // no call waits for the first of several locks
	}
	return func() {}
}
