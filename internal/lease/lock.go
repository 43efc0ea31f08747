package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// Lock is the exclusive right of one init to serve a data volume.
type Lock interface {
	// Acquire blocks until this process has the lock. Stop everything that an earlier lock was for before the call.
	//
	// It calls busy once, before it waits for another holder. busy must not block; the function that it gets says what is known of
	// the holder at that time, without blocking.
	//
	// lost receives the reason when the lock is lost, at most once. It is nil for a lock that lasts as long as this process. The lock is kept until then,
	// and its supervision ends with ctx.
	//
	// An error is the cause of ctx's end, or says why the volume can't be locked. Then nothing keeps another init away.
	Acquire(ctx context.Context, busy func(holder func() Holder)) (lost <-chan error, err error)
	// Check returns nil if something may be started under the lock that Acquire returned. After a pause of this process it
	// fails until the lock has been proved again. It doesn't block.
	Check() error
}

// The times of a lock that a server keeps. Servers release the lock of a silent client after 60 to 90 seconds.
const (
	proveEvery = 10 * time.Second
	proveTime  = 19 * time.Second // for an answer
	graceTime  = time.Second      // more, for an answer that arrived while this process was paused
	askEvery   = time.Second      // for a lock that another machine holds
)

// Volume is the [Lock] of one data directory.
type Volume struct {
	home  string
	actor *fsutil.Actor
	warn  func(string)

	// Tests replace these.
	every   time.Duration // proveEvery
	time    time.Duration // proveTime
	sharing func(dir *os.File) (shared bool, alone string)
	prove   func(file *os.File) error

	mu       sync.Mutex
	held     held
	inherits bool          // held is from the generation before this one
	lost     bool          // held must not be used any more
	proved   time.Duration // when the last proof of held.file began, by CLOCK_BOOTTIME
	at       place
	note     Holder
	reading  bool // the note is being read
	warned   string
}

// held are the locked files. A nil file is not locked.
type held struct{ dir, file *os.File }

func (h held) close() {
	for _, f := range []*os.File{h.file, h.dir} {
		if f != nil {
			_ = f.Close() // the kernel releases the lock in any case
		}
	}
}

// NewVolume returns the lock of a data directory. It touches nothing. Files below the directory are used as actor. warn is told what
// people should know; it must not block.
func NewVolume(home string, actor *fsutil.Actor, warn func(string)) *Volume {
	v := &Volume{home: home, actor: actor, warn: warn, every: proveEvery, time: proveTime, sharing: sharing}
	v.prove = v.proveLock
	return v
}

// Acquire implements [Lock].
func (v *Volume) Acquire(ctx context.Context, busy func(holder func() Holder)) (lost <-chan error, err error) {
	v.mu.Lock()
	h, inherits := v.held, v.inherits
	v.held, v.inherits, v.lost = held{}, false, false
	v.mu.Unlock()
	if !inherits {
		if h, err = v.ask(ctx, h, busy); err != nil {
			return nil, err
		}
	}
	v.mu.Lock()
	v.held, v.proved = h, now()
	v.mu.Unlock()
	if h.file == nil {
		return nil, nil
	}
	end := make(chan error, 1)
	guard.Go("proving the lock of the volume", func() { v.keep(ctx, h.file, end) })
	return end, nil
}

// ask waits for the lock beside its caller, because a call to the volume can't be interrupted.
func (v *Volume) ask(ctx context.Context, old held, busy func(holder func() Holder)) (held, error) {
	type answer struct {
		held
		error
	}
	got := make(chan answer)
	guard.Go("waiting for the lock of the volume", func() {
		h, err := v.lock(ctx, old, busy)
		select {
		case got <- answer{h, err}:
		case <-ctx.Done():
			h.close()
		}
	})
	select {
	case a := <-got:
		return a.held, a.error
	case <-ctx.Done():
		return held{}, context.Cause(ctx)
	}
}

// lock takes the locks that the file system of the volume needs. It blocks.
func (v *Volume) lock(ctx context.Context, old held, busy func(holder func() Holder)) (h held, err error) {
	wait := sync.OnceFunc(func() {
		v.readNote()
		busy(v.holder)
	})
	shared := false
	err = blocking.Do(blocking.Volume, func() error {
		old.close()
		return v.as(func(d *fsutil.Dir) (err error) {
			if h.dir, err = d.LockWait(func(dir *os.File) { v.mark(dir); wait() }); err != nil {
				return err
			}
			var why string
			if shared, why = v.sharing(h.dir); why != "" {
				v.say(fmt.Sprintf("%s does not share locks between machines: a hinit on another machine is not kept from serving %q; use this volume from one machine only", why, v.home))
			}
			return nil
		})
	})
	for err == nil && shared {
		err = blocking.Do(blocking.Volume, func() (err error) {
			h.file, err = v.lockFile()
			return err
		})
		switch {
		case err == nil:
			shared = false
		case errors.Is(err, fsutil.ErrLocked):
			wait()
		case unable(err):
			v.say(fmt.Sprintf("a hinit on another machine is not kept from serving %q: %v", v.home, err))
			shared, err = false, nil
		default:
			v.say(fmt.Sprintf("cannot lock %q yet: %v", v.home, err))
		}
		if shared {
			select {
			case <-time.After(askEvery):
				err = nil
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
	}
	if err != nil {
		h.close()
		return held{}, err
	}
	_ = blocking.Do(blocking.Volume, func() error { v.leaveNote(); return nil })
	return h, nil
}

// unable reports whether an error says that a file can't be locked here at all.
func unable(err error) bool {
	for _, no := range []error{unix.ENOLCK, unix.ENOSYS, unix.EOPNOTSUPP, unix.EINVAL, unix.EROFS, fs.ErrPermission} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// say warns, once for the same words in a row.
func (v *Volume) say(text string) {
	v.mu.Lock()
	said := text == v.warned
	v.warned = text
	v.mu.Unlock()
	if !said {
		v.warn(text)
	}
}

// as calls f with the data directory, as this process, and as the agent's user where a server refuses root.
func (v *Volume) as(f func(*fsutil.Dir) error) (err error) {
	for _, a := range []*fsutil.Actor{nil, v.actor} {
		var d *fsutil.Dir
		if d, err = fsutil.OpenDir(v.home, a); err == nil {
			err = f(d)
			_ = d.Close()
		}
		if !errors.Is(err, fs.ErrPermission) || !v.actor.Switches() {
			break
		}
	}
	return err
}

// now is CLOCK_BOOTTIME (clock_gettime(2)), which goes on while the machine sleeps.
func now() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // it exists on every Linux that runs Go
	return time.Duration(ts.Nano())
}

// Check implements [Lock].
func (v *Volume) Check() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch age := now() - v.proved; {
	case v.lost:
		return fmt.Errorf("the lock of %q is lost", v.home)
	case v.held.file != nil && age >= v.every+v.time+graceTime:
		return fmt.Errorf("the lock of %q was last proved %v ago, and has to be proved first", v.home, age.Round(time.Second))
	}
	return nil
}

// Handover is what a Volume tells that of the next generation of this process.
type Handover struct {
	Lock *os.File `reexec:"FD"` // of the directory; nil if it is not held. Older generations name it so, too
	File *os.File // on a network file system
}

// HandOver returns what a successor needs to go on. It doesn't block.
func (v *Volume) HandOver() *Handover {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.lost {
		return &Handover{}
	}
	return &Handover{Lock: v.held.dir, File: v.held.file}
}

// TakeOver makes the next Acquire return at once with the lock of an earlier generation, if that held it.
func (v *Volume) TakeOver(old *Handover) {
	if old != nil && old.Lock != nil {
		v.held, v.inherits = held{old.Lock, old.File}, true
	}
}
