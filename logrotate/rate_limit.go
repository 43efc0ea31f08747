package logrotate

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// limiter takes so many lines of a service a second. The seconds come from the monotonic clock.
type limiter struct {
	rate   atomic.Int64 // 0: no limit
	active atomic.Bool  // something is suppressed and not recorded

	// turns are held while lines of a stream are given to the sinks and there is a limit, because a record must come where its
	// lines are missing. They are held across I/O.
	turns [2]sync.Mutex
	put   func(stream int, chunk []byte)
	quiet time.Duration // after the last line that was suppressed its record comes, when no other line does

	mu         sync.Mutex  // never held across I/O
	timer      *time.Timer // fires when the flood is over; nil before there was one
	since      time.Time   // when the present second began
	taken      int64
	suppressed [2]int64  // of each stream, lines that its next record is about
	limit      int64     // by which they were
	last       time.Time // when the last of them came
}

// pass gives the sinks a record about what was suppressed before, and the lines of chunk that are taken. It returns how many are
// not.
func (l *limiter) pass(stream int, chunk []byte) (suppressed int) {
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

// end gives the sinks the record about what was suppressed last.
func (l *limiter) end(stream int) {
	if !l.active.Load() {
		return
	}
	l.turns[stream].Lock()
	defer l.turns[stream].Unlock()
	l.mu.Lock()
	record := l.record(stream)
	l.mu.Unlock()
	l.put(stream, record)
}

// over is called by the timer. A stream with something to record is still read, so its sinks are open.
func (l *limiter) over() {
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
		l.end(stream)
	}
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
		l.limit, l.last = rate, now
		if l.timer == nil {
			l.timer = time.AfterFunc(l.quiet, l.over)
		} else if l.suppressed == [2]int64{} {
			l.timer.Reset(l.quiet)
		}
	}
	l.suppressed[stream] += int64(bytes.Count(rest, []byte{'\n'}))
	l.active.Store(l.suppressed != [2]int64{})
	return record, taken
}

// record returns the record about what was suppressed last, nil when nothing was. The caller holds mu.
func (l *limiter) record(stream int) []byte {
	if l.suppressed[stream] == 0 {
		return nil
	}
	text := fmt.Appendf(nil, "[hinit] suppressed %d lines here: there were more than %d a second\n", l.suppressed[stream], l.limit)
	l.suppressed[stream] = 0
	l.active.Store(l.suppressed != [2]int64{})
	return text
}
