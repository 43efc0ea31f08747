package logrotate

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// limiter takes so many lines of a service a second. The seconds are those of the clock that only goes forward.
type limiter struct {
	rate   atomic.Int64 // 0: no limit
	active atomic.Bool  // something is suppressed and not recorded

	mu         sync.Mutex // never held across I/O
	since      time.Time  // when the present second began
	taken      int64
	suppressed [2]int64 // of each stream, lines that its next record is about
	limit      int64    // by which they were
}

// admit returns the lines of chunk, of one of the streams, that are taken, and the record that comes before them, if one is due.
func (l *limiter) admit(stream int, chunk []byte, now time.Time) (record, taken []byte) {
	rate := l.rate.Load()
	if rate <= 0 && !l.active.Load() {
		return nil, chunk
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) >= time.Second {
		l.since, l.taken = now, 0
	}
	rest := chunk
	for len(rest) > 0 && (rate <= 0 || l.taken < rate) {
		rest = rest[bytes.IndexByte(rest, '\n')+1:]
		l.taken++
	}
	taken = chunk[:len(chunk)-len(rest)]
	if len(taken) > 0 {
		record = l.record(stream)
	}
	if len(rest) > 0 {
		l.limit = rate
	}
	l.suppressed[stream] += int64(bytes.Count(rest, []byte{'\n'}))
	l.active.Store(l.suppressed != [2]int64{})
	return record, taken
}

// rest returns the record about what was suppressed last, at the end of a stream.
func (l *limiter) rest(stream int) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.record(stream)
}

// record is called with mu held.
func (l *limiter) record(stream int) []byte {
	if l.suppressed[stream] == 0 {
		return nil
	}
	text := fmt.Appendf(nil, "[hinit] suppressed %d lines here: there were more than %d a second\n", l.suppressed[stream], l.limit)
	l.suppressed[stream] = 0
	l.active.Store(l.suppressed != [2]int64{})
	return text
}
