package logrotate

import (
	"slices"
	"sync/atomic"
	"time"
)

// stalled reports whether the console's reader has read nothing for longer than progress.stall, so that pumps must not wait for
// the reader. The caller holds mu.
func (c *console) stalled() bool {
	return c.reader.stall < 0 || c.waiting > 0 && c.reader.idle() >= c.reader.stall
}

// progress records when the reader of a console last read something.
type progress struct {
	stall time.Duration // after this time without progress the reader counts as stalled; negative: pumps never wait
	born  time.Time
	moved atomic.Int64 // when the reader last read something, or data was queued while the queue was empty; nanoseconds since born
}

// idle returns how long ago the reader last made progress.
func (r *progress) idle() time.Duration { return time.Since(r.born) - time.Duration(r.moved.Load()) }

// record records that the reader has made progress now.
func (r *progress) record() { r.moved.Store(int64(time.Since(r.born))) }

// waiter is a pump that waits until the console has room for its lines.
type waiter struct {
	source *source
	woken  chan struct{}
}

// addOrWait queues the lines in rest, for which enqueue had no room. It waits for room if necessary. If the reader makes no
// progress for progress.stall, addOrWait drops and counts the remaining lines.
func (c *console) addOrWait(src *source, rest []byte) {
	if len(rest) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for rest = c.addLines(src, rest, c.mode, false); len(rest) > 0; rest = c.addLines(src, rest, c.mode, false) {
		w := &waiter{src, make(chan struct{})}
		c.pumps = append(c.pumps, w)
		left := max(c.reader.stall-c.reader.idle(), time.Millisecond)
		c.mu.Unlock()
		select {
		case <-w.woken:
		case <-time.After(left):
		}
		c.mu.Lock()
		if i := slices.Index(c.pumps, w); i >= 0 {
			c.pumps = slices.Delete(c.pumps, i, i+1)
		}
	}
}

// wakePumps wakes the pumps that have room now, or that must not wait any longer. The caller holds mu.
func (c *console) wakePumps() {
	need := maxSourceQueue / 2 // wake a pump only if there is much room for its lines
	if c.waiting >= consoleLimit {
		need = minSourceQueue
	}
	left := c.pumps[:0]
	for _, w := range c.pumps {
		src := w.source
		if c.dead || c.closing || c.noWaiting || src.mustNotWait || src.dropped == 0 && c.queueSpace(src, false) >= need {
			close(w.woken)
			continue
		}
		left = append(left, w)
	}
	clear(c.pumps[len(left):])
	c.pumps = left
}

// setHurry with true wakes all waiting pumps and keeps every pump from waiting, until setHurry is called with false.
func (c *console) setHurry(hurry bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noWaiting = hurry
	c.wakePumps()
}

// setUrgent with true wakes the waiting pumps of one source and keeps them from waiting, until setUrgent is called with false.
func (c *console) setUrgent(src *source, urgent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if src.mustNotWait != urgent {
		src.mustNotWait = urgent
		c.wakePumps()
	}
}
