package host

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

const (
	// maxRemovePasses is the maximum number of times that remove empties a tree, because agents may keep creating files in it.
	maxRemovePasses = 1 << 16
	// maxMoved is the maximum number of moved directories that a pass remembers; the next pass finds the rest.
	maxMoved = 1 << 10
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
	select {
	case s.discarded <- struct{}{}:
	default:
	}
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

// remove removes a file or a tree. An agent may have made any number of files, and directories of any depth, so remove keeps few
// names in memory and few directories open. If an agent has taken permissions from directories, remove gives them back
// first.
func (s *Store) remove(ctx context.Context, name string) error {
	parent, err := s.directory(path.Dir(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := removeTree(ctx, int(parent.Fd()), path.Base(name)); err != nil {
		return &fs.PathError{Op: "remove", Path: name, Err: err}
	}
	return nil
}

func removeTree(ctx context.Context, parent int, name string) error {
	for range maxRemovePasses {
		err := removeOne(parent, name)
		if !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		top, err := openForRemoval(parent, name)
		if err != nil {
			return err
		}
		r := removal{ended: ctx.Done(), top: top}
		r.empty(top)
		_ = unix.Close(top)
		if r.failed != nil {
			return r.failed
		}
	}
	return unix.ENOTEMPTY
}

// removal is one pass of remove. It opens only top and one of its subdirectories. Deeper directories are moved to top first.
type removal struct {
	ended  <-chan struct{}
	top    int      // the tree, as an open directory
	moved  []string // directories that were moved to top and not removed yet
	failed error    // the first error
}

// empty removes what is in the directory dir, which is top or a subdirectory of top.
func (r *removal) empty(dir int) {
	r.note(fsutil.Entries(dir, func(name string, _ fs.FileMode) bool {
		err := removeOne(dir, name)
		switch {
		case !errors.Is(err, unix.ENOTEMPTY):
			r.note(err)
		case dir != r.top:
			r.moveUp(dir, name)
		default:
			for r.moved = append(r.moved, name); len(r.moved) > 0; {
				last := r.moved[len(r.moved)-1]
				r.moved = r.moved[:len(r.moved)-1]
				r.removeChild(last)
			}
		}
		select {
		case <-r.ended:
			return false
		default:
			return true
		}
	}))
}

func (r *removal) removeChild(name string) {
	child, err := openForRemoval(r.top, name)
	if err != nil {
		r.note(err)
		return
	}
	defer func() { _ = unix.Close(child) }()
	r.empty(child)
	r.note(removeOne(r.top, name))
}

func (r *removal) moveUp(dir int, name string) {
	child, err := openForRemoval(dir, name) // makes it writable
	if err == nil {
		_ = unix.Close(child)
		up := ".removed." + rand.Text()
		if err = unix.Renameat(dir, name, r.top, up); err == nil && len(r.moved) < maxMoved {
			r.moved = append(r.moved, up)
		}
	}
	r.note(err)
}

// note records an error. Agents may have added files to a directory; the next pass removes them.
func (r *removal) note(err error) {
	if !errors.Is(err, unix.ENOTEMPTY) {
		r.failed = cmp.Or(r.failed, err)
	}
}

// removeOne removes a file or an empty directory. It returns ENOTEMPTY for another directory, and nil if the name is missing.
func removeOne(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EEXIST):
		return unix.ENOTEMPTY
	}
	return err
}

// openForRemoval opens a directory after it has given its owner all permissions. A directory can move to another one only if it
// can be written, because its entry ".." changes. It never follows a symbolic link.
func openForRemoval(dir int, name string) (int, error) {
	at, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(at) }()
	_ = fsutil.ChmodFD(at, 0o700) // after an error, the directory may have had the permissions already
	return unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}
