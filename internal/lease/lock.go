package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/faultinject"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/procstat"
)

// Lock gives one init the sole right to serve a data volume.
type Lock interface {
	// Acquire blocks until this process holds the lock. Stop all services of an earlier lock before you call it.
	//
	// If another process holds the lock, Acquire calls busy before it waits. busy must not block. It gets a function holder,
	// which describes that process and does not block either. If Acquire then has to wait for the lock of another kind, it
	// calls busy again.
	//
	// The channel lost receives the reason when the lock is lost, once. It is nil if the lock lasts as long as this process.
	// After ctx has ended, the lock is still held but no longer watched.
	//
	// The error is the cause of ctx, or says why the volume can't be locked. In the second case nothing keeps another init from
	// serving the volume.
	Acquire(ctx context.Context, busy func(holder func() Holder)) (lost <-chan error, err error)
	// Check returns nil if services may start now, because the lock is held. After a pause of this process, Check fails until
	// the next confirmation of the lock. After an error of CheckRoot, it fails until CheckRoot succeeds. It does not block.
	Check() error
	// CheckRoot returns an error if root, the directory that is now at the path of the volume, is not the locked directory. Then
	// the volume was unmounted, or another one replaced it. If root has another path than the locked directory, CheckRoot
	// returns nil. It may block as long as the disk does.
	CheckRoot(root *fsutil.Dir) error
	// HandOver returns the state for the program after a re-execution. It does not block.
	HandOver() *Handover
	// TakeOver makes the next Acquire continue with the lock that the program before a re-execution held. A nil old changes
	// nothing.
	TakeOver(old *Handover)
}

// Times for a lock that the server of a network file system keeps. Servers drop the lock of a silent client after 40 to 90
// seconds, so hinit must give up earlier.
const (
	confirmInterval   = 10 * time.Second
	confirmTimeLimit  = 19 * time.Second // how long the server may take to answer
	confirmGrace      = time.Second      // added to confirmTimeLimit, for an answer during a pause of this process
	lockRetryInterval = time.Second      // pause between two attempts while another machine holds the lock

	// DirName is the directory in the data directory with the lock file and the holder file.
	DirName = ".hinit"

	lockName = DirName + "/lock"
)

// Volume locks one data directory with file locks of the kernel. It implements [Lock].
type Volume struct {
	home  string
	actor *fsutil.Actor
	warn  func(string)
	// hasLease means that a lease protects the volume from other machines. If this user may not open the directory, lock then
	// fails and does not wait.
	hasLease bool

	// Tests replace the functions and durations below.
	confirmEvery time.Duration // time between two confirmations; confirmInterval outside tests
	confirmLimit time.Duration // how long a confirmation may take; confirmTimeLimit outside tests
	// Outside tests, sharing is serverSharesLocks, and confirm is confirmLock.
	sharesLocks func(dir *os.File) (shared bool, alone string)
	confirm     func(v *Volume, file *os.File) error

	mu          sync.Mutex
	heldLock    Handover
	lost        bool          // the lock was lost, so held must not be used
	rootProblem error         // the last result of CheckRoot
	confirmedAt time.Duration // start of the last successful confirmation, by CLOCK_BOOTTIME

	lastHolder    atomic.Pointer[Holder]
	readingHolder atomic.Bool // a goroutine is reading the holder file
}

// Handover contains the locked files of a Volume, for the program after a re-execution. A nil file is not locked.
type Handover struct {
	Lock *os.File `reexec:"FD"` // the data directory, whose descriptor holds the lock
	File *os.File // the lock file on a network file system; nil on a local one

	Until time.Duration // end of the lease, by CLOCK_BOOTTIME; 0 without a lease
}

func (h Handover) release() { _, _ = h.File.Close(), h.Lock.Close() } // the kernel releases the locks even if Close returns an error

// NewVolume returns the lock of the data directory home, without any I/O. It uses files in the directory as the user of actor.
// warn gets warnings for the operator, perhaps repeatedly. It must not block.
func NewVolume(home string, actor *fsutil.Actor, warn func(string)) *Volume {
	v := &Volume{home: home, actor: actor, warn: warn, confirmEvery: confirmInterval, confirmLimit: confirmTimeLimit, sharesLocks: serverSharesLocks, confirm: (*Volume).confirmLock}
	v.lastHolder.Store(&Holder{})
	return v
}

// Acquire implements [Lock] with the locks that the file system needs.
func (v *Volume) Acquire(ctx context.Context, busy func(holder func() Holder)) (lost <-chan error, err error) {
	v.mu.Lock()
	// inherits means that the program before a re-execution has handed over the lock
	old, inherits := v.heldLock, v.heldLock.Lock != nil && !v.lost
	v.mu.Unlock()
	if !inherits { // a call on the volume can't be interrupted, so Wait makes it in another goroutine
		if err = blocking.Wait(ctx, "taking the lock of the volume", func() error { return v.lock(ctx, old, busy) }); err != nil {
			return nil, err
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lost, v.confirmedAt = false, procstat.SinceBoot()
	if v.heldLock.File == nil {
		return nil, nil
	}
	end, file := make(chan error, 1), v.heldLock.File
	guard.Go("proving the lock of the volume", func() { v.confirmRegularly(ctx, file, end) })
	return end, nil
}

// lock releases the locks in h, and takes the locks that the file system of the volume needs. It blocks. If this user lacks a
// permission, lock tries again until it has the permission. An agent can cause that by the mode of a directory, so it does not
// mean that the file system has no locks.
func (v *Volume) lock(ctx context.Context, h Handover, busy func(holder func() Holder)) (err error) {
	at, shared, alone := "", false, "" // the directory in the notation of /proc/locks, once another process holds the lock
	wait := sync.OnceFunc(func() { busy(func() Holder { return v.holder(at) }) })
	blocking.Run(blocking.Volume, h.release)
	h = Handover{}
	refused, settle := false, time.Duration(0) // settle: how long a previous holder on another machine may keep running; 0 without one
	for again := true; again; {
		err = v.withDir(func(d *fsutil.Dir) (err error) {
			if h.Lock == nil {
				h.Lock, err = d.Lock(func(dir *os.File) error {
					at, _ = lockIdentity(dir), v.readHolderFile(d)
					wait()
					return nil
				})
				if err == nil && !v.hasLease {
					shared, alone = v.sharesLocks(h.Lock)
				}
			}
			if shared {
				_ = h.File.Close()
				var moved bool
				h.File, moved, err = lockFile(d, refused)
				if moved { // an init that locked the old file continues until it fails to confirm its lock
					settle = v.confirmEvery + v.confirmLimit + confirmGrace + v.confirmEvery/10
				}
			}
			return err
		})
		// A previous holder may have lost its lock without noticing it, for example because its FUSE client has died. Wait
		// until its next confirmation.
		if err == nil && settle > 0 && pause.For(ctx, settle) {
			err = v.confirm(v, h.File) // another init may have moved the file during the wait
		}
		refused = errors.Is(err, unix.EACCES) && !v.hasLease // an agent can't cause EPERM, by which a file system refuses locks
		switch {
		case errors.Is(err, errLocked):
			settle = max(settle, v.confirmEvery+v.confirmEvery/10)
			_ = v.withDir(v.readHolderFile) // an error does not matter, because the holder file is only displayed
			wait()
		case h.Lock != nil && settle == 0 && (errors.Is(err, errNoLocks) || errors.Is(err, unix.EROFS)):
			alone, err = err.Error(), nil
		case err != nil && h.Lock != nil, refused:
			v.warn(fmt.Sprintf("cannot lock %q yet: %v; if its %s is another user's, remove that while no hinit serves", v.home, err, DirName))
		}
		again = err != nil && (h.Lock != nil || refused) && pause.For(ctx, lockRetryInterval)
	}
	if err = cmp.Or(context.Cause(ctx), err); err != nil {
		h.release()
		return err
	}
	if alone != "" {
		v.warn(fmt.Sprintf("a hinit on another machine is not kept from serving %q: %s; use this volume from one machine only", v.home, alone))
	}
	v.writeHolderFile()
	v.mu.Lock()
	v.heldLock, v.rootProblem = h, nil
	v.mu.Unlock()
	return nil
}

// withDir calls f with the data directory, through blocking.Volume. It opens the directory as the agent's user, so that f can't
// exceed the agent's rights. If that user lacks a permission, withDir tries again as this process. In this order, it also works
// with a server that refuses root.
func (v *Volume) withDir(f func(*fsutil.Dir) error) error {
	return blocking.Do(blocking.Volume, func() (err error) {
		open := fsutil.OpenDir
		for _, a := range []*fsutil.Actor{v.actor, nil} {
			var d *fsutil.Dir
			if d, err = open(v.home, a); err == nil {
				err = f(d)
				_ = d.Close()
			}
			if !errors.Is(err, fs.ErrPermission) || !v.actor.SwitchesIdentity() {
				break
			}
			open = fsutil.OpenNoLink // root must not follow a link that the agent may have made
		}
		return err
	})
}

// releaseLost releases the files of a lock that was lost.
func (v *Volume) releaseLost() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.lost {
		v.heldLock.release()
		v.heldLock = Handover{}
	}
}

// CheckRoot implements [Lock].
func (v *Volume) CheckRoot(root *fsutil.Dir) (err error) {
	v.mu.Lock()
	locked := v.heldLock.Lock
	v.mu.Unlock()
	held, heldErr := blocking.Get(blocking.Volume, locked.Stat) // fails without a lock
	now, rootErr := root.Lstat(".")
	// the paths differ if the lock is on the home of a named profile
	if root.Path() == v.home && heldErr == nil && rootErr == nil && fsutil.IDOf(held) != fsutil.IDOf(now) {
		err = fmt.Errorf("%q is another directory than the one that hinit has locked, so nothing starts there: mount the volume again, or restart the container to serve what is there now", v.home)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.rootProblem = err
	return err
}

// Check implements [Lock]. It fails if the lock was lost, if its last confirmation is too old, or if another directory has
// replaced the locked one.
func (v *Volume) Check() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch age := procstat.SinceBoot() - v.confirmedAt; {
	case v.lost:
		return fmt.Errorf("the lock of %q is lost", v.home)
	case v.heldLock.File != nil && age >= v.confirmEvery+v.confirmLimit+confirmGrace:
		return fmt.Errorf("the lock of %q was last proved %v ago, and has to be proved first", v.home, age.Round(time.Second))
	}
	return v.rootProblem
}

// HandOver implements [Lock]. The state is empty if the lock was lost.
func (v *Volume) HandOver() *Handover {
	v.mu.Lock()
	defer v.mu.Unlock()
	if h := v.heldLock; !v.lost {
		return &h
	}
	return &Handover{}
}

// TakeOver implements [Lock]. The next Acquire returns at once if the program before a re-execution held the lock.
func (v *Volume) TakeOver(old *Handover) {
	if old != nil {
		v.heldLock = *old
	}
}

// serverLockOptions lists network file systems whose server keeps the locks of files, with the mount options that turn the
// locks off.
var serverLockOptions = map[string][]string{
	"nfs": {"nolock", "local_lock=all", "local_lock=posix"}, "nfs4": {"nolock", "local_lock=all", "local_lock=posix"},
	"cifs": {"nobrl"}, "smb3": {"nobrl"}, "ceph": nil, "fuse.ceph": nil, "fuse.ceph-fuse": nil, "fuse.glusterfs": nil, "fuse.juicefs": nil,
}

// serverSharesLocks reports whether the file system of a directory has a server that keeps the locks of files. If other
// machines may use the file system without seeing these locks, alone says why; otherwise alone is "".
func serverSharesLocks(dir *os.File) (shared bool, alone string) {
	if faultinject.Enabled && faultinject.BeforeCall(faultinject.CallLock, "server") != nil { // in tests, any volume can have a server
		return true, ""
	}
	if fsutil.IsLocalFile(dir) {
		return false, ""
	}
	var st unix.Statx_t
	_ = unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	return mountSharesLocks(mounts, st.Mnt_id)
}

// mountSharesLocks answers serverSharesLocks for the mount with number id. mounts is the content of /proc/self/mountinfo
// (proc(5)).
func mountSharesLocks(mounts []byte, id uint64) (shared bool, alone string) {
	for line := range strings.Lines(string(mounts)) {
		mount, super, _ := strings.Cut(line, " - ")
		of := strings.Fields(super)
		if len(of) < 3 || !strings.HasPrefix(mount, strconv.FormatUint(id, 10)+" ") {
			continue
		}
		off, keeps := serverLockOptions[of[0]]
		for option := range strings.SplitSeq(of[2], ",") {
			if slices.Contains(off, option) {
				return false, fmt.Sprintf("the file system (%s, mounted with %s) shares no locks between machines", of[0], option)
			}
		}
		if !keeps {
			alone = fmt.Sprintf("the file system (%s) shares no locks between machines", of[0])
		}
		return keeps, alone
	}
	return false, "hinit can't tell which file system it has"
}

// lockFile locks the lock file without waiting, and creates it if necessary. The error is [errLocked] if another machine has
// the lock. If the directory of the file can't be used, lockFile moves it away and makes a new one. With refused, lockFile also
// replaces a directory whose file this user may not open. moved reports that the directory was replaced, also after an error.
func lockFile(d *fsutil.Dir, refused bool) (file *os.File, moved bool, err error) {
	file, err = d.OpenUpdate(lockName, 0o600)
	if err != nil && (refused || !errors.Is(err, fs.ErrPermission)) {
		if !errors.Is(err, fs.ErrNotExist) && d.Rename(DirName, DirName+".away-"+strconv.FormatInt(int64(procstat.SinceBoot()), 36)) == nil {
			moved = true // the agent has replaced it, perhaps by a directory with root's files
		}
		if err = d.Mkdir(DirName, 0o755); err == nil {
			file, err = d.OpenUpdate(lockName, 0o600)
		}
	}
	if err != nil {
		return nil, moved, err
	}
	err = setOFDLock(file)
	if info, _ := file.Stat(); err == nil && info != nil && info.Size() == 0 { // a file with content may be a hard link to another file
		_, err = file.WriteAt([]byte("hinit locks this file: fcntl(2), F_OFD_SETLK\n"), 0)
	}
	if err = errors.Join(err, checkLockName(d, file)); err != nil {
		_ = file.Close()
		return nil, moved, err
	}
	return file, moved, nil
}

var (
	errLocked  = errors.New("another machine holds the lock")
	errNoLocks = errors.New("its files can't be locked")
)

// setOFDLock locks a file, or confirms with the server that this process still has the lock.
func setOFDLock(file *os.File) error {
	err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	switch {
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES):
		return errLocked
	case slices.Contains([]error{unix.ENOLCK, unix.EPERM, unix.ENOSYS, unix.EOPNOTSUPP, unix.EINVAL}, err):
		return fmt.Errorf("%w: %w", errNoLocks, err)
	}
	return err
}

// checkLockName returns an error if the name of the lock file no longer leads to the locked file. It first asks the server for
// both directories, because this machine's cache may still show a directory that another machine has moved away.
func checkLockName(d *fsutil.Dir, file *os.File) error {
	stale := errors.Join(d.RefreshCache(""), d.RefreshCache(DirName))
	named, err := d.Open(lockName)
	if err != nil {
		return err
	}
	defer named.Close()
	one, err := named.Stat()
	two, err2 := file.Stat()
	if err = errors.Join(stale, err, err2); err == nil && !os.SameFile(one, two) {
		err = fmt.Errorf("%s is another file now", lockName)
	}
	return err
}

// confirmLock asks the server whether this process still holds the lock, and returns an error if not.
func (v *Volume) confirmLock(file *os.File) error {
	return v.withDir(func(d *fsutil.Dir) error {
		_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED) // drop cached pages, so that the server answers the read, and not this machine's cache
		_, err := file.ReadAt(make([]byte, 1), 0)
		return errors.Join(err, checkLockName(d, file), setOFDLock(file))
	})
}

// confirmRegularly confirms the lock every v.confirmEvery, until a confirmation fails or ctx ends. The failure goes to lost.
func (v *Volume) confirmRegularly(ctx context.Context, file *os.File, lost chan<- error) {
	for {
		if !pause.For(ctx, v.confirmEvery) {
			return
		}
		began, answer := procstat.SinceBoot(), make(chan error, 1)
		guard.Go("asking the server for the lock", func() { answer <- v.confirm(v, file) })
		err := fmt.Errorf("the volume has not answered for %v", v.confirmEvery+v.confirmLimit+confirmGrace)
		for _, patience := range []time.Duration{v.confirmLimit, confirmGrace} {
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
		v.lost, v.confirmedAt = err != nil, began
		v.mu.Unlock()
		if err != nil {
			lost <- fmt.Errorf("the lock of %q is lost: %w", v.home, err)
			return
		}
	}
}
