package fsutil

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// maxOwnDepth limits how many directories OwnTree holds open. Programs that use paths can't create deeper trees.
	maxOwnDepth = 1000
	// ownBatch is how many entries OwnTree handles between two calls of OwnWalk.Between.
	ownBatch = 256
)

// OwnWalk configures walks over one or several trees, and counts their results. The caller sets the upper fields.
type OwnWalk struct {
	To Owner
	// Alone refuses files that have names outside of the tree, so that no file is reachable in the places of two users.
	Alone bool
	// Copied is a user whose files are copied in place of that refusal; 0 for none.
	Copied uint32
	// TopLast changes the directory itself after everything in it. It does not change it if anything in it failed.
	TopLast bool
	// DryRun changes nothing. Changed counts what would change.
	DryRun bool
	From   uint32 // change only files of this user; 0: of any user

	// Between is called after every ownBatch entries. Its error ends the walk.
	Between func() error
	// Found is called for every file of another owner that was changed (err is nil), was refused, or has failed. It may be nil.
	Found func(path string, was uint32, err error)

	Seen    int64 // number of entries
	Changed int64 // entries whose owner was changed
	Refused int64 // entries that were refused, see [ErrDevice] and [ErrHardLink]
	Failed  int64 // entries that could not be changed or read
	Mounts  int64 // mount points that were skipped

	stop  error
	names map[inode]uint64 // if not nil, the walk only counts the names of files
}

// OwnTree gives the directory rel and everything beneath it to w.To. It changes links themselves and never follows them. It does
// not enter other mounts. It may miss a file that is renamed meanwhile. See [Dir.Chown] for the files that it refuses.
//
// With crossTop, rel itself may be a mount point; otherwise the error for a mount point is [ErrMount]. The failure of a file is
// counted and does not end the walk. The returned error comes from w.Between, or says why rel could not be opened.
func (d *Dir) OwnTree(rel string, crossTop bool, w *OwnWalk) error {
	return d.do("give away", rel, func(names []string) error {
		flags := unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NONBLOCK
		fd, err := d.openTree(names, flags, crossTop)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		if w.To.names = nil; w.Alone {
			names := make(map[inode]uint64)
			counting := OwnWalk{Between: w.Between, names: names}
			counting.tree(d.walk, fd, d.name(rel), 1)
			if counting.stop != nil {
				return counting.stop
			}
			w.To.names = names
		}
		failed := w.Failed
		w.tree(d.walk, fd, d.name(rel), 1)
		if st, err := fstat(fd); w.TopLast && w.stop == nil && w.Failed == failed && err == nil {
			w.give(fd, st, d.name(rel))
		}
		err, w.stop = w.stop, nil
		return err
	})
}

// SubSame is [Dir.Sub], but fails with [ErrMount] for a mount point. It does so at once, even if the mount's server is gone.
func (d *Dir) SubSame(rel string) (*Dir, error) {
	return d.sub(rel, func(names []string) (int, error) { return d.openTree(names, unix.O_PATH|unix.O_DIRECTORY, false) })
}

func (d *Dir) openTree(names []string, flags int, crossTop bool) (int, error) {
	if crossTop || len(names) == 0 {
		return d.open(names, flags, 0)
	}
	parent := d.fd
	for i, name := range names {
		f := flags
		if i < len(names)-1 {
			f = unix.O_PATH | unix.O_DIRECTORY
		}
		fd, err := openSame(d.walk, parent, name, f)
		if parent != d.fd {
			closeFD(parent)
		}
		if err != nil {
			return -1, err
		}
		parent = fd
	}
	return parent, nil
}

func (w *OwnWalk) tree(walk *atomic.Bool, fd int, path string, depth int) {
	st, err := fstat(fd)
	if err != nil {
		w.fail(path, 0, err)
		return
	}
	if depth > 1 || !w.TopLast {
		w.give(fd, st, path)
	}
	if depth > maxOwnDepth {
		w.fail(path, st.Uid, unix.ENAMETOOLONG)
		return
	}
	if _, err = unix.Seek(fd, 0, unix.SEEK_SET); err != nil { // it may have been read for another purpose before
		w.fail(path, st.Uid, err)
		return
	}
	err = readEntries(fd, func(name string, mode fs.FileMode) bool {
		w.Seen++
		if w.Seen%ownBatch == 0 && w.Between != nil {
			if w.stop = w.Between(); w.stop != nil {
				return false
			}
		}
		if mode.IsDir() {
			w.directory(walk, fd, name, path, depth)
		} else {
			w.file(walk, fd, name, path)
		}
		return w.stop == nil
	})
	if err != nil {
		w.fail(path, st.Uid, err)
	}
}

func (w *OwnWalk) directory(walk *atomic.Bool, parent int, name, path string, depth int) {
	fd, err := openSame(walk, parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	switch {
	case errors.Is(err, ErrMount):
		w.Mounts++
	case errors.Is(err, ErrSymlink), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR): // replaced or removed meanwhile
	case err != nil:
		w.fail(path+"/"+name, 0, err)
	default:
		w.tree(walk, fd, path+"/"+name, depth+1)
		closeFD(fd)
	}
}

func (w *OwnWalk) file(walk *atomic.Bool, parent int, name, path string) {
	st, err := lstatat(parent, name)
	if w.names != nil {
		if err == nil && st.Nlink > 1 {
			w.names[inode{st.Dev, st.Ino}]++
		}
		return
	}
	if err == nil && (st.Uid == w.To.UID || w.From != 0 && st.Uid != w.From) {
		return
	}
	fd := -1
	if err == nil {
		fd, err = openSame(walk, parent, name, unix.O_PATH)
	}
	switch {
	case errors.Is(err, ErrMount):
		w.Mounts++
		return
	case errors.Is(err, unix.ENOENT):
		return
	case err != nil:
		w.fail(path+"/"+name, st.Uid, err)
		return
	}
	defer closeFD(fd)
	if st, err = fstat(fd); err != nil {
		w.fail(path+"/"+name, st.Uid, err)
		return
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFDIR: // replaced meanwhile
	case w.To.elsewhere(st) && w.Copied != 0 && st.Uid == w.Copied && st.Mode&unix.S_IFMT == unix.S_IFREG:
		if err := w.separate(walk, parent, name, st); err != nil {
			w.fail(path+"/"+name, st.Uid, err)
			return
		}
		w.Changed++
		if w.Found != nil {
			w.Found(path+"/"+name, st.Uid, nil)
		}
	default:
		w.give(fd, st, path+"/"+name)
	}
}

// separate replaces a file that has names outside of the tree by a copy, which belongs to the new owner.
func (w *OwnWalk) separate(walk *atomic.Bool, parent int, name string, st unix.Stat_t) error {
	if w.DryRun {
		return nil
	}
	from, err := openSame(walk, parent, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	source := os.NewFile(uintptr(from), name)
	defer source.Close()
	if now, err := fstat(from); err != nil || now.Ino != st.Ino || now.Uid != st.Uid {
		return errors.Join(err, unix.ESTALE) // replaced meanwhile
	}
	to, temp, err := createTemp(parent, "."+name)
	if err != nil {
		return err
	}
	target := os.NewFile(uintptr(to), temp)
	defer target.Close()
	_, err = io.Copy(target, source)
	if err == nil {
		err = errors.Join(unix.Fchown(to, int(w.To.UID), int(w.To.GID)), chmod(to, st.Mode&0o777), target.Sync())
	}
	if err == nil {
		err = unix.Renameat(parent, temp, parent, name)
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(parent, temp, 0))
	}
	return nil
}

func (w *OwnWalk) give(fd int, st unix.Stat_t, path string) {
	if w.names != nil || w.From != 0 && st.Uid != w.From {
		return
	}
	changed, err := own(fd, st, w.To, w.DryRun)
	switch {
	case errors.Is(err, ErrDevice), errors.Is(err, ErrHardLink):
		w.Refused++
	case err != nil:
		w.fail(path, st.Uid, err)
		return
	case !changed:
		return
	default:
		w.Changed++
	}
	if w.Found != nil {
		w.Found(path, st.Uid, err)
	}
}

func (w *OwnWalk) fail(path string, was uint32, err error) {
	w.Failed++
	if w.Found != nil {
		w.Found(path, was, err)
	}
}

// openSame opens a name in a directory. For a mount point the error is [ErrMount], without waiting for the mounted file system.
func openSame(walk *atomic.Bool, parent int, name string, flags int) (int, error) {
	if !walk.Load() {
		fd, err := openBeneath(parent, name, flags, 0, unix.RESOLVE_NO_XDEV)
		switch {
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
			walk.Store(true) // as in Dir.open
		case errors.Is(err, unix.EXDEV):
			return -1, ErrMount
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR) && isSymlink(parent, name):
			return -1, symlinkError(name)
		case errors.Is(err, unix.EAGAIN): // many renames at once: the method below always terminates
		default:
			return fd, err
		}
	}
	// O_PATH first: it does not contact the mounted file system.
	fd, err := openComponent(parent, name, unix.O_PATH|flags&unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, err
	}
	same, err := sameMount(parent, fd)
	if err == nil && !same {
		err = ErrMount
	}
	if err != nil {
		closeFD(fd)
		return -1, err
	}
	if flags&unix.O_PATH != 0 {
		return fd, nil
	}
	defer closeFD(fd)
	return openat(fd, ".", flags, 0)
}

// sameMount reports whether two descriptors are on the same mount; kernels before 5.8 can compare only the devices. It uses
// cached data, so it does not wait for a server.
func sameMount(a, b int) (bool, error) {
	var sa, sb unix.Statx_t
	const flags = unix.AT_EMPTY_PATH | unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT
	err := retryEINTR(func() error { return unix.Statx(a, "", flags, unix.STATX_MNT_ID, &sa) })
	if err == nil {
		err = retryEINTR(func() error { return unix.Statx(b, "", flags, unix.STATX_MNT_ID, &sb) })
	}
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		ta, errA := fstat(a)
		tb, errB := fstat(b)
		return ta.Dev == tb.Dev, errors.Join(errA, errB)
	}
	if err != nil {
		return false, err
	}
	if sa.Dev_major != sb.Dev_major || sa.Dev_minor != sb.Dev_minor {
		return false, nil
	}
	known := sa.Mask&sb.Mask&unix.STATX_MNT_ID != 0
	return !known || sa.Mnt_id == sb.Mnt_id, nil
}
