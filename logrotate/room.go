package logrotate

import (
	"runtime/debug"
	"sync/atomic"
)

const (
	// mostRoom bounds what the unfinished and the kept lines of all services take in memory, above what each of them has in any case.
	mostRoom = 16 << 20
	// keptSpare is how many bytes of kept lines a file has in any case; see carrySpare too.
	keptSpare = 16 << 10
)

// room is memory that all services share, in bytes. Services decide how many lines they leave unfinished, and whether their log
// directory can be written.
type room struct{ left atomic.Int64 }

// fill sets the size: mostRoom, or a quarter of what this process may have.
func (r *room) fill() { r.left.Store(min(mostRoom, debug.SetMemoryLimit(-1)/4)) }

// grow returns b with a capacity of n bytes, or less if there is no room. It doubles the capacity, up to limit. The first spare bytes of
// a buffer are free.
func (r *room) grow(b []byte, n, spare, limit int) []byte {
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

func (r *room) take(n int64) bool {
	if n == 0 || r.left.Add(-n) >= 0 {
		return true
	}
	r.left.Add(n)
	return false
}

// adopt counts a buffer of the last generation, and free one that is not used any more.
func (r *room) adopt(b []byte, spare int) { r.left.Add(-int64(max(cap(b)-spare, 0))) }

func (r *room) free(b []byte, spare int) { r.left.Add(int64(max(cap(b)-spare, 0))) }
