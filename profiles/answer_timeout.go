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

// answerTimeout is how long the store waits for an answer about one directory of the volume. A directory that takes longer is
// probably a mount whose server is gone.
const answerTimeout = time.Second

// answerSteps is the number of short waits that make up answerTimeout. If this whole process is paused, the pause uses up only
// one of them, so the directory is not taken for silent.
const answerSteps = 10

// maxHangingCalls limits the calls that hang in a silent directory. Each occupies a thread and one of the calls that
// [blocking.Volume] allows at once. At this number, hinit ignores mount points below profiles/; above it, hinit uses no directory
// of the volume.
const maxHangingCalls = 3

// errNoAnswer means that a directory of the volume did not answer within answerTimeout.
var errNoAnswer = errors.New("it does not answer")

// reportProgress is a function that fn in examineEach must call before it examines another directory. rel is the path of the
// directory relative to the root, or "" for none. If goOn is false, examineEach has given up, and fn must return.
type reportProgress func(rel string) (goOn bool)

// examineEach runs fn with the open volume in a goroutine. fn may take the time answerTimeout for each directory that it
// examines. A directory that takes longer counts as silent until it answers. The error is then an fs.PathError with its path that
// wraps errNoAnswer. After this error fn may still be running, so the caller must not use variables that fn changes.
func examineEach[T any](s *Store, fn func(d *fsutil.Dir, at reportProgress) (T, error)) (result T, err error) {
	type answer struct {
		result T
		err    error
	}
	a := &examination{store: s}
	if s.hangingCallCount() > maxHangingCalls {
		return result, a.silentError()
	}
	done := make(chan answer, 1)
	go func() {
		defer guard.CatchPanic("asking the volume")
		defer close(done)
		defer a.recordEnd()
		d, err := s.open()
		var r T
		if err == nil {
			r, err = fn(d, a.beginDirectory)
			d.Close()
		}
		done <- answer{r, err}
	}()
	tick := time.Tick(answerTimeout / answerSteps)
	beats, quiet := int64(0), 0
	for {
		select {
		case got, ok := <-done:
			if !ok { // fn has panicked, and guard.Catch has reported that.
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

// examination is the state of one call of examineEach. Store.mu guards the fields after dirsBegun.
type examination struct {
	store       *Store
	dirsBegun   atomic.Int64 // Number of directories that fn has begun to examine.
	examinedDir string       // Directory that fn is examining.
	abandoned   bool         // Whether examineEach has returned without waiting for fn.
	ended       bool
}

// beginDirectory is the progress function for fn.
func (a *examination) beginDirectory(rel string) bool {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	a.dirsBegun.Add(1)
	if !a.abandoned {
		a.examinedDir = rel
	}
	return !a.abandoned
}

// silentError returns an error that wraps errNoAnswer, with the path of the directory that fn is examining.
func (a *examination) silentError() error {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	return &fs.PathError{Op: "read", Path: filepath.Join(a.store.root, a.examinedDir), Err: errNoAnswer}
}

// giveUp abandons the attempt if fn has made no progress since dirsBegun had the value beats. It returns false if fn has ended or
// has made progress.
func (a *examination) giveUp(beats int64) bool {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	if a.ended || a.dirsBegun.Load() != beats {
		return false
	}
	a.abandoned = true
	a.store.hangingCalls++
	if a.examinedDir != "" {
		a.store.silentDirs[a.examinedDir] = true
	}
	return true
}

// recordEnd is called when fn ends. If the attempt was abandoned, the silent directory has answered after all.
func (a *examination) recordEnd() {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	a.ended = true
	if a.abandoned {
		a.store.hangingCalls--
		delete(a.store.silentDirs, a.examinedDir)
	}
}

func (s *Store) hangingCallCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hangingCalls
}

// isSilent reports whether the last call in the directory rel has timed out and still hangs.
func (s *Store) isSilent(rel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silentDirs[rel]
}

// answersInTime reports whether the directory rel, relative to the root, answers in time. It returns false without a call if the
// directory is known to be silent.
func (s *Store) answersInTime(rel string) bool {
	if s.isSilent(rel) {
		return false
	}
	_, err := examineEach(s, func(d *fsutil.Dir, at reportProgress) (struct{}, error) {
		at(rel)
		_ = d.CheckExists(filepath.Join(rel, s.marker)) // Any error also counts as an answer.
		return struct{}{}, nil
	})
	return !errors.Is(err, errNoAnswer)
}
