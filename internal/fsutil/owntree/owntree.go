// Package owntree gives whole directory trees to a user, for programs that repair the owners of files.
//
// A walk doesn't follow links, doesn't leave the mount where it begins, and doesn't give away files that another user may need, see
// [Walk]. The package owns no goroutine.
package owntree

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/wholefile"
)

const (
	// maxDepth is the maximum depth of directories. A walk holds a descriptor for each level of a tree.
	maxDepth = 1000
	// BatchSize is the number of entries between two calls of [Walk].BetweenBatches.
	BatchSize = 256
	// copyChunkSize is the number of bytes of a file that are copied between two calls of [Walk].BetweenBatches.
	copyChunkSize = 1 << 20
	// tempPrefix is the prefix of the name of an incomplete copy.
	tempPrefix = ".hinit-copy-"
)

// ErrOwnerHasHome means that the tree contains a home of its new owner.
var ErrOwnerHasHome = errors.New("this user already has a home, which lies in this one; move it to a place of its own")

// Walk gives the files of trees to a user, see [Walk.ChangeOwners]. The caller sets the fields up to OnFound; the later fields
// are counters.
type Walk struct {
	// NewOwner is the user that gets the files. If RefuseHardLinked is set, ChangeOwners refuses a tree of another user that
	// already contains a home of the new owner. Such a home is a directory with a file NewOwner.HomeMark, both of the new owner.
	// Then the error is [ErrOwnerHasHome], and the top directory stays unchanged. Give looks for such a home before the first
	// change, and again when the old owner can't change the top directory any more.
	NewOwner fsutil.Owner
	// RefuseHardLinked refuses files that have hard links outside the tree, so that no file is in the directories of two users.
	RefuseHardLinked bool
	// CopyLinkedUID is the uid of a user, or 0. A file of this user that RefuseHardLinked would refuse is replaced by a copy.
	CopyLinkedUID uint32
	// TopLast gives the top directory away last, and only if nothing below it has failed. So its owner shows whether the walk was
	// complete.
	TopLast bool
	// TopMode is the mode that the top directory gets before its new owner, or 0. It needs TopLast. In between the directory is
	// root's, so the old owner can't undo the mode, and an interrupted walk is repeated.
	TopMode fs.FileMode
	// DryRun changes nothing. Changed then counts what would change.
	DryRun   bool
	OnlyUID  uint32 // give away only files of this uid; 0: files of any uid
	DirsOnly bool
	// ExpectedTopUID is the expected uid of the top directory; nil means any. For another uid, ChangeOwners changes nothing and
	// returns ESTALE: the directory was replaced after the decision to give it away.
	ExpectedTopUID *uint32

	// BetweenBatches is called after every [BatchSize] entries, and during the copy of a file. An error from it ends the walk.
	BetweenBatches func() error
	// OnFound, if not nil, is called for each file of another owner. err is nil if the file was given away, or says why not.
	OnFound func(path string, was uint32, err error)

	Examined      int64 // entries that were examined
	Changed       int64 // entries that were given away
	Refused       int64 // entries that were refused, see [fsutil.ErrDevice], [fsutil.ErrHardLink] and [fsutil.ErrProtected]
	Failed        int64 // entries that could not be read or changed
	SkippedMounts int64 // mount points, which are skipped

	FirstFailure error // the first of the failures that Failed counts

	stopError  error
	countOnly  bool             // only count the hard links of each file in the tree
	linkCounts map[inode]uint64 // number of hard links of each file in the tree; nil without RefuseHardLinked
}

type inode struct{ dev, ino uint64 }

// hasLinksOutside reports whether a file has hard links outside the tree, perhaps in a directory of another user.
func (w *Walk) hasLinksOutside(st unix.Stat_t) bool {
	return w.linkCounts != nil && uint64(st.Nlink) > max(1, w.linkCounts[inode{st.Dev, st.Ino}]) //nolint:unconvert // Nlink is 32 bits wide on some machines
}

// ChangeOwners gives the directory rel and all in it to w.NewOwner. It changes the owner of links and never follows them. It
// doesn't enter other mounts, or directories that are refused; see [fsutil.Dir.Chown] for what is refused. If rel is refused, the
// error is [fsutil.ErrProtected]. It may miss a file that is renamed during the walk.
//
// With crossTop, rel may be a mount point; otherwise that is [fsutil.ErrMount]. A file that can't be changed counts in Failed,
// and the walk continues. An error comes from w.BetweenBatches, or says why rel could not be opened.
func (w *Walk) ChangeOwners(d *fsutil.Dir, rel string, crossTop bool) error {
	return d.Walk("give away", rel, crossTop, func(in fsutil.SameMountOpener, fd int, path string) error {
		st, err := fsutil.Fstat(fd)
		switch {
		case err != nil:
			return err
		case w.ExpectedTopUID != nil && st.Uid != *w.ExpectedTopUID:
			return unix.ESTALE
		case w.NewOwner.ProtectsFile(fd, st):
			return fsutil.ErrProtected
		}
		w.linkCounts = nil
		if w.RefuseHardLinked {
			if w.linkCounts, err = w.countLinks(in, fd, path, st); err != nil {
				return err
			}
		}
		failed := w.Failed
		w.walkTree(in, fd, path, 1)
		if st, err := fsutil.Fstat(fd); w.TopLast && w.stopError == nil && w.Failed == failed && err == nil {
			if w.TopMode != 0 && !w.DryRun && st.Uid != w.NewOwner.UID {
				err = cmp.Or(unix.Fchown(fd, 0, 0), fsutil.ChmodFD(fd, uint32(w.TopMode)))
				_, w.stopError = w.countLinks(in, fd, path, st)
				if w.stopError != nil { // the old owner has moved a home into the tree meanwhile
					err = w.stopError
				}
			}
			if err != nil {
				w.recordFailure(path, st.Uid, err)
			} else {
				w.changeOwner(fd, st, path)
			}
		}
		err = w.stopError
		w.stopError = nil
		return err
	})
}

// countLinks reads the tree, and returns how many hard links in the tree each file with several hard links has. top is the status
// of the top directory.
func (w *Walk) countLinks(in fsutil.SameMountOpener, fd int, path string, top unix.Stat_t) (map[inode]uint64, error) {
	counting := Walk{NewOwner: w.NewOwner, BetweenBatches: w.BetweenBatches, countOnly: true, linkCounts: make(map[inode]uint64)}
	if top.Uid == w.NewOwner.UID {
		counting.NewOwner.HomeMarkerFile = ""
	}
	counting.walkTree(in, fd, path, 1)
	return counting.linkCounts, counting.stopError
}

// walkTree handles the open directory fd and all files in it, at any depth. The argument depth is 1 for the top of the tree.
func (w *Walk) walkTree(in fsutil.SameMountOpener, fd int, path string, depth int) {
	st, err := fsutil.Fstat(fd)
	if err != nil {
		w.recordFailure(path, 0, err)
		return
	}
	if depth > 1 || !w.TopLast {
		w.changeOwner(fd, st, path)
	}
	if w.NewOwner.ProtectsFile(fd, st) {
		return
	}
	if depth > maxDepth {
		w.recordFailure(path, st.Uid, unix.ENAMETOOLONG)
		return
	}
	if _, err = unix.Seek(fd, 0, unix.SEEK_SET); err != nil { // an earlier walk may have read it to its end
		w.recordFailure(path, st.Uid, err)
		return
	}
	err = fsutil.EachEntry(fd, func(name string, mode fs.FileMode) bool {
		w.Examined++
		if w.Examined%BatchSize == 0 && w.BetweenBatches != nil {
			w.stopError = w.BetweenBatches()
			if w.stopError != nil {
				return false
			}
		}
		if mode.IsDir() {
			w.walkDirectory(in, fd, name, path, depth)
		} else if !w.DirsOnly {
			w.handleFile(in, fd, name, path, depth)
		}
		return w.stopError == nil
	})
	if err != nil && !errors.Is(err, unix.ENOENT) { // another process has removed the directory
		w.recordFailure(path, st.Uid, err)
	}
}

// walkDirectory opens the directory name in the open directory parent and walks through it. It leaves out mount points and links.
func (w *Walk) walkDirectory(in fsutil.SameMountOpener, parent int, name, path string, depth int) {
	fd, err := in.Open(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	switch {
	case errors.Is(err, fsutil.ErrMount):
		w.SkippedMounts++
	case errors.Is(err, fsutil.ErrSymlink), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR): // another process has replaced or removed it
	case err != nil:
		w.recordFailure(path+"/"+name, 0, err)
	default:
		w.walkTree(in, fd, path+"/"+name, depth+1)
		unix.Close(fd)
	}
}

// handleFile handles one file that is not a directory. It counts the file's hard links, gives the file to the new owner, or replaces
// the file by a copy.
func (w *Walk) handleFile(in fsutil.SameMountOpener, parent int, name, path string, depth int) {
	st, err := fsutil.LstatAt(parent, name)
	if w.countOnly {
		if err == nil && depth > 1 && name == w.NewOwner.HomeMarkerFile && st.Uid == w.NewOwner.UID {
			w.stopError = ErrOwnerHasHome
		}
		if err == nil && st.Nlink > 1 {
			w.linkCounts[inode{st.Dev, st.Ino}]++
		}
		return
	}
	if err == nil && (st.Uid == w.NewOwner.UID || w.OnlyUID != 0 && st.Uid != w.OnlyUID) {
		return
	}
	fd := -1
	if err == nil {
		fd, err = in.Open(parent, name, unix.O_PATH)
	}
	switch {
	case errors.Is(err, fsutil.ErrMount):
		w.SkippedMounts++
		return
	case errors.Is(err, unix.ENOENT):
		return
	case err != nil:
		w.recordFailure(path+"/"+name, st.Uid, err)
		return
	}
	defer unix.Close(fd)
	if st, err = fsutil.Fstat(fd); err != nil {
		w.recordFailure(path+"/"+name, st.Uid, err)
		return
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFDIR: // another process has replaced the file by a directory
	case w.hasLinksOutside(st) && w.CopyLinkedUID != 0 && st.Uid == w.CopyLinkedUID && st.Mode&unix.S_IFMT == unix.S_IFREG:
		err := w.replaceByCopy(in, parent, name, st)
		if w.stopError != nil {
			return
		}
		if err != nil {
			w.recordFailure(path+"/"+name, st.Uid, err)
			return
		}
		w.Changed++
		if w.OnFound != nil {
			w.OnFound(path+"/"+name, st.Uid, nil)
		}
	default:
		w.changeOwner(fd, st, path+"/"+name)
	}
}

// replaceByCopy replaces a file that has hard links outside the tree by a copy that belongs to the new owner. The links outside
// keep the old file. name is the file's name in the directory parent, and st its status.
func (w *Walk) replaceByCopy(in fsutil.SameMountOpener, parent int, name string, st unix.Stat_t) error {
	if w.DryRun {
		return nil
	}
	from, err := in.Open(parent, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	source := os.NewFile(uintptr(from), name)
	defer source.Close()
	if now, err := fsutil.Fstat(from); err != nil || now.Ino != st.Ino || now.Uid != st.Uid {
		return errors.Join(err, unix.ESTALE) // another process has replaced the file
	}
	target, temp, err := wholefile.CreateUnnamed(parent, tempPrefix)
	if err != nil {
		return err
	}
	defer target.Close()
	to := int(target.Fd())
	if err = w.copyData(target, source, st.Size); err == nil {
		err = errors.Join(unix.Fchown(to, int(w.NewOwner.UID), int(w.NewOwner.GID)), fsutil.ChmodFD(to, st.Mode&0o777), target.Sync())
	}
	return wholefile.RenameUnnamed(parent, target, temp, name, err)
}

// copyData copies the first size bytes of a file, and keeps its holes, so that the copy takes no more space. It calls
// w.BetweenBatches before each piece.
func (w *Walk) copyData(to, from *os.File, size int64) error {
	for at := int64(0); at < size; {
		if w.BetweenBatches != nil {
			w.stopError = w.BetweenBatches()
			if w.stopError != nil {
				return w.stopError
			}
		}
		data, err := from.Seek(at, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO): // the rest is a hole
			return to.Truncate(size)
		case err != nil:
			return err
		case data >= size: // the file has grown since its size was read
			return to.Truncate(size)
		}
		hole, err := from.Seek(data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		at = min(hole, data+copyChunkSize, size)
		if _, err := io.Copy(io.NewOffsetWriter(to, data), io.NewSectionReader(from, data, at-data)); err != nil {
			return err
		}
	}
	return to.Truncate(size)
}

// changeOwner gives the open file fd to the new owner, if the rules of the walk allow that, and updates the counters.
func (w *Walk) changeOwner(fd int, st unix.Stat_t, path string) {
	if w.countOnly || w.OnlyUID != 0 && st.Uid != w.OnlyUID {
		return
	}
	changed, err := false, fsutil.ErrHardLink
	if st.Uid == w.NewOwner.UID || st.Mode&unix.S_IFMT != unix.S_IFREG || !w.hasLinksOutside(st) {
		changed, err = fsutil.ChangeOwner(fd, st, w.NewOwner, w.DryRun)
	}
	switch {
	case errors.Is(err, fsutil.ErrDevice), errors.Is(err, fsutil.ErrHardLink), errors.Is(err, fsutil.ErrProtected):
		w.Refused++
	case err != nil:
		w.recordFailure(path, st.Uid, err)
		return
	case !changed:
		return
	default:
		w.Changed++
	}
	if w.OnFound != nil {
		w.OnFound(path, st.Uid, err)
	}
}

// recordFailure counts a file whose owner could not be changed, and reports it to OnFound. The argument was is the uid of its
// owner.
func (w *Walk) recordFailure(path string, was uint32, err error) {
	w.Failed++
	w.FirstFailure = cmp.Or(w.FirstFailure, fmt.Errorf("%.300q: %w", path, err)) // a path can be a megabyte long
	if w.OnFound != nil {
		w.OnFound(path, was, err)
	}
}
