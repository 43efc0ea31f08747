package host

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"hinit/internal/fsutil"
	"hinit/internal/pause"
)

// discard moves a file or a tree to the trash and returns soon. emptyTrash deletes it later: a tree may have millions of
// files, and a worker must not wait for their deletion. If the file can't be moved, discard returns an error and deletes
// nothing. After a crash, the file may be in its old place.
func (s *Store) discard(name string) error {
	if !s.exists(name) {
		return nil
	}
	err := s.makeDir(trashDir)
	if err == nil {
		err = s.move(name, path.Join(trashDir, rand.Text()))
	}
	if err != nil {
		return fmt.Errorf("cannot move %s into the trash: %w", name, err)
	}
	pause.Wake(s.discarded)
	return nil
}

// makeDir makes sure that the directory name exists and that the host can work in it. An agent may have removed it, replaced
// it, or taken its permissions.
func (s *Store) makeDir(name string) error {
	info, err := s.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !info.IsDir():
		if err := s.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	case info.Mode()&0o700 != 0o700:
		return s.root.Chmod(name, 0o700)
	}
	return s.root.MkdirAll(name, 0o700)
}

// emptyTrash deletes what was discarded. It spends at most s.removeTime on each tree, because a leftover process may create
// files in its old home all the time. left is the number of trees that remain, and err is the reason for one of them.
// emptyTrash returns soon after the end of ctx.
func (s *Store) emptyTrash(ctx context.Context) (left int, err error) {
	if err := s.makeDir(trashDir); err != nil {
		return 0, err
	}
	var failed error
	err = s.eachEntry(trashDir, func(name string, _ bool) {
		err := ctx.Err() // Return now, because even a single tree may have millions of files.
		if err == nil {
			err = s.removeSome(ctx, path.Join(trashDir, name))
		}
		if err != nil {
			left++
			failed = cmp.Or(failed, err)
		}
	})
	return left, cmp.Or(failed, err)
}

// removeSome removes a file or a tree as remove does, but stops after s.removeTime. The rest of the tree then stays.
func (s *Store) removeSome(ctx context.Context, name string) error {
	limited, cancel := context.WithTimeout(ctx, s.removeTime)
	defer cancel()
	err := s.remove(limited, name)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Errorf("cannot remove %s: %v were not enough; it is very large, or a process creates files in it", name, s.removeTime)
	}
	return err
}

// remove removes a file or a tree, whatever an agent has made of it. It returns soon after the end of ctx.
func (s *Store) remove(ctx context.Context, name string) error {
	volume, err := fsutil.OpenDir(s.root.Name(), nil)
	if err != nil {
		return err
	}
	defer volume.Close()
	return volume.RemoveAllUntil(ctx, name)
}
