package logrotate

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// limiter limits the lines that a service writes per second. It measures seconds by the monotonic clock.
type limiter struct {
	rate   atomic.Int64 // 0: no limit
	active atomic.Bool  // lines were suppressed, and no record has reported them yet

	// A stream with a limit locks its turn while it writes to its sinks, so that a record appears where its lines are missing.
	// The lock is held during I/O.
	turns [2]sync.Mutex
	put   func(stream int, chunk []byte)
	quiet time.Duration // delay of the record after the last suppressed line, if no other line comes

	mu         sync.Mutex  // never held across I/O
	timer      *time.Timer // fires quiet after a suppressed line; nil before the first one
	since      time.Time   // start of the current second
	taken      int64
	suppressed [2]int64  // lines suppressed so far, by stream; the next record reports them
	limit      int64     // the exceeded rate
	last       time.Time // time of the last suppressed line
}

// writeAllowed writes the lines of chunk that the rate allows, after a record about earlier suppressed lines. It returns the
// number of suppressed lines of chunk.
func (l *limiter) writeAllowed(stream int, chunk []byte) (suppressed int) {
	if l.rate.Load() <= 0 && !l.active.Load() {
		l.put(stream, chunk)
		return 0
	}
	l.turns[stream].Lock()
	defer l.turns[stream].Unlock()
	record, taken := l.admit(stream, chunk, time.Now())
	l.put(stream, record)
	l.put(stream, taken)
	return bytes.Count(chunk[len(taken):], []byte{'\n'})
}

// writeRecord writes the record about suppressed lines, if any.
func (l *limiter) writeRecord(stream int) {
	if !l.active.Load() {
		return
	}
	l.turns[stream].Lock()
	defer l.turns[stream].Unlock()
	l.mu.Lock()
	record := l.makeRecord(stream)
	l.mu.Unlock()
	l.put(stream, record)
}

// timerFired is the callback of the timer. The sinks are open, because a stream with suppressed lines is still being read.
func (l *limiter) timerFired() {
	l.mu.Lock()
	wait := l.quiet - time.Since(l.last)
	if wait > 0 && l.suppressed != [2]int64{} {
		l.timer.Reset(wait)
	}
	l.mu.Unlock()
	if wait > 0 {
		return
	}
	for stream := range l.turns {
		l.writeRecord(stream)
	}
}

// admit returns the lines of chunk that the rate allows, and the record to write before them, or nil.
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
		record = l.makeRecord(stream)
	}
	if len(rest) > 0 {
		l.limit, l.last = rate, now
		if l.timer == nil {
			l.timer = time.AfterFunc(l.quiet, l.timerFired)
		} else if l.suppressed == [2]int64{} {
			l.timer.Reset(l.quiet)
		}
	}
	l.suppressed[stream] += int64(bytes.Count(rest, []byte{'\n'}))
	l.active.Store(l.suppressed != [2]int64{})
	return record, taken
}

// makeRecord returns the record about the suppressed lines of a stream, or nil if there are none. The caller holds mu.
func (l *limiter) makeRecord(stream int) []byte {
	if l.suppressed[stream] == 0 {
		return nil
	}
	text := fmt.Appendf(nil, "[hinit] suppressed %d lines here: there were more than %d a second\n", l.suppressed[stream], l.limit)
	l.suppressed[stream] = 0
	l.active.Store(l.suppressed != [2]int64{})
	return text
}
