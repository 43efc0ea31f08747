package lease

import (
	"errors"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

// volume is where the lease is. All methods may block for as long as the disk does.
type volume interface {
	lock() (io.Closer, error)         // fsutil.ErrLocked, fsutil.ErrNotLocal
	read(name string) ([]byte, error) // nil when there is no such record
	write(name string, raw []byte) error
	claim(name string, raw []byte) error // fs.ErrExist when somebody has it
	highest() (uint64, error)            // of the epochs that were claimed and not swept
	sweep(below uint64)
	notify() (notifier, error) // of a local file system
}

const (
	// DirName is where the lease is, below the data directory.
	DirName = ".hinit"
	// current is the record of the newest holder, for those who look for it: that holder puts it there when it begins, and again
	// when it finds an older one. A write of an earlier holder that was held up somewhere can take its place for a while, so
	// nothing but the search begins here.
	current = "lease"
	// ofEpoch is what the name of an epoch's own record begins with. Only one init ever writes it.
	ofEpoch = "lease."
	// waiting is what those who wait on a local file system write, so that the holder renews its record. It is read by change only.
	waiting  = "waiting"
	tempName = ".lease.*.tmp"
	// names bounds how much of a directory is looked at that the agent can fill.
	names = 4096
)

// disk is the volume as it is. What is beneath it is touched as the agent's user, and as root where that user may not write yet.
type disk struct {
	home  string
	actor *fsutil.Actor
}

func (d *disk) lock() (io.Closer, error) {
	dir, err := fsutil.OpenDir(d.home, nil)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Lock()
}

// in opens the volume's directory and calls f.
func (d *disk) in(f func(*fsutil.Dir) error) error {
	err := d.as(d.actor, f)
	if d.actor.Switches() && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) {
		return d.as(nil, f)
	}
	return err
}

func (d *disk) as(a *fsutil.Actor, f func(*fsutil.Dir) error) error {
	dir, err := fsutil.OpenDir(d.home, a)
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(dir)
}

func (d *disk) read(name string) (raw []byte, err error) {
	err = d.in(func(dir *fsutil.Dir) error {
		raw, err = dir.ReadFile(DirName+"/"+name, most)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if _, err := dir.Lstat(""); err != nil {
				return err
			}
			raw, err = nil, nil
		case errors.Is(err, fsutil.ErrSymlink), errors.Is(err, fsutil.ErrNotRegular), errors.Is(err, fsutil.ErrTooLarge):
			raw, err = []byte("garbled"), nil // it says nothing, and does not change
		}
		return err
	})
	return raw, err
}

// make calls f, which writes in the directory, and makes the directory for it where there is none. What is in its place
// is none of hinit's, and removed.
func (d *disk) make(name string, f func(*fsutil.Dir) error) error {
	return d.in(func(dir *fsutil.Dir) error {
		err := f(dir)
		switch {
		case err == nil, errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, fs.ErrExist), errors.Is(err, unix.EROFS):
			return err
		case errors.Is(err, fs.ErrNotExist):
		default:
			if info, statErr := dir.Lstat(DirName); statErr == nil && !info.IsDir() {
				err = dir.Remove(DirName)
			} else if info, statErr := dir.Lstat(DirName + "/" + name); statErr == nil && !info.Mode().IsRegular() {
				err = dir.RemoveAll(DirName + "/" + name)
			} else {
				return err
			}
			if err != nil {
				return err
			}
		}
		if err := dir.Mkdir(DirName, 0o755); err != nil {
			return err
		}
		return f(dir)
	})
}

// write overwrites the record, so that a full disk is no reason to lose the lease. Only the agent's user does: it can write
// what it likes. Root puts a new file in the place.
func (d *disk) write(name string, raw []byte) error {
	if d.as(d.actor, func(dir *fsutil.Dir) error { return dir.Overwrite(DirName+"/"+name, raw) }) == nil {
		return nil
	}
	return d.make(name, func(dir *fsutil.Dir) error {
		return dir.Replace(DirName+"/"+name, raw, fsutil.ReplaceOptions{Mode: 0o644, TempName: tempName, Volatile: true})
	})
}

func (d *disk) claim(name string, raw []byte) error {
	return d.make(name, func(dir *fsutil.Dir) error { return dir.Exclusive(DirName+"/"+name, raw, 0o644) })
}

// epochName is the name of an epoch's own record.
func epochName(epoch uint64) string { return ofEpoch + strconv.FormatUint(epoch, 10) }

// epochOf returns the epoch whose record has a name, 0 for none.
func epochOf(name string) uint64 {
	number, claims := strings.CutPrefix(name, ofEpoch)
	epoch, err := strconv.ParseUint(number, 10, 64)
	if !claims || err != nil || epoch > lastEpoch {
		return 0
	}
	return epoch
}

// each calls f with every name in the directory, and the epoch that it claims, 0 for none.
func (d *disk) each(f func(dir *fsutil.Dir, name string, epoch uint64)) error {
	return d.in(func(dir *fsutil.Dir) error {
		entries, _, err := dir.ReadSome(DirName, names)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		for _, e := range entries {
			f(dir, e.Name(), epochOf(e.Name()))
		}
		return err
	})
}

func (d *disk) highest() (last uint64, err error) {
	err = d.each(func(_ *fsutil.Dir, _ string, epoch uint64) { last = max(last, epoch) })
	return last, err
}

// sweep removes old claims, and what a crash has left of a write.
func (d *disk) sweep(below uint64) {
	_ = d.each(func(dir *fsutil.Dir, name string, epoch uint64) {
		if epoch != 0 && epoch < below || strings.HasPrefix(name, ".lease.") && strings.HasSuffix(name, ".tmp") {
			_ = dir.Remove(DirName + "/" + name) // what stays does no harm
		}
	})
}
