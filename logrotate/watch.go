package logrotate

import (
	"context"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
)

// pollEvery is how often a follower looks by itself: where inotify doesn't work, and for a directory that isn't there.
const pollEvery = time.Second

// watch tells a follower that something may have happened in a directory. It is a hint: a wait also ends by itself.
type watch struct {
	dir     string
	watcher *fsnotify.Watcher // nil when there is no inotify to be had
	watched os.FileInfo       // the directory that is watched, nil when none is
	timer   *time.Timer
}

func newWatch(dir string) *watch {
	w := &watch{dir: dir, timer: time.NewTimer(pollEvery)}
	w.watcher, _ = fsnotify.NewWatcher() // without it there is the timer
	w.renew()
	return w
}

func (w *watch) close() {
	w.timer.Stop()
	if w.watcher != nil {
		w.watcher.Close()
	}
}

// renew watches the directory that has the name now. It reports whether that is a new one.
func (w *watch) renew() bool {
	if w.watcher == nil {
		return false
	}
	st, err := os.Stat(w.dir)
	if err != nil {
		w.watched = nil
		return false
	}
	if w.watched != nil && os.SameFile(st, w.watched) {
		return false
	}
	_ = w.watcher.Remove(w.dir) // of the old one, if it still has a watch
	if w.watcher.Add(w.dir) == nil {
		w.watched = st
	}
	return true
}

// wait returns when something may have happened, and nil; or when ctx has ended, and its error.
func (w *watch) wait(ctx context.Context) error {
	if w.renew() {
		return nil
	}
	var events chan fsnotify.Event
	var errs chan error
	if w.watcher != nil {
		events, errs = w.watcher.Events, w.watcher.Errors
	}
	w.timer.Reset(pollEvery)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.timer.C:
		return nil
	case <-errs: //nolint:errcheck // an overflow: events are missing, so look
		return nil
	case <-events:
	}
	for { // one look serves for all that have come
		select {
		case <-events:
		default:
			return nil
		}
	}
}
