package profiles

import (
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// patience is how long a directory of the volume may take to answer the first question. Longer, most likely, is a mount whose
// server is gone.
const patience = time.Second

// patience is waited for in so many steps. When this process was paused itself, only one of them is over when it goes on.
const steps = 10

// mostStuck is how many calls may be left behind in directories that don't answer. Each keeps a thread and a turn. With so many,
// mount points below profiles/ are not asked any more; with one more, nothing is.
const mostStuck = 3

// errSilent says that a part of the volume does not answer.
var errSilent = errors.New("it does not answer")

// patiently runs fn with the volume in a goroutine of its own. After patience it returns an error that wraps errSilent, and leaves
// the goroutine to end when the disk answers.
func (s *Store) patiently(fn func(d *fsutil.Dir) error) error {
	_, err := askEach(s, func(d *fsutil.Dir, _ progress) (struct{}, error) { return struct{}{}, fn(d) })
	return err
}

// progress tells patiently which directory is asked next, relative to the root; "" is none. It returns false when the function has
// been given up and must end.
type progress func(rel string) (goOn bool)

// askEach is patiently for a function that asks many directories, each of which has the whole patience. A directory that takes
// longer counts as silent until it answers; the error is an fs.PathError that names it. Others must not use what fn has used by
// then.
func askEach[T any](s *Store, fn func(d *fsutil.Dir, at progress) (T, error)) (result T, err error) {
	type answer struct {
		result T
		err    error
	}
	a := &attempt{store: s}
	if s.stuckCalls() > mostStuck {
		return result, a.silent()
	}
	done := make(chan answer, 1)
	go func() {
		defer guard.Catch("asking the volume")
		defer close(done)
		defer a.ended()
		d, err := s.open()
		var r T
		if err == nil {
			r, err = fn(d, a.at)
			d.Close()
		}
		done <- answer{r, err}
	}()
	tick := time.NewTicker(patience / steps)
	defer tick.Stop()
	for beats, quiet := 0, 0; ; {
		select {
		case got, ok := <-done:
			if !ok { // a fault, which is reported
				return result, a.silent()
			}
			return got.result, got.err
		case <-tick.C:
		}
		now := a.count()
		if now != beats {
			beats, quiet = now, 0
			continue
		}
		if quiet++; quiet < steps {
			continue
		}
		if a.giveUp(beats) {
			return result, a.silent()
		}
	}
}

// attempt is one call of attended. Its fields are guarded by the mutex of the store.
type attempt struct {
	store *Store
	beats int
	rel   string // what it asks
	left  bool   // its caller does not wait any more
	over  bool
}

func (a *attempt) at(rel string) bool {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	a.beats++
	if !a.left {
		a.rel = rel
	}
	return !a.left
}

func (a *attempt) count() int {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	return a.beats
}

// silent returns the error that names the directory without an answer. It wraps errSilent.
func (a *attempt) silent() error {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	return &fs.PathError{Op: "read", Path: filepath.Join(a.store.root, a.rel), Err: errSilent}
}

// giveUp leaves the attempt behind, unless it got on since that progress.
func (a *attempt) giveUp(beats int) bool {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	if a.over || a.beats != beats {
		return false
	}
	a.left = true
	a.store.stuck++
	if a.rel != "" {
		a.store.silent[a.rel] = true
	}
	return true
}

// ended records that the disk has answered.
func (a *attempt) ended() {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	a.over = true
	if a.left {
		a.store.stuck--
		delete(a.store.silent, a.rel)
	}
}

func (s *Store) stuckCalls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stuck
}

// isSilent reports whether a directory was asked and has not answered.
func (s *Store) isSilent(rel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent[rel]
}

// answers asks a directory, relative to the root, unless it is known to be silent, and reports whether it answers.
func (s *Store) answers(rel string) bool {
	if s.isSilent(rel) {
		return false
	}
	_, err := askEach(s, func(d *fsutil.Dir, at progress) (struct{}, error) {
		at(rel)
		_ = d.Has(filepath.Join(rel, s.marker)) // any answer is one
		return struct{}{}, nil
	})
	return !errors.Is(err, errSilent)
}
