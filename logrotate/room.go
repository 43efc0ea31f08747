package logrotate

import (
	"runtime/debug"
	"sync/atomic"
)

const (
	// mostRoom limits the memory for unfinished and kept lines of all services, above the free share of each.
	mostRoom = 16 << 20
	// keptSpare is the free share for the kept lines of a file, in bytes. carrySpare is the free share for an unfinished line.
	keptSpare = 16 << 10
)

// bufferBudget is the memory that services can still share, in bytes. The limit is needed, because a service can leave many lines
// unfinished, and can make its log unwritable, so that lines are kept.
type bufferBudget struct{ left atomic.Int64 }

// setSize sets the budget: mostRoom, or a quarter of this process's memory limit if that is less.
func (r *bufferBudget) setSize() { r.left.Store(min(mostRoom, debug.SetMemoryLimit(-1)/4)) }

// grow returns b with a capacity of n bytes, or less if the budget is too small. It doubles the capacity, up to limit. The first
// spare bytes of a buffer don't count.
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

// count counts a buffer that the old program handed over. free subtracts a buffer that is no longer used.
func (r *bufferBudget) count(b []byte, spare int) { r.left.Add(-int64(max(cap(b)-spare, 0))) }

func (r *bufferBudget) free(b []byte, spare int) { r.left.Add(int64(max(cap(b)-spare, 0))) }
