package logrotate

import (
	"runtime/debug"
	"sync/atomic"
)

const (
	// mostRoom limits the memory for unfinished and kept lines of all services, beyond the free share of each.
	mostRoom = 16 << 20
	// keptSpare is the free share for the kept lines of a file, in bytes; carrySpare is the one for an unfinished line.
	keptSpare = 16 << 10
)

// bufferBudget is the memory left to share between services, in bytes. It needs a limit, because a service can leave many lines
// unfinished, and can make its log unwritable, so that lines are kept.
type bufferBudget struct{ left atomic.Int64 }

// fill sets the size: mostRoom, or a quarter of this process's memory limit if that is less.
func (r *bufferBudget) fill() { r.left.Store(min(mostRoom, debug.SetMemoryLimit(-1)/4)) }

// grow returns b with a capacity of n bytes, or less if there is no room. It doubles the capacity, up to limit. The first spare
// bytes of a buffer don't count.
func (r *bufferBudget) grow(b []byte, n, spare, limit int) []byte {
	if n <= cap(b) {
		return b
	}
	for _, size := range [...]int{min(max(n, 2*cap(b)), limit), min(n, limit), min(spare, limit)} {
		if size > cap(b) && r.take(int64(max(size, spare)-max(cap(b), spare))) {
			return append(make([]byte, 0, size), b...)
		}
	}
	return b
}

func (r *bufferBudget) take(n int64) bool {
	if n == 0 || r.left.Add(-n) >= 0 {
		return true
	}
	r.left.Add(n)
	return false
}

// adopt counts a buffer that the old program handed over. free stops counting a buffer that is not used any more.
func (r *bufferBudget) adopt(b []byte, spare int) { r.left.Add(-int64(max(cap(b)-spare, 0))) }

func (r *bufferBudget) free(b []byte, spare int) { r.left.Add(int64(max(cap(b)-spare, 0))) }
