package serve

import (
	"path/filepath"
	"sync"
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

	watcher *fsnotify.Watcher // nil without notifications
	stop    chan struct{}
	once    sync.Once
	over    chan struct{}
}

// Watch begins to watch a database. It watches the directory, for the write-ahead log comes and goes.
func Watch(db string) (*Changes, error) { return watch(filepath.Dir(db), filepath.Base(db)) }

// watchDir is Watch for whatever comes into a directory.
func watchDir(dir string) (*Changes, error) { return watch(dir, "") }

func watch(dir, base string) (*Changes, error) {
	news := make(chan struct{}, 1)
	c := &Changes{C: news, stop: make(chan struct{}), over: make(chan struct{})}
	var err error
	if c.watcher, err = fsnotify.NewWatcher(); err == nil {
		err = c.watcher.Add(dir)
	}
	if err != nil && c.watcher != nil {
		_ = c.watcher.Close() // nothing was watched
		c.watcher = nil
	}
	poll := c.watcher == nil || !fsutil.Local(dir)
	guard.Go("watching "+dir, func() { c.run(base, poll, news) })
	return c, nil
}

// run passes events on.
func (c *Changes) run(base string, poll bool, news chan<- struct{}) {
	defer close(c.over)
	var tick <-chan time.Time
	if poll {
		t := time.NewTicker(pollEvery)
		defer t.Stop()
		tick = t.C
	}
	var events <-chan fsnotify.Event
	var lost <-chan error
	if c.watcher != nil {
		events, lost = c.watcher.Events, c.watcher.Errors
	}
	settle := settleFirst // what was written before the watch began may not be seen yet, too
	again := time.NewTimer(settle)
	defer again.Stop()
	for {
		select {
		case <-c.stop:
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
		select {
		case news <- struct{}{}:
		default:
		}
	}
}

// Close stops watching.
func (c *Changes) Close() {
	c.once.Do(func() {
		close(c.stop)
		<-c.over
		if c.watcher != nil {
			_ = c.watcher.Close() // nothing is lost with it
		}
	})
}
