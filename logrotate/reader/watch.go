package reader

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// pollEvery is the maximum time between two checks of a log directory. inotify may not work there, and the directory may not
// exist yet.
const pollEvery = time.Second

// watch wakes one call of Read when its log directory may have changed. inotify can miss changes, so it also wakes the call at
// least once per interval (the field every).
type watch struct {
	dir   string
	hub   *hub
	every time.Duration // maximum time of one wait
	timer *time.Timer
	woken chan struct{} // capacity 1; holds a token when the directory may have changed
}

func newWatch(dir string, h *hub, every time.Duration) *watch {
	w := &watch{dir: filepath.Clean(dir), hub: h, every: every, timer: time.NewTimer(every), woken: make(chan struct{}, 1)}
	h.join(w)
	w.watchAgain()
	return w
}

func (w *watch) close() {
	w.timer.Stop()
	w.hub.leave(w)
}

// watchAgain makes inotify watch the directory at w.dir. If another directory is there now, it wakes all calls of Read that
// follow w.dir.
func (w *watch) watchAgain() {
	st, _ := os.Stat(w.dir) // nil if the directory doesn't exist
	w.hub.watchDir(w.dir, st)
}

// wake ends the current wait, or the next wait if there is no current one. It doesn't block.
func (w *watch) wake() {
	select {
	case w.woken <- struct{}{}:
	default: // a token is already in the channel
	}
}

// wait blocks until the directory may have changed, but at most for w.every. It returns an error only if ctx ends.
func (w *watch) wait(ctx context.Context) error {
	w.watchAgain()
	w.timer.Reset(w.every)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.timer.C:
	case <-w.woken:
	}
	return nil
}

// watches is the only hub of the process, because a user may have only 128 inotify instances (fs.inotify.max_user_instances).
var watches = hub{open: fsnotify.NewWatcher}

// hub shares one instance of inotify, and the goroutine that reads it, among all watches. Both exist only while a watch exists.
type hub struct {
	open func() (*fsnotify.Watcher, error)

	mu      sync.Mutex
	watcher *fsnotify.Watcher // nil if inotify is not available
	dirs    map[string]*watched
}

// watched is one log directory and the followers (calls of Read) that wait for its changes.
type watched struct {
	followers map[*watch]struct{}
	status    os.FileInfo // status of the directory that inotify watches; nil if inotify watches none
}

func (d *watched) wake() {
	for w := range d.followers {
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
		h.dirs[w.dir] = &watched{followers: make(map[*watch]struct{})}
	}
	h.dirs[w.dir].followers[w] = struct{}{}
}

func (h *hub) leave(w *watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.dirs[w.dir]
	delete(d.followers, w)
	if len(d.followers) > 0 {
		return
	}
	delete(h.dirs, w.dir)
	switch {
	case h.watcher == nil:
	case len(h.dirs) == 0:
		_ = h.watcher.Close() // the close ends the goroutine of the watcher
		h.watcher = nil
	case d.status != nil:
		_ = h.watcher.Remove(w.dir) // ignore the error: the directory may be gone
	}
}

// watchDir makes inotify watch dir. st is the file status of dir, or nil if dir doesn't exist. If dir is now another directory
// than before, watchDir wakes the calls of Read that follow it.
func (h *hub) watchDir(dir string, st os.FileInfo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.dirs[dir]
	if st == nil || d.status != nil && os.SameFile(st, d.status) {
		return
	}
	if h.watcher == nil {
		watcher, err := h.open()
		if err != nil {
			return // each follower still has its timer, and the next call tries again
		}
		h.watcher = watcher
		go h.run(watcher)
	}
	_ = h.watcher.Remove(dir) // remove the watch on the replaced directory
	d.status = nil
	if h.watcher.Add(dir) == nil {
		d.status = st
		d.wake()
	}
}

// run reads inotify events until the watcher is closed. At each event it wakes the calls of Read that follow the directory.
func (h *hub) run(watcher *fsnotify.Watcher) {
	for {
		select {
		case event, ok := <-watcher.Events:
			if !ok {
				return
			}
			h.handleEvent(event)
		case _, ok := <-watcher.Errors:
			if !ok {
				return
			}
			h.wakeAll()
		}
	}
}

func (h *hub) handleEvent(event fsnotify.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.dirs[filepath.Dir(event.Name)]; d != nil {
		d.wake()
	}
	if d := h.dirs[event.Name]; d != nil { // the event is about the directory itself
		if event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename) {
			d.status = nil // a new directory may have the same inode number, so forget it
		}
		d.wake()
	}
}

// wakeAll wakes all calls of Read that follow a log. It is called after an error, such as an overflow of the event queue, because
// changes may have been missed.
func (h *hub) wakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.dirs {
		d.wake()
	}
}
