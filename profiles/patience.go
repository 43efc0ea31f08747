package profiles

import (
	"errors"
	"path/filepath"
	"sync"
	"time"

	"hinit/internal/fsutil"
)

// patience is how long a directory of the volume may take to answer the first question. What takes longer is a mount whose
// server is gone, most likely, and would hold up everything else.
const patience = time.Second

// errSilent says that a part of the volume does not answer.
var errSilent = errors.New("it does not answer")

// patiently runs fn with the volume in a goroutine of its own. When that takes too long it returns errSilent and leaves the
// goroutine behind, which ends when the disk answers.
func (s *Store) patiently(fn func(d *fsutil.Dir) error) error {
	done := make(chan error, 1)
	go func() {
		d, err := s.open()
		if err == nil {
			err = fn(d)
			d.Close()
		}
		done <- err
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return errSilent
	}
}

// ask finds out which of the given directories, relative to the root, answer. Each is asked once in the life of the store,
// all at the same time. One that does not answer counts as silent until it does.
func (s *Store) ask(rels ...string) {
	var asked sync.WaitGroup
	for _, rel := range rels {
		if !s.mustAsk(rel) {
			continue
		}
		asked.Go(func() {
			err := s.patiently(func(d *fsutil.Dir) error {
				_, err := d.Lstat(filepath.Join(rel, s.marker)) // whatever the answer is
				s.answered(rel)
				return err
			})
			if !errors.Is(err, errSilent) {
				s.answered(rel) // also when the volume as a whole can't be opened
			}
		})
	}
	asked.Wait()
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

// isSilent reports whether a directory has been asked and has not answered.
func (s *Store) isSilent(rel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent[rel]
}
