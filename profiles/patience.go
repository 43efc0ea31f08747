package profiles

import (
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// patience is how long a directory of the volume may take to answer the first question. What takes longer is a mount whose
// server is gone, most likely, and would hold up everything else.
const patience = time.Second

// steps is in how many parts that time is waited for. A process that is held up itself, as in a container that is paused, finds
// that one of them is over when it goes on, and not all of it.
const steps = 10

// errSilent says that a part of the volume does not answer.
var errSilent = errors.New("it does not answer")

// patiently runs fn with the volume in a goroutine of its own. When that takes too long it returns errSilent and leaves the
// goroutine behind, which ends when the disk answers.
func (s *Store) patiently(fn func(d *fsutil.Dir) error) error {
	done := make(chan error, 1)
	go func() {
		defer guard.Catch("asking the volume")
		d, err := s.open()
		if err == nil {
			err = fn(d)
			d.Close()
		}
		done <- err
	}()
	for range steps {
		select {
		case err := <-done:
			return err
		case <-time.After(patience / steps):
		}
	}
	return errSilent
}

// ask finds out which of the given directories, relative to the root, answer. Each is asked once in the life of the store.
// One that does not answer counts as silent until it does.
//
// One goroutine asks them one after the other, which is soon done when all of them answer. What it hasn't come to in time is
// asked all at once, so that many that don't answer cost no more time than one.
//
// The question is for the marker. What was answered just now is returned, so that who wants to know that need not ask again.
func (s *Store) ask(rels ...string) (answers map[string]error) {
	rels = slices.DeleteFunc(slices.Clone(rels), func(rel string) bool { return !s.mustAsk(rel) })
	if len(rels) == 0 {
		return nil
	}
	if answers, inTime := s.askIn(rels); inTime {
		return answers
	}
	var asked sync.WaitGroup
	for _, rel := range rels {
		if s.isSilent(rel) {
			asked.Go(func() { s.askIn([]string{rel}) })
		}
	}
	asked.Wait()
	return nil
}

// askIn asks directories one after the other, and reports whether it came to the end in time.
func (s *Store) askIn(rels []string) (answers map[string]error, inTime bool) {
	found := make(map[string]error, len(rels)) // belongs to the goroutine until that has come to the end
	err := s.patiently(func(d *fsutil.Dir) error {
		return d.Together(func(d *fsutil.Dir) error {
			for _, rel := range rels {
				_, found[rel] = d.Lstat(filepath.Join(rel, s.marker))
				s.answered(rel)
			}
			return nil
		})
	})
	if errors.Is(err, errSilent) {
		return nil, false
	}
	for _, rel := range rels {
		s.answered(rel) // also when the volume as a whole can't be opened
	}
	return found, true
}

// mustAsk reports whether a directory has never been asked, and counts it as silent from now on.
func (s *Store) mustAsk(rel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.silent[rel]; known {
		return false
	}
	s.silent[rel] = true
	return true
}

func (s *Store) answered(rel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent[rel] = false
}

// forgetAnswer drops what is known of a directory that is not there: should it come, it is asked anew.
func (s *Store) forgetAnswer(rel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.silent[rel] {
		delete(s.silent, rel)
	}
}

// isSilent reports whether a directory has been asked and has not answered.
func (s *Store) isSilent(rel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent[rel]
}
