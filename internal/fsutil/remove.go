package fsutil

import (
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
// It can't remove d itself.
func (d *Dir) RemoveAll(rel string) error { return ignoreMissing(d.at("remove", rel, removeTree)) }

func removeName(parent int, name string) error {
	err := callWithFault(faultinject.Remove, name, func() error { return unix.Unlinkat(parent, name, 0) })
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	return callWithFault(faultinject.Remove, name, func() error { return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR) })
}

func removeTree(parent int, name string) error {
	for range maxRemovePasses {
		err := removeName(parent, name)
		if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
		top, err := openComponent(parent, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if errors.Is(err, ErrSymlink) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			continue // replaced by another process: try again
		}
		if err != nil {
			return err
		}
		err = emptyDir(top, top, 1)
		closeFD(top)
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("files keep appearing: %w", unix.ENOTEMPTY)
}

// emptyDir removes the current contents of dir. dir is depth levels below the parent of top. Directories that are too deep are
// moved to top.
func emptyDir(top, dir, depth int) error {
	var subdirs []string
	var firstErr error
	note := func(err error) {
		if firstErr == nil && err != nil && !errors.Is(err, unix.ENOENT) {
			firstErr = err
		}
	}
	err := Entries(dir, func(name string, _ fs.FileMode) bool {
		if err := removeName(dir, name); errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			subdirs = append(subdirs, name)
		} else if err != nil {
			note(fmt.Errorf("%q: %w", name, err))
		}
		return len(subdirs) < maxRemoveNames
	})
	note(err)
	for _, name := range subdirs {
		if depth >= maxRemoveDepth {
			up := ".removed." + strconv.FormatUint(rand.Uint64(), 36)
			note(retryEINTR(func() error { return unix.Renameat(dir, name, top, up) }))
			continue
		}
		note(emptySubdir(top, dir, name, depth))
	}
	return firstErr
}

func emptySubdir(top, dir int, name string, depth int) error {
	sub, err := openComponent(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, ErrSymlink) || errors.Is(err, unix.ENOTDIR) {
		return nil // replaced by another process: the next pass removes it
	}
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	defer closeFD(sub)
	if err := emptyDir(top, sub, depth+1); err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	err = removeName(dir, name)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return nil // another process has added a file; the next pass removes it
	}
	return err
}
