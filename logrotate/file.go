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
	"gopkg.in/natefinch/lumberjack.v2"

	"hinit/internal/blocking"
	"hinit/internal/faultinject"
	"hinit/internal/guard"
	"hinit/logrotate/archive"
)

const (
	// retryPeriod is the shortest time between two attempts to write after an error, and between two checks that the path still
	// leads to the open file. Archives are compressed and suppressed lines are reported after the same time.
	retryPeriod = time.Second
	// completeBit is the mode bit that s6-log sets on a complete file (u+x).
	completeBit = 0o100
	// maxKeptBytes is the maximum number of bytes of lines that wait in memory while a file can't be written.
	maxKeptBytes = 256 << 10
)

// file writes the log file at one path. The pumps of both streams of a service share it, and so does a later Log with the same
// path. mu is held during disk operations, so only pumps and short-lived goroutines may lock it.
type file struct {
	set       *Set
	path      string
	userCount int    // Number of Logs that use the file now; guarded by Set.mu.
	useCount  uint64 // Number of Logs that have ever used the file; releaseFile compares it; guarded by Set.mu.

	limits        atomic.Pointer[Limits]
	packingFailed atomic.Bool // Whether the last compression of the archives failed and the user was warned.

	lastErr       atomic.Pointer[string]
	lostLineCount atomic.Uint64

	mu      sync.Mutex
	service string // Name of the service, for warnings.
	writer  *lumberjack.Logger

	onDisk
	rotation

	fault error // Reason why the file can't be written; nil while writing works.
	// Time of the last attempt to write during the fault.
	lastAttempt time.Time
	keptLines   []byte // Formatted lines that wait in memory for the end of the fault.
	lostLines   int64  // Number of lines that were lost because keptLines was full. All of them came after the lines in keptLines.
	timer       *time.Timer
}

// onDisk is the state of the open file.
type onDisk struct {
	fd             int // This package's descriptor, besides lumberjack's own; -1 while the file is closed.
	dev, ino       uint64
	size           int64     // Length of the file up to the end of its last complete line.
	hasPartialLine bool      // Whether an incomplete line follows size, which must be removed before the next write.
	checked        time.Time // Time of the last check that the path still leads to this file.
}

// rotation is the state of the archives and of the rotation.
type rotation struct {
	archives  archive.List
	scanned   bool      // Whether the list archives was read from the directory.
	rotateErr error     // Reason why the last rotation failed; nil after a success.
	rotateAt  time.Time // Time of the next attempt after a failed rotation.
}

// writeLines adds timestamps to the complete lines in chunk and writes them. The parameter buf is scratch space with room for at
// least one line of the maximum length.
func (f *file) writeLines(chunk, buf []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	stamp := appendStamp(make([]byte, 0, stampLen), now)
	for len(chunk) > 0 {
		n := bytes.IndexByte(chunk, '\n') + 1
		if len(buf)+stampLen+n > cap(buf) {
			f.write(buf, now)
			buf = buf[:0]
		}
		buf = append(append(buf, stamp...), chunk[:n]...)
		chunk = chunk[n:]
	}
	f.write(buf, now)
}

// write writes formatted lines to the file. During a fault it keeps them in memory, and tries the file again once a retryPeriod.
func (f *file) write(p []byte, now time.Time) {
	if f.fault != nil {
		f.keepLines(p)
		if now.Sub(f.lastAttempt) >= f.set.opts.period {
			blocking.Run(blocking.Logs, func() { f.retry(now) })
		}
		return
	}
	// mu is held, so a file that hangs occupies only one of the calls that blocking.Logs allows
	n, err := blocking.Get(blocking.Logs, func() (int, error) { return f.writeFormatted(p, now) })
	if err != nil {
		f.beginFault(err, now)
		f.keepLines(p[n:])
	}
}

// maxOpenTries is the number of attempts to open a file, or to write a line to it, while other processes remove or fill the file.
const maxOpenTries = 10

// writeFormatted writes the formatted lines p, with rotations as needed. The result done is the number of bytes of p that are now
// in the file. These bytes are always whole lines.
func (f *file) writeFormatted(p []byte, now time.Time) (done int, err error) {
	for tries, n := 0, 0; done < len(p); tries++ {
		if err = f.prepareWrite(now); err == nil {
			n, err = f.writeOrRotate(p[done:], now)
			done += n
		}
		switch {
		case n > 0:
			tries = 0
		case err == nil && tries == maxOpenTries:
			err = fmt.Errorf("cannot write log file %q: other processes remove or fill it all the time", f.path)
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// prepareWrite must be called before each write. It opens the file if it is closed or was replaced, and removes an incomplete
// last line. Once a retryPeriod it also checks the free space and removes expired archives.
func (f *file) prepareWrite(now time.Time) error {
	if f.fd < 0 || now.Sub(f.checked) >= f.set.opts.period {
		if f.fd >= 0 && f.wasReplaced() {
			f.closeFile()
			f.scanned = false
		}
		if f.fd < 0 {
			if err := f.open(); err != nil {
				return err
			}
		}
		f.checked = time.Time{}
		if err := f.checkFree(); err != nil {
			return err
		}
		if f.archives.Expired(f.limits.Load().MaxAge, now) { // Archives expire between rotations, too.
			if err := f.set.opts.Actor.Do(func() error { return f.prune(now) }); err != nil {
				f.recordError(fmt.Errorf("cannot prune the archives of %q: %w", f.path, err))
			}
		}
		f.checked = now
	}
	if f.hasPartialLine {
		return f.cutPartialLine()
	}
	return nil
}

// cutPartialLine removes the incomplete last line that a failed write has left in the file.
func (f *file) cutPartialLine() error {
	var st unix.Stat_t
	err := unix.Fstat(f.fd, &st)
	if err == nil && st.Size > f.size {
		err = faultinject.RunCall(faultinject.CallTruncate, f.path, func() error { return unix.Ftruncate(f.fd, f.size) })
	}
	if err != nil {
		return fmt.Errorf("cannot cut a torn line off %q: %w", f.path, err)
	}
	f.size = min(f.size, st.Size) // The file is smaller if another process has emptied it.
	f.hasPartialLine = false
	return nil
}

// writeOrRotate writes the lines of p that fit within the size limit. If nothing fits, it rotates the file instead. It returns
// the number of bytes written, which the caller must not write again.
func (f *file) writeOrRotate(p []byte, now time.Time) (int, error) {
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
	n, err := f.appendBytes(p)
	if err != nil || n < len(p) {
		return f.removePartialWrite(p, n, err)
	}
	f.size += int64(n)

	// If another process unlinked the file before this write, its content is lost, so write these lines again to the next
	// file. A check before the write would come too early. Earlier lines are not written again, because the user who removed
	// the file meant to remove them.
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return n, nil
	}
	if st.Nlink == 0 {
		f.closeFile()
		f.scanned = false
		return 0, nil
	}
	f.size = st.Size // Another process may have truncated the file or appended to it.
	return n, nil
}

// removePartialWrite handles a write of p that failed with err, or that wrote only n bytes: it removes the incomplete line at
// the end. It returns the same results as writeOrRotate.
func (f *file) removePartialWrite(p []byte, n int, err error) (int, error) {
	if err == nil {
		err = errors.New("short write")
	}
	if named, ok := errors.AsType[*os.PathError](err); ok {
		err = named.Err // Omit the path in the error, because it is below /proc and means nothing to a user.
	}
	err = fmt.Errorf("cannot write log file %q: %w", f.path, err)
	whole := bytes.LastIndexByte(p[:n], '\n') + 1
	f.hasPartialLine = n > whole
	var st unix.Stat_t
	if unix.Fstat(f.fd, &st) != nil {
		f.size += int64(whole)
		return whole, err
	}
	// Compute f.size from the current size of the file, because another process may have truncated the file to make room.
	f.size = st.Size - int64(n-whole)
	if st.Nlink == 0 {
		f.closeFile()
		f.scanned = false
		return 0, err
	}
	if f.hasPartialLine {
		_ = f.cutPartialLine() // If this fails, prepare tries again before the next write.
	}
	return whole, err
}

// appendBytes appends p to the file. Tests inject short writes and errors here.
func (f *file) appendBytes(p []byte) (int, error) {
	if err := faultinject.BeforeCall(faultinject.CallWrite, f.path); err != nil {
		return 0, err
	}
	return f.writer.Write(p[:faultinject.AllowedBytes(faultinject.CallWrite, f.path, len(p))])
}

// closeFile closes the file. The next write opens it again.
func (f *file) closeFile() {
	if f.fd < 0 {
		return
	}
	if f.hasPartialLine {
		_ = f.cutPartialLine() // Otherwise useDescriptor would later add a newline to the partial line.
	}
	_ = f.writer.Close() // lumberjack buffers nothing that an error could lose.
	_ = unix.Close(f.fd)
	f.fd, f.hasPartialLine = -1, false
}

// keepLines keeps lines in memory until the fault is over. When a line doesn't fit, keepLines only counts it and all later
// lines, so that the log has a single gap.
func (f *file) keepLines(p []byte) {
	if f.lostLines == 0 {
		fit := p
		f.keptLines = f.set.memoryBudget.grow(f.keptLines, len(f.keptLines)+len(p), keptOutsideBudget, maxKeptBytes)
		if room := cap(f.keptLines) - len(f.keptLines); len(p) > room {
			fit = p[:bytes.LastIndexByte(p[:max(room, 0)], '\n')+1]
		}
		f.keptLines = append(f.keptLines, fit...)
		p = p[len(fit):]
	}
	n := bytes.Count(p, []byte{'\n'})
	f.lostLines += int64(n)
	f.lostLineCount.Add(uint64(n))
}

// beginFault starts a fault: it stores and reports err, and schedules the next attempt.
func (f *file) beginFault(err error, now time.Time) {
	f.fault, f.lastAttempt = err, now
	f.recordError(err)
	f.set.opts.Warn(f.service, err.Error()+"; the service keeps running, its next lines wait in memory and are counted when that is full")
	f.scheduleRetry()
}

func (f *file) recordError(err error) { f.lastErr.Store(new(err.Error())) }

// scheduleRetry starts the timer of the next attempt to write. Without the timer, only the next line of the service would cause an
// attempt, and there may be none.
func (f *file) scheduleRetry() {
	if f.timer == nil {
		f.timer = time.AfterFunc(f.set.opts.period, guard.WrapFunc("writing the log of "+f.service, f.onRetryTimer))
		return
	}
	f.timer.Reset(f.set.opts.period)
}

func (f *file) onRetryTimer() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil && f.timer != nil { // Without this check, the writer of a closed file could belong to another file by now.
		blocking.Run(blocking.Logs, func() { f.retry(time.Now()) })
	}
}

// retry tries to end a fault: it writes the kept lines, then a gap marker if lines were lost. After another error it schedules the
// next attempt.
func (f *file) retry(now time.Time) {
	f.lastAttempt = now
	f.checked = time.Time{}
	n, err := f.writeFormatted(f.keptLines, now)
	f.keptLines = f.keptLines[:copy(f.keptLines, f.keptLines[n:])]
	switch {
	case err != nil:
	case f.lostLines > 0:
		_, err = f.writeFormatted(fmt.Appendf(appendStamp(nil, now), "[hinit] %d lines lost here: %s\n", f.lostLines, systemErrorText(f.fault)), now)
	default:
		err = f.prepareWrite(now) // No line waits, so only check that the file is writable.
	}
	if err != nil {
		f.recordError(err)
		f.scheduleRetry()
		return
	}
	lost := "no line was lost"
	if f.lostLines > 0 {
		lost = fmt.Sprintf("%d lines were lost", f.lostLines)
	}
	f.clearFault()
	f.lastErr.Store(nil)
	f.set.opts.Warn(f.service, fmt.Sprintf("log file %q is written again, %s", f.path, lost))
}

// clearFault ends the fault: it drops the kept lines, and returns their memory to the budget.
func (f *file) clearFault() {
	f.set.memoryBudget.free(f.keptLines, keptOutsideBudget)
	f.fault, f.keptLines, f.lostLines = nil, nil, 0
}

// dropKeptLines drops the kept lines when the last Log that uses the file is dropped, and returns their memory to the budget.
func (f *file) dropKeptLines() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clearFault()
}

// finishFile writes the kept lines if it can, marks the file as complete and closes it. A later write opens it again. The error
// says why the last lines are lost.
func (f *file) finishFile() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	blocking.Run(blocking.Logs, func() {
		if f.fault != nil {
			f.retry(time.Now())
		}
		_ = f.set.opts.Actor.Do(func() error { f.markComplete(f.fault == nil); return nil })
		f.closeFile()
	})
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
	if f.fault == nil {
		return nil
	}
	return fmt.Errorf("cannot write the last %d lines of %q: %w",
		int64(bytes.Count(f.keptLines, []byte{'\n'}))+f.lostLines, f.service, f.fault)
}

// markComplete sets completeBit on the file if its last line is complete, or clears the bit if done is false. If s6-log ever takes
// over the volume, it appends to a file with this bit, and renames a file without it. The caller acts as the agent, so the mode of
// another user's file does not change.
func (f *file) markComplete(done bool) {
	var st unix.Stat_t
	if f.fd < 0 || unix.Fstat(f.fd, &st) != nil || st.Nlink == 0 || (st.Mode&completeBit != 0) == done {
		return
	}
	mode := st.Mode &^ (unix.S_IFMT | completeBit)
	if done && !f.hasPartialLine {
		mode |= completeBit
	}
	_ = unix.Fchmod(f.fd, mode) // An error does no harm: only s6-log uses this bit, and the file may belong to another user.
}

// systemErrorText returns the system error in err, such as "no space left on device", without paths and operations. If err
// contains no system error, it returns the whole text of err.
func systemErrorText(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	return err.Error()
}
