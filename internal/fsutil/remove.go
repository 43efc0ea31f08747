package fsutil

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strconv"

	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
)

const (
	// maxRemoveDepth is the maximum number of nested directories that RemoveAll keeps open at the same time. It first moves
	// deeper directories to the top of the tree.
	maxRemoveDepth = 32
	// maxRemovePasses limits the number of times that RemoveAll empties the tree, because another process may keep creating
	// files in the tree.
	maxRemovePasses = 1 << 16
	// maxRemoveNames is the maximum number of subdirectories of one directory that a pass handles; the next pass handles the
	// rest.
	maxRemoveNames = 1 << 10
)

// Remove removes the file, link or empty directory rel. If rel is missing, the error is fs.ErrNotExist.
func (d *Dir) Remove(rel string) error { return d.at("remove", rel, removeName) }

// RemoveAll removes rel with everything in it. If rel is missing, it returns nil. RemoveAll removes links and never follows them.
// It can't remove d itself. If the owner of a directory lacks permissions for it, RemoveAll gives them back first. It keeps few
// names in memory and few files open, whatever the tree has.
func (d *Dir) RemoveAll(rel string) error { return d.RemoveAllUntil(context.Background(), rel) }

// RemoveAllUntil works like [Dir.RemoveAll], but returns the error of ctx soon after ctx ends. The rest of the tree stays.
func (d *Dir) RemoveAllUntil(ctx context.Context, rel string) error {
	return ignoreMissing(d.at("remove", rel, func(parent int, name string) error { return removeTree(ctx, parent, name) }))
}

func removeName(parent int, name string) error {
	err := callWithFault(faultinject.Remove, name, func() error { return unix.Unlinkat(parent, name, 0) })
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	return callWithFault(faultinject.Remove, name, func() error { return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR) })
}

func removeTree(ctx context.Context, parent int, name string) error {
	for range maxRemovePasses {
		err := removeName(parent, name)
		if !notEmpty(err) {
			return err
		}
		if err := cmp.Or(ctx.Err(), emptyDir(ctx, -1, parent, name, 1)); err != nil {
			return err
		}
	}
	return fmt.Errorf("files keep appearing: %w", unix.ENOTEMPTY)
}

func notEmpty(err error) bool { return errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) }

// emptyDir removes the current contents of the directory name, which is depth levels below the parent of the open directory top.
// If top is -1, name is the top itself. If name is too deep, emptyDir moves it to top instead.
func emptyDir(ctx context.Context, top, parent int, name string, depth int) error {
	dir, err := openForRemoval(parent, name)
	if errors.Is(err, ErrSymlink) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil // replaced by another process: the next pass removes it
	}
	if err != nil {
		return err
	}
	defer closeFD(dir)
	if depth > maxRemoveDepth {
		up := ".removed." + strconv.FormatUint(rand.Uint64(), 36)
		return retryEINTR(func() error { return unix.Renameat(parent, name, top, up) })
	}
	if top < 0 {
		top = dir
	}
	var subdirs []string
	var firstErr error
	note := func(name string, err error) {
		if firstErr == nil && err != nil && !errors.Is(err, unix.ENOENT) && !notEmpty(err) {
			firstErr = fmt.Errorf("%q: %w", name, err)
		}
	}
	err = Entries(dir, func(name string, _ fs.FileMode) bool {
		err := removeName(dir, name)
		if note(name, err); notEmpty(err) {
			subdirs = append(subdirs, name)
		}
		return ctx.Err() == nil && len(subdirs) < maxRemoveNames
	})
	for _, name := range subdirs {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		note(name, emptyDir(ctx, top, dir, name, depth+1))
		note(name, removeName(dir, name)) // if another process has added a file, the next pass removes it
	}
	return cmp.Or(firstErr, ignoreMissing(err))
}

// openForRemoval opens a directory after it has given its owner all permissions. A directory can move to another one only if it
// can be written, because its entry ".." changes.
func openForRemoval(parent int, name string) (int, error) {
	at, err := openComponent(parent, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, err
	}
	defer closeFD(at)
	if st, err := Fstat(at); err == nil && st.Mode&0o700 != 0o700 {
		_ = ChmodFD(at, st.Mode&0o7777|0o700) // another user's directory may be empty, or writable for the actor's group
	}
	return openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
}
