package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/fault"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

const (
	// DirName is the directory of the lock file and the note, below the data directory.
	DirName = ".hinit"

	lockName = DirName + "/lock"
	// lockText is the content of the lock file. A proof reads its first byte.
	lockText = "hinit locks this file: fcntl(2), F_OFD_SETLK\n"
)

// serverKeeps are the file systems whose server keeps the locks of files, with the mount options that turn that off.
var serverKeeps = map[string][]string{
	"nfs": {"nolock", "local_lock=all", "local_lock=posix"}, "nfs4": {"nolock", "local_lock=all", "local_lock=posix"},
	"cifs": {"nobrl"}, "smb3": {"nobrl"}, "ceph": nil, "fuse.ceph": nil, "fuse.ceph-fuse": nil, "fuse.glusterfs": nil, "fuse.juicefs": nil,
}

// sharing reports whether a server keeps the locks of files on the file system of a directory. alone names a file system that other
// machines may use and whose locks they don't see; it is "" for a local one.
func sharing(dir *os.File) (shared bool, alone string) {
	if fault.Enabled && fault.Before(fault.Lock, "server") != nil { // tests call any volume that of a server
		return true, ""
	}
	if fsutil.LocalFile(dir) {
		return false, ""
	}
	var st unix.Statx_t
	err := unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	mounts, readErr := os.ReadFile("/proc/self/mountinfo")
	if err != nil || readErr != nil || st.Mask&unix.STATX_MNT_ID == 0 {
		return false, "a file system that hinit can't tell"
	}
	return sharingOf(mounts, st.Mnt_id)
}

// sharingOf is sharing by the table of mounts (proc(5), mountinfo).
func sharingOf(mounts []byte, id uint64) (shared bool, alone string) {
	for line := range bytes.Lines(mounts) {
		fields := strings.Fields(string(line))
		sep := slices.Index(fields, "-")
		if sep < 0 || len(fields) < sep+4 || fields[0] != strconv.FormatUint(id, 10) {
			continue
		}
		name, options := fields[sep+1], strings.Split(fields[sep+3], ",")
		off, keeps := serverKeeps[name]
		for _, o := range off {
			if slices.Contains(options, o) {
				return false, fmt.Sprintf("the file system (%s, mounted with %s)", name, o)
			}
		}
		if keeps {
			return true, ""
		}
		return false, fmt.Sprintf("the file system (%s)", name)
	}
	return false, "a file system that hinit can't tell"
}

// lockFile makes the lock file and locks it without waiting. It returns [fsutil.ErrLocked] if another machine has it.
func (v *Volume) lockFile() (file *os.File, err error) {
	err = v.as(func(d *fsutil.Dir) (err error) {
		file, err = d.OpenUpdate(lockName, 0o600)
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			if !errors.Is(err, fs.ErrNotExist) { // the agent has put something else there
				_ = d.RemoveAll(DirName) // the next call says why it can't
			}
			if err = d.Mkdir(DirName, 0o755); err == nil {
				file, err = d.OpenUpdate(lockName, 0o600)
			}
		}
		if err != nil {
			return err
		}
		if err = relock(file); err == nil {
			_, err = file.WriteAt([]byte(lockText), 0)
		}
		if err == nil {
			err = leadsTo(d, file)
		}
		if err != nil {
			_ = file.Close()
		}
		return err
	})
	return file, err
}

// relock takes the lock of a file, or asks the server for it again.
func relock(file *os.File) error {
	err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return fsutil.ErrLocked
	}
	return err
}

// leadsTo checks that the name of the lock file still leads to the locked one. A new open asks the server.
func leadsTo(d *fsutil.Dir, file *os.File) error {
	named, err := d.Open(lockName)
	if err != nil {
		return err
	}
	defer named.Close()
	one, err := named.Stat()
	two, err2 := file.Stat()
	if err = errors.Join(err, err2); err == nil && !os.SameFile(one, two) {
		err = fmt.Errorf("%s is another file now", lockName)
	}
	return err
}

// proveLock asks the server whether this process still has the lock.
func (v *Volume) proveLock(file *os.File) error {
	err := v.as(func(d *fsutil.Dir) error { return leadsTo(d, file) })
	if err != nil {
		return err
	}
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED) // else the cache of this machine answers
	if _, err := file.ReadAt(make([]byte, 1), 0); err != nil {
		return err
	}
	return relock(file)
}

// keep proves the lock of a file until that fails or ctx ends.
func (v *Volume) keep(ctx context.Context, file *os.File, lost chan<- error) {
	for {
		select {
		case <-time.After(v.every):
		case <-ctx.Done():
			return
		}
		began := now()
		answer := make(chan error, 1)
		guard.Go("asking the server for the lock", func() {
			answer <- blocking.Do(blocking.Volume, func() error { return v.prove(file) })
		})
		err := fmt.Errorf("the volume has not answered for %v", v.every+v.time+graceTime)
		for _, patience := range []time.Duration{v.time, graceTime} {
			select {
			case err = <-answer:
			case <-time.After(patience):
				continue
			case <-ctx.Done():
				return
			}
			break
		}
		v.mu.Lock()
		v.lost, v.proved = err != nil, began
		v.mu.Unlock()
		if err != nil {
			lost <- fmt.Errorf("the lock of %q is lost: %w", v.home, err)
			return
		}
	}
}
