package host

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"path"

	"hinit/internal/fsutil"
	"hinit/internal/pause"
)

// discard moves a file or a tree out of the way, and returns soon. A tree may have millions of files, so a worker must not wait until
// they are deleted: emptyTrash does that. After a crash the file may be in its old place.
func (s *Store) discard(name string) error {
	to := path.Join(trashDir, rand.Text())
	err := s.move(name, to)
	if errors.Is(err, fs.ErrNotExist) && s.exists(name) { // an agent has removed the trash
		err = errors.Join(s.root.MkdirAll(trashDir, 0o700), s.move(name, to))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil: // the volume may be full
		return s.remove(context.Background(), name)
	}
	pause.Wake(s.discarded)
	return nil
}

// emptyTrash deletes what was discarded. It returns soon after the end of ctx.
func (s *Store) emptyTrash(ctx context.Context) error {
	var failed error
	err := s.each(trashDir, func(name string, _ bool) {
		failed = cmp.Or(failed, s.remove(ctx, path.Join(trashDir, name)))
	})
	return cmp.Or(failed, err)
}

// remove removes a file or a tree, in which an agent may have put anything. It returns soon after the end of ctx.
func (s *Store) remove(ctx context.Context, name string) error {
	volume, err := fsutil.OpenDir(s.root.Name(), nil)
	if err != nil {
		return err
	}
	defer volume.Close()
	return volume.RemoveAllUntil(ctx, name)
}
