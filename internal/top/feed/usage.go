package feed

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/pause"
	"hinit/internal/usage"
)

const (
	// measureEvery is the shortest time between two measurements.
	measureEvery = time.Second
	// measureShare is the length of the pause between two measurements, as a multiple of their duration. So they use at most a
	// hundredth of a processor.
	measureShare = 100
)

// proc returns the path of the /proc with the services' processes, or "" if it is not visible.
func (f *Feed) proc() string {
	if st := f.status.Load(); st != nil && st.Init.PID > 0 {
		return usage.Root(f.client.Socket(), st.Init.PID)
	}
	return ""
}

// Usage measures the use of the services repeatedly: once a second, or less often, so that it takes at most a hundredth of a
// processor. It calls used with nil if it can't measure.
func (f *Feed) Usage(ctx context.Context, used func(map[string]usage.Usage)) {
	runtime.LockOSThread() // the time of this thread is measured
	defer runtime.UnlockOSThread()
	var root string
	var at time.Time
	var before, last, spare usage.Table
	for ctx.Err() == nil {
		begin := threadTime()
		st := f.status.Load()
		if root == "" {
			root = f.proc()
		}
		if st != nil && root != "" {
			now, err := time.Now(), error(nil)
			before, spare = last, before
			if last, err = usage.Read(root, spare); err != nil {
				root, before = "", nil
				used(nil)
			} else {
				used(last.Used(usage.RootsOf(*st, root), before, now.Sub(at)))
				at = now
			}
		} else if st != nil {
			used(nil)
		}
		rest := max(measureEvery, measureShare*(threadTime()-begin))
		if st == nil {
			rest = retry
		}
		pause.For(ctx, rest)
	}
}

// threadTime returns the processor time of this thread.
func threadTime() time.Duration {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now) != nil {
		return 0
	}
	return time.Duration(now.Nano())
}
