package profiles

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// answerTimeout is the time for which the store waits for a directory of the volume. A directory that stays silent longer is
// probably a mount whose server is gone.
const answerTimeout = time.Second

// answerSteps is the number of short waits into which answerTimeout is divided. If this whole process is paused, the pause uses
// up at most one short wait, so the directory isn't taken for silent.
const answerSteps = 10

// maxHangingCalls limits the number of calls that wait for a silent directory. Each such call holds a thread and one of the
// calls that [blocking.Volume] allows at once. While maxHangingCalls calls wait, hinit doesn't use mount points below
// profiles/. While more wait, hinit uses no directory of the volume.
const maxHangingCalls = 3

// errSilent means that a directory of the volume has not answered within answerTimeout.
var errSilent = errors.New("it does not answer")

// withTimeLimit opens the volume and passes it to fn in a goroutine. If fn takes longer than answerTimeout, withTimeLimit returns
// an error that wraps errSilent. The goroutine then continues until the disk answers.
func (s *Store) withTimeLimit(fn func(d *fsutil.Dir) error) error {
	_, err := examineEach(s, func(d *fsutil.Dir, _ progress) (struct{}, error) { return struct{}{}, fn(d) })
	return err
}

// progress tells examineEach which directory the function fn examines next. rel is the directory's path relative to the root, or
// "" for none. The result goOn is false after examineEach has given up; fn must then return.
type progress func(rel string) (goOn bool)

// examineEach works like withTimeLimit, for a function that examines many directories: fn may spend up to answerTimeout on
// each directory. A directory that takes longer counts as silent until it answers. The error is then an fs.PathError with
// the path of the directory. After this error, fn may still be running, so the caller must not use variables that fn
// changes.
func examineEach[T any](s *Store, fn func(d *fsutil.Dir, at progress) (T, error)) (result T, err error) {
	type answer struct {
		result T
		err    error
	}
	a := &attempt{store: s}
	if s.stuckCalls() > maxHangingCalls {
		return result, a.silentError()
	}
	done := make(chan answer, 1)
	go func() {
		defer guard.Catch("asking the volume")
		defer close(done)
		defer a.recordEnd()
		d, err := s.open()
		var r T
		if err == nil {
			r, err = fn(d, a.examine)
			d.Close()
		}
		done <- answer{r, err}
	}()
	tick := time.Tick(answerTimeout / answerSteps)
	for beats, quiet := int64(0), 0; ; {
		select {
		case got, ok := <-done:
			if !ok { // fn panicked, which guard.Catch has reported
				return result, a.silentError()
			}
			return got.result, got.err
		case <-tick:
		}
		if now := a.beats.Load(); now != beats {
			beats, quiet = now, 0
			continue
		}
		if quiet++; quiet < answerSteps {
			continue
		}
		if a.giveUp(beats) {
			return result, a.silentError()
		}
	}
}

// attempt is the state of one call of examineEach. The mutex of the store guards the fields after beats.
type attempt struct {
	store       *Store
	beats       atomic.Int64 // number of directories that fn has begun to examine
	examinedDir string       // the directory that fn examines now
	abandoned   bool         // examineEach has given up
	over        bool
}

func (a *attempt) examine(rel string) bool {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	a.beats.Add(1)
	if !a.abandoned {
		a.examinedDir = rel
	}
	return !a.abandoned
}

// silentError returns the error that reports the directory which fn is examining as silent. It wraps errSilent.
func (a *attempt) silentError() error {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	return &fs.PathError{Op: "read", Path: filepath.Join(a.store.root, a.examinedDir), Err: errSilent}
}

// giveUp abandons the attempt and returns true. If fn has ended, or has reported progress since the caller read the progress
// count beats, giveUp does nothing and returns false.
func (a *attempt) giveUp(beats int64) bool {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	if a.over || a.beats.Load() != beats {
		return false
	}
	a.abandoned = true
	a.store.hangingCalls++
	if a.examinedDir != "" {
		a.store.silent[a.examinedDir] = true
	}
	return true
}

// recordEnd records that fn has ended. If the attempt was abandoned, its directory has now answered and is no longer silent.
func (a *attempt) recordEnd() {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	a.over = true
	if a.abandoned {
		a.store.hangingCalls--
		delete(a.store.silent, a.examinedDir)
	}
}

func (s *Store) stuckCalls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hangingCalls
}

// isSilent reports whether a call to a directory has timed out and is still waiting for an answer.
func (s *Store) isSilent(rel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent[rel]
}

// answers reports whether a directory, relative to the root, answers in time. For a directory that is known to be silent, it
// returns false without a new call.
func (s *Store) answers(rel string) bool {
	if s.isSilent(rel) {
		return false
	}
	_, err := examineEach(s, func(d *fsutil.Dir, at progress) (struct{}, error) {
		at(rel)
		_ = d.CheckExists(filepath.Join(rel, s.marker)) // an error also counts as an answer
		return struct{}{}, nil
	})
	return !errors.Is(err, errSilent)
}
