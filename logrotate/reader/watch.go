package reader

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// pollEvery is how often a follower looks by itself: where inotify doesn't work, and for a directory that isn't there.
const pollEvery = time.Second

// watch tells a follower that something may have happened in a directory. It is a hint: a wait also ends by itself.
type watch struct {
	dir   string
	hub   *hub
	every time.Duration // a wait ends by itself after that
	timer *time.Timer
	woken chan struct{} // has one when something may have happened
}

func newWatch(dir string, h *hub, every time.Duration) *watch {
	w := &watch{dir: filepath.Clean(dir), hub: h, every: every, timer: time.NewTimer(every), woken: make(chan struct{}, 1)}
	h.join(w)
	w.renew()
	return w
}

func (w *watch) close() {
	w.timer.Stop()
	w.hub.leave(w)
}

// renew has the directory watched that has the name now. If that is another one than before, this is something that happened.
func (w *watch) renew() {
	st, _ := os.Stat(w.dir) // nil when there is none
	w.hub.cover(w.dir, st)
}

// wake ends a wait, the present or the next one. It doesn't block.
func (w *watch) wake() {
	select {
	case w.woken <- struct{}{}:
	default: // one look serves for all that has come
	}
}

// wait returns when something may have happened, and nil; or when ctx has ended, and its error.
func (w *watch) wait(ctx context.Context) error {
	w.renew()
	w.timer.Reset(w.every)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.timer.C:
	case <-w.woken:
	}
	return nil
}

// watches is the hub of the process. A user has 128 instances of inotify (fs.inotify.max_user_instances) for all processes.
var watches = hub{open: fsnotify.NewWatcher}

// hub shares one instance of inotify among all watches. It has it, and a goroutine that reads it, while there is a watch.
type hub struct {
	open func() (*fsnotify.Watcher, error)

	mu      sync.Mutex
	watcher *fsnotify.Watcher // nil when there is none to be had
	dirs    map[string]*watched
}

// watched is a directory that somebody wants watched.
type watched struct {
	by map[*watch]struct{}
	as os.FileInfo // what is watched, nil when nothing is
}

func (d *watched) wake() {
	for w := range d.by {
		w.wake()
	}
}

func (h *hub) join(w *watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dirs == nil {
		h.dirs = make(map[string]*watched)
	}
	if h.dirs[w.dir] == nil {
		h.dirs[w.dir] = &watched{by: make(map[*watch]struct{})}
	}
	h.dirs[w.dir].by[w] = struct{}{}
}

func (h *hub) leave(w *watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.dirs[w.dir]
	delete(d.by, w)
	if len(d.by) > 0 {
		return
	}
	delete(h.dirs, w.dir)
	switch {
	case h.watcher == nil:
	case len(h.dirs) == 0:
		_ = h.watcher.Close() // its goroutine ends with it
		h.watcher = nil
	case d.as != nil:
		_ = h.watcher.Remove(w.dir) // it may be gone
	}
}

// cover has dir watched, which is st now; nil is nothing. All who wait for it look when that is new.
func (h *hub) cover(dir string, st os.FileInfo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.dirs[dir]
	if st == nil || d.as != nil && os.SameFile(st, d.as) {
		return
	}
	if h.watcher == nil {
		watcher, err := h.open()
		if err != nil {
			return // there is the timer, and the next try
		}
		h.watcher = watcher
		go h.run(watcher)
	}
	_ = h.watcher.Remove(dir) // of the old one, if it still has a watch
	d.as = nil
	if h.watcher.Add(dir) == nil {
		d.as = st
		d.wake()
	}
}

// run wakes who waits for what happens, until the watcher is closed.
func (h *hub) run(watcher *fsnotify.Watcher) {
	for {
		select {
		case event, ok := <-watcher.Events:
			if !ok {
				return
			}
			h.happened(event)
		case _, ok := <-watcher.Errors:
			if !ok {
				return
			}
			h.missed()
		}
	}
}

func (h *hub) happened(event fsnotify.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.dirs[filepath.Dir(event.Name)]; d != nil {
		d.wake()
	}
	if d := h.dirs[event.Name]; d != nil { // the directory itself
		if event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename) {
			d.as = nil // the next one that has the name may have its inode number too
		}
		d.wake()
	}
}

// missed is for an overflow: events are missing, so all look.
func (h *hub) missed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.dirs {
		d.wake()
	}
}
