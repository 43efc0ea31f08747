package fsutil

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strconv"

	"golang.org/x/sys/unix"

	"hinit/internal/fault"
)

const (
	// maxRemoveDepth is how many directories RemoveAll holds open. What lies deeper is first moved up to the top of the
	// tree, so that a tree of any depth needs few descriptors and little stack.
	maxRemoveDepth = 32
	// maxRemovePasses bounds the fight with somebody who keeps making files in the tree while it is removed.
	maxRemovePasses = 1 << 16
	// maxRemoveNames is how many directories one pass holds the names of; the next pass takes the rest.
	maxRemoveNames = 1 << 10
)

// Remove removes the file, the link itself, or the empty directory at rel. A missing one is fs.ErrNotExist.
func (d *Dir) Remove(rel string) error {
	return d.do("remove", rel, func(names []string) error {
		return d.inParent(names, removeName)
	})
}

// RemoveAll removes what is at rel with everything in it; a missing one is fine. It never follows a link: a link is
// removed, its target isn't touched. d itself can't be removed.
func (d *Dir) RemoveAll(rel string) error {
	return d.do("remove", rel, func(names []string) error {
		err := d.inParent(names, removeTree)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	})
}

// removeName removes one file, link or empty directory.
func removeName(parent int, name string) error {
	err := call(fault.Remove, name, func() error { return unix.Unlinkat(parent, name, 0) })
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	return call(fault.Remove, name, func() error { return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR) })
}

// removeTree removes name and what is in it.
func removeTree(parent int, name string) error {
	for range maxRemovePasses {
		err := removeName(parent, name)
		if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
		top, err := openComponent(parent, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if errors.Is(err, ErrSymlink) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			continue // swapped in between: look again
		}
		if err != nil {
			return err
		}
		err = empty(top, top, 1)
		closeFD(top)
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("files keep appearing: %w", unix.ENOTEMPTY)
}

// empty removes what is in dir once, which is depth levels below top's parent; what somebody adds meanwhile may stay.
func empty(top, dir, depth int) error {
	var subdirs []string
	var firstErr error
	note := func(err error) {
		if firstErr == nil && err != nil && !errors.Is(err, unix.ENOENT) {
			firstErr = err
		}
	}
	err := readEntries(dir, func(name string, _ fs.FileMode) bool {
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
		note(emptySub(top, dir, name, depth))
	}
	return firstErr
}

// emptySub empties the directory name in dir and removes it.
func emptySub(top, dir int, name string, depth int) error {
	sub, err := openComponent(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, ErrSymlink) || errors.Is(err, unix.ENOTDIR) {
		return nil // swapped in between: the next pass removes it
	}
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	defer closeFD(sub)
	if err := empty(top, sub, depth+1); err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	err = removeName(dir, name)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return nil // somebody added to it: the next pass
	}
	return err
}
