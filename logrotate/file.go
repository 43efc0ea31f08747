package logrotate

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/fault"
	"hinit/internal/guard"
	"hinit/logrotate/archive"
)

const (
	// period is the least time between two tries at a faulted file, and between two looks at the name of a file. It also separates
	// an archive from its compression, and the last suppressed line from its record.
	period = time.Second
	// finished is the bit of a file's mode that says so.
	finished = 0o100
	// keepLimit is how many bytes of formatted lines are kept while the file is faulted, if there is room.
	keepLimit = 256 << 10
)

// file is the durable sink of one path, shared by all streams, and by a Log and its successor of the same path. mu is held across
// disk operations, so only pumps and short goroutines may take it.
type file struct {
	set  *Set
	path string
	refs int    // Logs that use it; guarded by Set.mu
	uses uint64 // Logs that ever used it; guarded by Set.mu

	limits     atomic.Pointer[Limits]
	unpackable atomic.Bool // its archives can't be compressed, and that has been said

	lastErr atomic.Pointer[string]
	losses  atomic.Uint64

	mu      sync.Mutex
	service string // for warnings
	writer  writer
	stamp   stamp

	onDisk
	rotation

	fault error // why nothing can be written; nil when all is well
	tried time.Time
	kept  []byte // formatted lines that wait for the end of the fault
	lost  int64  // lines behind kept that could not be kept
	timer *time.Timer
}

// onDisk is the open file.
type onDisk struct {
	fd       int // own descriptor of the file that writer writes, -1 when it is closed
	dev, ino uint64
	size     int64     // up to the end of the last whole line
	torn     bool      // what is behind size must be cut off before anything is written
	checked  time.Time // last look at the name
}

// rotation is what is known of the rotated files beside the open one.
type rotation struct {
	archives  archive.List
	scanned   bool      // archives is what the directory has
	rotateErr error     // why the file is larger than it should be; nil when all is well
	rotateAt  time.Time // not before
}

// lines writes whole lines with timestamps. buf is scratch space with room for at least one longest line.
func (f *file) lines(chunk, buf []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	prefix := f.stamp.at(now)
	for len(chunk) > 0 {
		n := bytes.IndexByte(chunk, '\n') + 1
		if at := len(buf); at+stampLen+n <= cap(buf) {
			buf = buf[:at+stampLen+n]
			*(*[stampLen]byte)(buf[at:]) = prefix
			copy(buf[at+stampLen:], chunk[:n])
			chunk = chunk[n:]
			continue
		}
		f.write(buf, now)
		buf = buf[:0]
	}
	f.write(buf, now)
}

// write takes care of p, which consists of formatted lines.
func (f *file) write(p []byte, now time.Time) {
	if f.fault != nil {
		f.keep(p)
		if now.Sub(f.tried) >= f.set.opts.period {
			f.turn(func() { f.retry(now) })
		}
		return
	}
	var n int
	var err error
	f.turn(func() { n, err = f.put(p, now) })
	if err != nil {
		f.fail(err, now)
		f.keep(p[n:])
	}
}

// turn lets do use the disk. The caller holds mu, so that a file that hangs takes one turn and not one for each of its pumps.
func (f *file) turn(do func()) {
	_ = blocking.Do(blocking.Logs, func() error {
		do()
		return nil
	})
}

// put writes p and returns how many of its bytes, always up to the end of a line, are in the file.
func (f *file) put(p []byte, now time.Time) (done int, err error) {
	for done < len(p) {
		if err := f.ready(now); err != nil {
			return done, err
		}
		n, err := f.step(p[done:], now)
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// ready makes sure that there is an open file under the right name whose end is the end of a line.
func (f *file) ready(now time.Time) error {
	if f.fd < 0 || now.Sub(f.checked) >= f.set.opts.period {
		if f.fd >= 0 && f.replaced() {
			f.shut()
			f.scanned = false
		}
		if f.fd < 0 {
			if err := f.open(); err != nil {
				return err
			}
		}
		f.checked = time.Time{}
		if err := f.spare(); err != nil {
			return err
		}
		if f.archives.Expired(f.limits.Load().MaxAge, now) {
			f.discard(now)
		}
		f.checked = now
	}
	if f.torn {
		return f.cut()
	}
	return nil
}

// cut takes what is behind the last whole line off the file.
func (f *file) cut() error {
	var st unix.Stat_t
	err := unix.Fstat(f.fd, &st)
	if err == nil && st.Size > f.size {
		if err = fault.Before(fault.Truncate, f.path); err == nil {
			err = unix.Ftruncate(f.fd, f.size)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot cut a torn line off %q: %w", f.path, err)
	}
	f.size = min(f.size, st.Size) // it may have been emptied meanwhile, and must not grow by that
	f.torn = false
	return nil
}

// step writes as much of p as the file may take, or rotates. It returns the number of bytes that are in the file for good.
func (f *file) step(p []byte, now time.Time) (int, error) {
	if room := f.limits.Load().MaxSize - f.size; int64(len(p)) > room && (f.rotateErr == nil || !now.Before(f.rotateAt)) {
		cut := bytes.LastIndexByte(p[:max(room, 0)], '\n') + 1
		if cut == 0 && f.size > 0 {
			f.rotate(now)
			return 0, nil
		}
		if cut == 0 {
			cut = bytes.IndexByte(p, '\n') + 1
		}
		p = p[:cut]
	}
	n, err := f.commit(p)
	if err != nil || n < len(p) {
		return f.spoiled(p, n, err)
	}
	f.size += int64(n)

	// A file without a name is lost, so the batch that was just written goes to the next file. A check before the write would be
	// too early. Earlier lines were readable, and their removal was intended.
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return n, nil
	}
	if st.Nlink == 0 {
		f.shut()
		f.scanned = false
		return 0, nil
	}
	f.size = st.Size // somebody may have truncated it, or have added to it
	return n, nil
}

// spoiled sees to it that no torn line stays after a write of p of which only n bytes were taken. It returns as step does.
func (f *file) spoiled(p []byte, n int, err error) (int, error) {
	if err == nil {
		err = errors.New("short write")
	}
	if named, ok := errors.AsType[*os.PathError](err); ok {
		err = named.Err // the path in it is the descriptor's
	}
	err = fmt.Errorf("cannot write log file %q: %w", f.path, err)
	whole := bytes.LastIndexByte(p[:n], '\n') + 1
	f.torn = n > whole
	var st unix.Stat_t
	if unix.Fstat(f.fd, &st) != nil {
		f.size += int64(whole)
		return whole, err
	}
	f.size = st.Size - int64(n-whole) // not what it was and what came: somebody may have emptied it to make room
	if st.Nlink == 0 {
		f.shut()
		f.scanned = false
		return 0, err
	}
	if f.torn {
		_ = f.cut() // or else before the next write
	}
	return whole, err
}

// commit appends p to the file.
func (f *file) commit(p []byte) (int, error) {
	if err := fault.Before(fault.Write, f.path); err != nil {
		return 0, err
	}
	return f.writer.write(p[:fault.Room(fault.Write, f.path, len(p))])
}

// shut closes the file. The next write opens it again.
func (f *file) shut() {
	if f.fd < 0 {
		return
	}
	if f.torn {
		_ = f.cut() // the last chance: whoever opens the file next ends the line where it is
	}
	f.writer.detach()
	_ = unix.Close(f.fd)
	f.fd, f.torn = -1, false
}

// keep holds p back until the fault is over, as far as there is room. Once a line had to be counted all that follow are, so that
// there is one gap.
func (f *file) keep(p []byte) {
	if f.lost == 0 {
		fit := p
		f.kept = f.set.room.grow(f.kept, len(f.kept)+len(p), keptSpare, keepLimit)
		if room := cap(f.kept) - len(f.kept); len(p) > room {
			fit = p[:bytes.LastIndexByte(p[:max(room, 0)], '\n')+1]
		}
		f.kept = append(f.kept, fit...)
		p = p[len(fit):]
	}
	n := bytes.Count(p, []byte{'\n'})
	f.lost += int64(n)
	f.losses.Add(uint64(n))
}

// fail begins a fault.
func (f *file) fail(err error, now time.Time) {
	f.fault, f.tried = err, now
	f.note(err)
	f.set.opts.Warn(f.service, err.Error()+"; the service goes on, its next lines wait in memory and are counted when that is full")
	f.arm()
}

func (f *file) note(err error) {
	text := err.Error()
	f.lastErr.Store(&text)
}

// arm sees to it that a retry comes without a new line.
func (f *file) arm() {
	if f.timer == nil {
		f.timer = time.AfterFunc(f.set.opts.period, guard.Func("writing the log of "+f.service, f.elapsed))
		return
	}
	f.timer.Reset(f.set.opts.period)
}

func (f *file) elapsed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil && f.timer != nil { // else the file was closed while this waited, and its writer may be another's
		f.turn(func() { f.retry(time.Now()) })
	}
}

// retry tries to end a fault: first what was kept, then the gap marker, if there is a gap.
func (f *file) retry(now time.Time) {
	f.tried = now
	f.checked = time.Time{}
	n, err := f.put(f.kept, now)
	f.kept = f.kept[:copy(f.kept, f.kept[n:])]
	switch {
	case err != nil:
	case f.lost > 0:
		prefix := f.stamp.at(now)
		_, err = f.put(fmt.Appendf(nil, "%s[hinit] %d lines lost here: %s\n", prefix[:], f.lost, reason(f.fault)), now)
	default:
		err = f.ready(now) // nothing has to be written, but could it be?
	}
	if err != nil {
		f.note(err)
		f.arm()
		return
	}
	lost := f.lost
	f.forget()
	f.lastErr.Store(nil)
	if lost == 0 {
		f.set.opts.Warn(f.service, fmt.Sprintf("log file %q is written again, no line was lost", f.path))
		return
	}
	f.set.opts.Warn(f.service, fmt.Sprintf("log file %q is written again, %d lines were lost", f.path, lost))
}

// forget ends a fault: nothing is kept any more.
func (f *file) forget() {
	f.set.room.free(f.kept, keptSpare)
	f.fault, f.kept, f.lost = nil, nil, 0
}

// leave gives back what is kept for a file that nothing uses any more.
func (f *file) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget()
}

// finish closes the file for now, with a last try if it is faulted. It returns what could not be written.
func (f *file) finish() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turn(func() {
		if f.fault != nil {
			f.retry(time.Now())
		}
		f.complete(f.fault == nil)
		f.shut()
	})
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
	if f.fault == nil {
		return nil
	}
	return fmt.Errorf("cannot write the last %d lines of %q: %w",
		int64(bytes.Count(f.kept, []byte{'\n'}))+f.lost, f.service, f.fault)
}

// complete says by the file's mode whether its writer has finished it: s6-log goes on with a finished one and sets any other aside.
func (f *file) complete(done bool) {
	var st unix.Stat_t
	if f.fd < 0 || unix.Fstat(f.fd, &st) != nil || st.Nlink == 0 || (st.Mode&finished != 0) == done {
		return
	}
	mode := st.Mode &^ (unix.S_IFMT | finished)
	if done && !f.torn {
		mode |= finished
	}
	_ = unix.Fchmod(f.fd, mode) // it is for others, and a file of somebody else's stays as it is
}

// reason is the shortest true text for err.
func reason(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	return err.Error()
}
