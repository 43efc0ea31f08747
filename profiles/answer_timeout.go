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

// answerTimeout is how long the store waits for a directory of the volume. A slower directory is probably a mount whose server
// is gone.
const answerTimeout = time.Second

// answerSteps is the number of short waits that make up answerTimeout. A pause of this whole process uses up at most one of them,
// so it doesn't make a directory look silent.
const answerSteps = 10

// maxHangingCalls limits the calls that wait for a silent directory. Each holds a thread and one of the calls that
// [blocking.Volume] allows at once. While this many hang, hinit doesn't use mount points below profiles/; while more hang, it uses
// no directory of the volume.
const maxHangingCalls = 3

// errSilent means that a directory of the volume has not answered within answerTimeout.
var errSilent = errors.New("it does not answer")

// progress is called by a function that examineEach runs, before it examines another directory. rel is the directory's path
// relative to the root, or "" for none. goOn is false if examineEach has given up; then the function must return.
type progress func(rel string) (goOn bool)

// examineEach runs fn with the open volume in a goroutine. fn may take answerTimeout for each directory that it examines. A directory
// that takes longer counts as silent until it answers; the error is an fs.PathError with its path that wraps errSilent. After such an
// error, fn may still be running, so the caller must not use variables that fn changes.
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
	beats, quiet := int64(0), 0
	for {
		select {
		case got, ok := <-done:
			if !ok { // fn panicked, which guard.Catch has reported
				return result, a.silentError()
			}
			return got.result, got.err
		case <-tick:
		}
		if now := a.dirsBegun.Load(); now != beats {
			beats, quiet = now, 0
			continue
		}
		quiet++
		if quiet < answerSteps {
			continue
		}
		if a.giveUp(beats) {
			return result, a.silentError()
		}
	}
}

// attempt is the state of one call of examineEach. Store.mu guards the fields after beats.
type attempt struct {
	store       *Store
	dirsBegun   atomic.Int64 // directories that fn has begun to examine
	examinedDir string       // directory that fn is examining
	abandoned   bool         // examineEach has returned without waiting for fn
	ended       bool
}

// examine is the progress function of the attempt.
func (a *attempt) examine(rel string) bool {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	a.dirsBegun.Add(1)
	if !a.abandoned {
		a.examinedDir = rel
	}
	return !a.abandoned
}

// silentError returns an error that wraps errSilent and names the directory that fn is examining.
func (a *attempt) silentError() error {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	return &fs.PathError{Op: "read", Path: filepath.Join(a.store.root, a.examinedDir), Err: errSilent}
}

// giveUp is called after a time in which the number beats has not changed. It abandons the attempt and returns true, unless fn has
// ended or gone on meanwhile.
func (a *attempt) giveUp(beats int64) bool {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	if a.ended || a.dirsBegun.Load() != beats {
		return false
	}
	a.abandoned = true
	a.store.hangingCalls++
	if a.examinedDir != "" {
		a.store.silent[a.examinedDir] = true
	}
	return true
}

// recordEnd is called when fn ends. If the attempt was abandoned, the silent directory has now answered.
func (a *attempt) recordEnd() {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	a.ended = true
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

// isSilent reports whether the last call for the directory rel has timed out and still hangs.
func (s *Store) isSilent(rel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent[rel]
}

// answers reports whether a directory, given relative to the root, answers in time. For a directory that is already known to be
// silent, it returns false without a call.
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
