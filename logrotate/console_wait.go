package logrotate

import (
	"slices"
	"sync/atomic"
	"time"
)

// stalled reports whether the reader has taken nothing for too long. The caller holds mu.
func (c *console) stalled() bool {
	return c.reader.stall < 0 || c.waiting > 0 && c.reader.idle() >= c.reader.stall
}

// progress is what is known of the reader of a console.
type progress struct {
	stall time.Duration // without progress for so long, it has stalled; negative: pumps never wait
	born  time.Time
	moved atomic.Int64 // when it took something last, or was first given something to take; since born
}

// idle is how long the reader has taken nothing.
func (r *progress) idle() time.Duration { return time.Since(r.born) - time.Duration(r.moved.Load()) }

// move notes that the reader takes what it is given.
func (r *progress) move() { r.moved.Store(int64(time.Since(r.born))) }

// waiter is a pump with lines for which there is no room yet.
type waiter struct {
	source *source
	woken  chan struct{}
}

// insist adds the lines that take returned. It waits until there is room for the last of them, or until the reader has taken nothing for
// stall: then the rest is left out, and counted.
func (c *console) insist(src *source, rest []byte) {
	if len(rest) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for rest = c.add(src, rest, c.mode, false); len(rest) > 0; rest = c.add(src, rest, c.mode, false) {
		w := &waiter{src, make(chan struct{})}
		c.pumps = append(c.pumps, w)
		left := max(c.reader.stall-c.reader.idle(), time.Millisecond)
		c.mu.Unlock()
		timer := time.NewTimer(left)
		select {
		case <-w.woken:
		case <-timer.C:
		}
		timer.Stop()
		c.mu.Lock()
		if i := slices.Index(c.pumps, w); i >= 0 {
			c.pumps = slices.Delete(c.pumps, i, i+1)
		}
	}
}

// call wakes the pumps that can go on. The caller holds mu.
func (c *console) call() {
	need := consoleShare / 2 // not for every block that is written
	if c.waiting >= consoleLimit {
		need = consoleLittle
	}
	left := c.pumps[:0]
	for _, w := range c.pumps {
		src := w.source
		if c.dead || c.closing || c.hurry || src.urgent || src.dropped == 0 && c.room(src, false) >= need {
			close(w.woken)
			continue
		}
		left = append(left, w)
	}
	clear(c.pumps[len(left):])
	c.pumps = left
}

// press makes every pump that waits go on, and none wait any more, until it is called with false.
func (c *console) press(hurry bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hurry = hurry
	c.call()
}

// urge makes the pumps of one source go on, and not wait until it is called with false.
func (c *console) urge(src *source, urgent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if src.urgent != urgent {
		src.urgent = urgent
		c.call()
	}
}
