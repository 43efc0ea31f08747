package serve

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// A change can be seen only after it is told: the writer has its data synced in between. So an event is told again after settleFirst, and
// then in times twice as long each, up to settleLast.
const (
	settleFirst = 2 * time.Millisecond
	settleLast  = 2 * time.Second
)

// pollEvery is how often a file is looked at where the kernel does not tell of all changes.
const pollEvery = 2 * time.Second

// Changes tells that a board's file may have changed.
type Changes struct {
	C <-chan struct{} // receives after one change or more, and a few times for nothing

	stop context.CancelFunc
	over chan struct{} // closed when nothing is watched any more
}

// Watch begins to watch a database. It watches the directory, for the write-ahead log comes and goes.
func Watch(db string) *Changes { return watch(filepath.Dir(db), filepath.Base(db)) }

// watch is Watch for a file of a directory, and those beside it, or for all that comes into it.
func watch(dir, base string) *Changes {
	ctx, stop := context.WithCancel(context.Background())
	news := make(chan struct{}, 1)
	c := &Changes{C: news, stop: stop, over: make(chan struct{})}
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		err = watcher.Add(dir)
	}
	poll := err != nil || !fsutil.Local(dir)
	guard.Go("watching "+dir, func() {
		defer close(c.over)
		run(ctx, base, poll, watcher, news)
	})
	return c
}

// run passes events on. Without a watcher it polls.
func run(ctx context.Context, base string, poll bool, watcher *fsnotify.Watcher, news chan<- struct{}) {
	var tick <-chan time.Time
	if poll {
		t := time.NewTicker(pollEvery)
		defer t.Stop()
		tick = t.C
	}
	var events <-chan fsnotify.Event
	var lost <-chan error
	if watcher != nil {
		defer watcher.Close()
		events, lost = watcher.Events, watcher.Errors
	}
	settle := settleFirst // what was written before the watch began may not be seen yet, too
	again := time.NewTimer(settle)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			if settle *= 2; settle <= settleLast {
				again.Reset(settle)
			}
		case e := <-events:
			if name := filepath.Base(e.Name); base != "" && name != base && name != base+"-wal" && name != base+"-shm" || e.Op == fsnotify.Chmod {
				continue
			}
			settle = settleFirst
			again.Reset(settle)
		case err := <-lost: // too many at a time, so that some are not told; whichever it is, it is worth a look
			_ = err
		case <-tick:
		}
		notify(news)
	}
}

// Close stops watching.
func (c *Changes) Close() {
	c.stop()
	<-c.over
}
