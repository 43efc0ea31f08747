// Package shared lets any number of goroutines wait for changes of directories with one inotify instance. Clients use it; PID 1
// does not contain it.
//
// A [Follower] stores one bit, so a flood of changes needs no memory. An overflow of the kernel's queue wakes all followers. If
// inotify does not work, only the time limit of [Follower.Wait] wakes.
//
// While a Follower exists, two goroutines serve all followers of a [Watch]. One of them belongs to package watch. Between
// events they sleep.
package shared

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/watch"
)

// ProcessWatch is the only Watch of the process, because a user may have only 128 inotify instances
// (fs.inotify.max_user_instances).
var ProcessWatch = Watch{open: (*watch.Set).Open, followers: make(map[string][]*Follower)}

// Watch shares one inotify instance, and the goroutine that reads it, among all its followers. Both exist only while a follower
// exists.
type Watch struct {
	open func(*watch.Set) error

	mu        sync.Mutex
	set       watch.Set
	followers map[string][]*Follower // followers by their directory
}

// Follower waits for changes of one directory. One goroutine at a time may use it.
type Follower struct {
	shared *Watch
	dir    string
	filter func(watch.Event) bool
	woken  chan struct{} // channel of capacity 1 with a token when the directory may have changed
}

// Follow returns a Follower of the directory dir, which need not exist yet. The Follower ignores events of files for which
// wants returns false. A nil wants accepts all events. wants must not block.
func (s *Watch) Follow(dir string, wants func(watch.Event) bool) *Follower {
	f := &Follower{shared: s, dir: filepath.Clean(dir), filter: wants, woken: make(chan struct{}, 1)}
	s.mu.Lock()
	s.followers[f.dir] = append(s.followers[f.dir], f)
	s.mu.Unlock()
	f.Rearm()
	return f
}

// Close ends the watch of the directory, unless another Follower needs it.
func (f *Follower) Close() {
	s := f.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := slices.DeleteFunc(s.followers[f.dir], func(other *Follower) bool { return other == f })
	s.followers[f.dir] = rest
	if len(rest) > 0 {
		return
	}
	delete(s.followers, f.dir)
	s.set.Remove(f.dir)
	if len(s.followers) == 0 {
		s.set.Close() // this also ends the goroutine
	}
}

// Rearm watches the directory that is now at the path, and reports whether it is watched. If the directory was replaced, Rearm
// wakes all followers of the path.
func (f *Follower) Rearm() bool {
	s := f.shared
	info, err := os.Stat(f.dir)
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set.ID(f.dir) == fsutil.IDOf(info) {
		return true
	}
	if s.set.Events == nil {
		if s.open(&s.set) != nil {
			return false
		}
		events, lost := s.set.Events, s.set.Lost
		guard.Go("watching directories", func() { s.run(events, lost) })
	}
	if s.set.Add(f.dir, fsutil.IDOf(info)) != nil {
		return false
	}
	wake(s.followers[f.dir])
	return true
}

// Wait blocks until the directory may have changed, or until the time limit has passed. A limit of 0 means no limit. changed is
// false after the limit. If ctx ends, Wait returns its error. Changes between two calls of Wait end the second call.
func (f *Follower) Wait(ctx context.Context, limit time.Duration) (changed bool, err error) {
	f.Rearm()
	var over <-chan time.Time
	if limit > 0 {
		over = time.After(limit)
	}
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-over:
		return false, nil
	case <-f.woken:
		return true, nil
	}
}

// run wakes followers until both channels are closed.
func (s *Watch) run(events <-chan watch.Event, lost <-chan error) {
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				return
			}
			s.handle(ev)
		case _, ok := <-lost:
			if !ok {
				return
			}
			s.wakeAll()
		}
	}
}

// handle wakes the followers of the directory with the file of the event, and of the file itself if it is a directory.
func (s *Watch) handle(ev watch.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set.IsDir(ev)
	for _, dir := range []string{filepath.Dir(ev.Name), ev.Name} {
		for _, f := range s.followers[dir] {
			if dir == ev.Name || f.filter == nil || f.filter(ev) { // each Follower must learn that the watch has ended
				pause.Wake(f.woken)
			}
		}
	}
}

// wakeAll wakes all followers, because events were lost.
func (s *Watch) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range s.followers {
		wake(all)
	}
}

func wake(all []*Follower) {
	for _, f := range all {
		pause.Wake(f.woken)
	}
}
