package logrotate

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"hinit/internal/guard"
)

// rateLimiter limits the number of lines that a service may log per second, by the monotonic clock.
type rateLimiter struct {
	rate          atomic.Int64 // Maximum number of lines per second; 0 for no limit.
	hasSuppressed atomic.Bool  // Whether suppressed lines were not yet reported in a record.

	// sinkLocks has one lock for each stream. A pump holds it while it writes to console and file, so that the record about suppressed
	// lines stands where these lines are missing.
	sinkLocks   [2]sync.Mutex
	writeLines  func(stream int, chunk []byte)
	recordDelay time.Duration // Time from the last suppressed line to the record, if no other line comes.

	mu             sync.Mutex  // Guards the fields below; no goroutine holds mu during I/O.
	timer          *time.Timer // Writes the record after recordDelay; nil before the first suppressed line.
	secondStart    time.Time   // Start of the second in which lines are being counted.
	admitted       int64       // Number of lines admitted in this second.
	suppressed     [2]int64    // Suppressed lines that the next record must report, by stream.
	exceededRate   int64       // Exceeded rate, which the record names.
	lastSuppressed time.Time   // Time of the last suppressed line.
}

// writeAllowed writes the lines of chunk that the rate allows, after the record about earlier suppressed lines. It returns the
// lines that it has suppressed.
func (l *rateLimiter) writeAllowed(stream int, chunk []byte) (suppressed []byte) {
	if l.rate.Load() <= 0 && !l.hasSuppressed.Load() {
		l.writeLines(stream, chunk)
		return nil
	}
	l.sinkLocks[stream].Lock()
	defer l.sinkLocks[stream].Unlock()
	record, consumed := l.admit(stream, chunk, time.Now())
	l.writeLines(stream, record)
	l.writeLines(stream, consumed)
	return chunk[len(consumed):]
}

// writeRecord writes the record about a stream's suppressed lines, if there are any. It is called at the end of a pipe.
func (l *rateLimiter) writeRecord(stream int) {
	if !l.hasSuppressed.Load() {
		return
	}
	l.sinkLocks[stream].Lock()
	defer l.sinkLocks[stream].Unlock()
	l.mu.Lock()
	record := l.makeRecord(stream)
	l.mu.Unlock()
	l.writeLines(stream, record)
}

// timerFired is the callback of the timer. It writes the records about suppressed lines. If a line was suppressed less than
// recordDelay ago, it restarts the timer instead. The sinks are still open, because a stream with suppressed lines is still
// being read.
func (l *rateLimiter) timerFired() {
	l.mu.Lock()
	wait := l.recordDelay - time.Since(l.lastSuppressed)
	if wait > 0 && l.suppressed != [2]int64{} {
		l.timer.Reset(wait)
	}
	l.mu.Unlock()
	if wait > 0 {
		return
	}
	for stream := range l.sinkLocks {
		l.writeRecord(stream)
	}
}

// admit returns in taken the lines of chunk that the rate allows, and counts the others as suppressed. If record is not nil,
// the caller must write it before taken: it reports earlier suppressed lines.
func (l *rateLimiter) admit(stream int, chunk []byte, now time.Time) (record, consumed []byte) {
	rate := l.rate.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.secondStart) >= time.Second {
		l.secondStart, l.admitted = now, 0
	}
	rest := chunk
	for len(rest) > 0 && (rate <= 0 || l.admitted < rate) {
		rest = rest[bytes.IndexByte(rest, '\n')+1:]
		l.admitted++
	}
	consumed = chunk[:len(chunk)-len(rest)]
	if len(consumed) > 0 {
		record = l.makeRecord(stream)
	}
	if len(rest) > 0 {
		l.exceededRate, l.lastSuppressed = rate, now
		if l.timer == nil {
			l.timer = time.AfterFunc(l.recordDelay, guard.WrapFunc("reporting suppressed lines", l.timerFired))
		} else if l.suppressed == [2]int64{} {
			l.timer.Reset(l.recordDelay)
		}
	}
	l.suppressed[stream] += int64(bytes.Count(rest, []byte{'\n'}))
	l.hasSuppressed.Store(l.suppressed != [2]int64{})
	return record, consumed
}

// makeRecord returns the line that reports the suppressed lines of a stream, and resets their count. It returns nil if there are
// none. The caller holds mu.
func (l *rateLimiter) makeRecord(stream int) []byte {
	if l.suppressed[stream] == 0 {
		return nil
	}
	text := fmt.Appendf(nil, "[hinit] suppressed %d lines here: there were more than %d a second\n", l.suppressed[stream], l.exceededRate)
	l.suppressed[stream] = 0
	l.hasSuppressed.Store(l.suppressed != [2]int64{})
	return text
}
