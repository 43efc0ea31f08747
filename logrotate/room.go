package logrotate

import (
	"runtime/debug"
	"sync/atomic"
)

const (
	// mostRoom is how much memory, in bytes, the unfinished lines and kept lines of all services may use together. The first
	// bytes of each buffer (keptSpare or carrySpare) don't count.
	mostRoom = 16 << 20
	// keptSpare is how many bytes of kept lines each file may hold without using the shared budget. Kept lines wait in memory
	// while their file can't be written. carrySpare is the same for an unfinished line.
	keptSpare = 16 << 10
)

// bufferBudget is how much memory, in bytes, services may still share for buffers. It needs a limit, because a service can leave
// long lines unfinished in many runs. It can also make its log file unwritable, so that its lines are kept in memory.
type bufferBudget struct{ left atomic.Int64 }

// setSize sets the budget to mostRoom, or to a quarter of this process's memory limit if that is less.
func (r *bufferBudget) setSize() { r.left.Store(min(mostRoom, debug.SetMemoryLimit(-1)/4)) }

// grow returns b with its capacity enlarged to n bytes, or less if the budget is used up. It at least doubles the capacity if
// possible, up to limit. The first spare bytes of a buffer don't count against the budget.
func (r *bufferBudget) grow(b []byte, n, spare, limit int) []byte {
	if n <= cap(b) {
		return b
	}
	for _, size := range [...]int{min(max(n, 2*cap(b)), limit), min(n, limit), min(spare, limit)} {
		if size > cap(b) && r.reserve(int64(max(size, spare)-max(cap(b), spare))) {
			return append(make([]byte, 0, size), b...)
		}
	}
	return b
}

func (r *bufferBudget) reserve(n int64) bool {
	if n == 0 || r.left.Add(-n) >= 0 {
		return true
	}
	r.left.Add(n)
	return false
}

// count takes a buffer from the previous program of PID 1 into account. free returns the memory of a buffer that is no longer
// used.
func (r *bufferBudget) count(b []byte, spare int) { r.left.Add(-int64(max(cap(b)-spare, 0))) }

func (r *bufferBudget) free(b []byte, spare int) { r.left.Add(int64(max(cap(b)-spare, 0))) }
