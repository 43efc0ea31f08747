package lease

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"hinit/internal/fault"
	"hinit/internal/guard"
)

// notifier tells of changes of the records on a local file system. It has them from the kernel, so it also knows of those that
// happened while this process was paused. No method blocks.
type notifier interface {
	told() <-chan struct{}    // has a value after a change, and when there will be no more
	changes() uint64          // how many there were
	pending(seen uint64) bool // there were more than that, or nothing more will be told
	ended() bool              // nothing more will be told
	close()
}

// inotify is a notifier of the directory of the records (inotify(7)). It owns a goroutine until close.
type inotify struct {
	f    *os.File
	conn syscall.RawConn
	c    chan struct{}

	mu   sync.Mutex
	many uint64
	over bool
}

// notify watches the directory of the records. It fails where there is none, or none that can be watched.
func (d *disk) notify() (notifier, error) {
	dir := filepath.Join(d.home, DirName)
	if err := fault.Before(fault.Watch, dir); err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	n := &inotify{f: os.NewFile(uintptr(fd), "inotify"), c: make(chan struct{}, 1)}
	const events = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MODIFY | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	_, err = unix.InotifyAddWatch(fd, dir, events|unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW)
	if err == nil {
		n.conn, err = n.f.SyscallConn()
	}
	if err != nil {
		n.close()
		return nil, os.NewSyscallError("inotify_add_watch", err)
	}
	guard.Go("waiting for changes of the lease", n.listen)
	return n, nil
}

func (n *inotify) listen() {
	events := make([]byte, 1024)
	for !n.ended() {
		err := n.conn.Read(func(fd uintptr) bool { return n.take(int(fd), events) })
		if err != nil {
			return // it is closed
		}
		select {
		case n.c <- struct{}{}:
		default:
		}
	}
}

// take takes events from the queue, and reports whether there is something to tell. Who asks meanwhile finds them in the queue or here.
func (n *inotify) take(fd int, events []byte) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	size, err := unix.Read(fd, events)
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return false
	case err != nil:
		n.over = true
		return true
	}
	told := false
	for rest := events[:size]; len(rest) >= unix.SizeofInotifyEvent; {
		mask, length := binary.NativeEndian.Uint32(rest[4:]), int(binary.NativeEndian.Uint32(rest[12:]))
		name := strings.TrimRight(string(rest[unix.SizeofInotifyEvent:][:length]), "\x00")
		rest = rest[unix.SizeofInotifyEvent+length:]
		switch {
		case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED) != 0:
			n.over, told = true, true
		case mask&unix.IN_Q_OVERFLOW != 0, name == waiting, strings.HasPrefix(name, current):
			told = true
			n.many++
		}
	}
	return told
}

func (n *inotify) told() <-chan struct{} { return n.c }

func (n *inotify) pending(seen uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	queued := 0
	err := n.conn.Control(func(fd uintptr) { queued, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) // FIONREAD by another name
	return n.many != seen || n.over || queued > 0 || err != nil
}

func (n *inotify) ended() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.over
}

func (n *inotify) changes() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.many
}

func (n *inotify) close() { _ = n.f.Close() } // it has no error that leaves anything open

// attend makes sure that the records of an epoch are watched, where they can be, and returns how many changes there were. To be
// called before a look, so that no change falls between the two.
func (l *Lease) attend(epoch uint64) (seen uint64) {
	l.mu.Lock()
	n := l.notifier
	l.mu.Unlock()
	if n != nil && !n.ended() {
		return n.changes()
	}
	fresh, err := l.vol.notify()
	if err != nil {
		fresh = nil // it is tried again at the next look
	}
	l.mu.Lock()
	old := fresh
	if l.status.State == Held && l.epoch == epoch { // else it is lost meanwhile
		old, l.notifier = l.notifier, fresh
	}
	l.mu.Unlock()
	if old != nil {
		old.close() // not with the mutex: it takes up to 20 ms
	}
	return 0
}

// pending reports whether the kernel has told of a change that no look has seen. l.mu is held.
func (l *looks) pending() bool { return l.notifier != nil && l.notifier.pending(l.seen) }

// ignore ends the watch.
func (l *Lease) ignore() {
	l.mu.Lock()
	n := l.notifier
	l.notifier = nil
	l.mu.Unlock()
	if n != nil {
		n.close()
	}
}

// told has a value after a change of the records.
func (l *Lease) told() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.notifier == nil {
		return nil
	}
	return l.notifier.told()
}
