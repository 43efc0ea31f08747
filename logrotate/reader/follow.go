// Package reader reads the logs that package logrotate writes: the history with its archives, and new lines as they are written.
// It is for client programs; PID 1 does not contain it.
//
// While any call of [Read] follows a log, two goroutines with one inotify instance serve all such calls of the process. They end
// when the last of these calls returns.
package reader

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/watch/shared"
	"hinit/logrotate/archive"
	"hinit/logrotate/gzipped"
)

// Options selects the lines that [Read] emits.
type Options struct {
	// Dir is the log directory: it holds [archive.CurrentFile] and the archives. Neither Dir nor a file in it may be a symbolic
	// link.
	Dir string
	// LastLines is the number of last lines to emit, counted over the current file and the archives; -1 means all.
	LastLines int
	// Since, if not zero, leaves out lines with an earlier timestamp. Read then starts in the archive that holds this time.
	Since time.Time
	// Previous matters when LastLines is -1. If it is set, Read begins with the oldest archive. If not,
	// Read begins with the current file, or at Since. With both Previous and Since, Read also finds
	// lines that were written after the clock was set back.
	Previous bool
	// Follow makes Read wait for new lines and emit them until ctx ends.
	Follow bool
	// OnCaughtUp is called once, when all existing lines are emitted and before the first new line. An error from it ends Read.
	// It may be nil.
	OnCaughtUp func() error
	// OnMissing is called in place of lines that are missing: an archive can't be read, or files were removed before Read reached
	// them. why says what happened. An error from it ends Read. If OnMissing is nil, Read emits a line "[hinit] lines are missing
	// here: why".
	OnMissing func(why string) error
	// MaxLine is the length in bytes above which Read emits a line in pieces. 0 means a megabyte.
	MaxLine int
	// MaxArchive is the decompressed size in bytes above which an archive counts as unreadable. 0 means 256 MiB.
	MaxArchive int64
}

const (
	defaultMaxLine = 1 << 20
	readSize       = 64 << 10    // Number of bytes per read.
	pollInterval   = time.Second // Maximum time between two checks of a log directory.
)

// Read calls emit for each line of the history that o selects, oldest line first. With Follow it then emits every new line,
// across rotations, without a gap or a duplicate. A line includes its timestamp but no newline, and is valid until emit returns.
// If emit returns an error, Read ends and returns it.
//
// Without Follow, a missing directory is an error that wraps fs.ErrNotExist. With Follow, Read waits for the directory. If a
// directory or file is replaced, Read continues with its replacement. It starts again at the beginning of a truncated file.
// When ctx ends, Read returns nil. Lines are missing only if archives can't be read, or are removed before Read reads them. In
// their place, Read emits a line without a timestamp (or calls OnMissing). If an archive can't be read, Read without Follow
// also returns an error at the end.
//
// Read blocks. It needs memory for one line only, and reads no more than necessary, except that it decompresses the first archive
// from its beginning. It opens all files with the identity in the parameter as, which must not be nil. Root passes the agent's
// identity, because the agent can put links into its log directories. Read doesn't follow links below the parent of Dir: the
// error wraps [fsutil.ErrSymlink]. Any number of calls may run at once, in any process.
func Read(ctx context.Context, as *fsutil.Actor, o Options, emit func(line []byte) error) error {
	o.MaxLine = cmp.Or(o.MaxLine, defaultMaxLine)
	o.MaxArchive = cmp.Or(o.MaxArchive, gzipped.DefaultMaxSize)
	r := &reader{options: o, emit: emit, buf: make([]byte, readSize), unreadableArchives: make(map[string]error)}
	r.dir = archive.Dir{Path: o.Dir, Actor: as}
	defer func() { r.file.Close() }() // r.file is nil when no file was found.
	err := r.run(ctx)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	if r.emitErr != nil {
		return r.emitErr
	}
	if err != nil {
		return fmt.Errorf("cannot read logs in %q: %w", o.Dir, err)
	}
	return nil
}

// Exists reports whether dir exists, as a directory or anything else. It is looked up with the identity as.
func Exists(as *fsutil.Actor, dir string) bool {
	return archive.Dir{Path: dir, Actor: as}.WithParent(func(parent *fsutil.Dir, name string) error { return parent.CheckExists(name) }) == nil
}

// reader is the state of one call of Read.
type reader struct {
	options Options
	emit    func(line []byte) error
	emitErr error
	buf     []byte
	dir     archive.Dir

	file           *os.File // Current file; nil if the log has none.
	offset         int64    // Offset in file after the last emitted line.
	unfinished     []byte   // Unfinished line at that offset.
	newestEmitted  string   // Newest archive that is older than the start, or whose lines are emitted.
	sinceTimestamp []byte   // Timestamp before which lines are skipped; nil after the first emitted line.

	skipLines int // Number of lines to skip at the beginning of the next compressed archive.

	unreadableArchives map[string]error // Reasons why archives can't be read, by name.
}

// run does the work of Read: the history, and with Follow the new lines.
func (r *reader) run(ctx context.Context) error {
	var hint *shared.Follower
	if r.options.Follow {
		// start to follow before the history is read, so that no later change is missed
		hint = shared.ProcessWatch.Follow(r.options.Dir, nil)
		defer hint.Close()
	}
	if err := r.emitHistory(ctx); err != nil || !r.options.Follow {
		return errors.Join(err, r.unreadError())
	}
	if r.options.OnCaughtUp != nil {
		r.emitErr = r.options.OnCaughtUp()
		if r.emitErr != nil {
			return r.emitErr
		}
	}
	clear(r.unreadableArchives)
	r.sinceTimestamp = nil // Never skip a new line.
	for {
		if err := r.catchUp(ctx); err != nil {
			return err
		}
		if _, err := hint.Wait(ctx, pollInterval); err != nil {
			return err
		}
	}
}

// catchUp emits all lines up to the present end of the log. If the log is rotated meanwhile, it continues with the new file.
func (r *reader) catchUp(ctx context.Context) error {
	for {
		moved := true
		if r.file != nil {
			var err error
			if moved, err = r.currentReplaced(); err != nil {
				return err
			}
			// A file that was renamed gets no more lines. So read the rest only after the check, and miss nothing.
			if err := r.emitToEnd(ctx); err != nil {
				return err
			}
		}
		if !moved {
			return nil
		}
		again, err := r.switchToCurrent(ctx)
		if err != nil || !again {
			return err
		}
	}
}

// currentReplaced reports whether the name "current" now leads to another file than r.file.
func (r *reader) currentReplaced() (bool, error) {
	opened, err := r.file.Stat()
	if err != nil {
		return false, err
	}
	f, err := open(r.dir, archive.CurrentFile)
	if err != nil {
		// Either a rotation is in progress, or the file was removed. The writer may still use the open file, so keep reading
		// it.
		return false, nil
	}
	defer f.Close()
	now, err := f.Stat()
	return err == nil && !os.SameFile(now, opened), nil
}

// switchToCurrent switches from the old file to the new current file. It first emits the archives between the two. The result is
// false if there is no current file.
func (r *reader) switchToCurrent(ctx context.Context) (bool, error) {
	old := r.file
	var read os.FileInfo
	if old != nil {
		var err error
		if read, err = old.Stat(); err != nil {
			return false, err
		}
		if err := r.emitUnfinished(); err != nil {
			return false, err
		}
	}
	archives, err := r.openCurrent()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // The directory is gone; the old file stays open, in case the directory comes back.
	}
	if err != nil {
		return false, err
	}
	if old != nil {
		defer old.Close() // While the old file is open, its inode number can't be reused, so the comparison below is reliable.
	}
	// Two things are already emitted: the archives up to r.newestEmitted, and the old file, which may be an archive by now.
	// If the old file is not among the archives, another process has removed it, and lines may be missing.
	var next []string
	// pruning begins with the oldest archive: if r.newestEmitted exists, all later archives exist too
	found := old == nil || slices.Contains(archives, r.newestEmitted)
	for _, name := range archives {
		if name <= r.newestEmitted {
			continue
		}
		next = append(next, name)
		if old != nil && r.isArchiveOf(name, read) {
			next = next[:0]
			found = true
		}
	}
	if len(archives) > 0 {
		r.newestEmitted = max(r.newestEmitted, archives[len(archives)-1])
	}
	if !found && len(next) > 0 {
		if err := r.reportMissing("files were removed before they could be read"); err != nil {
			return false, err
		}
	}
	for _, name := range next {
		if err := r.emitArchive(ctx, name, 0); err != nil {
			return false, err
		}
	}
	return r.file != nil, nil
}

// emitArchive emits the lines of an archive from the offset skip on. A missing archive counts as empty.
func (r *reader) emitArchive(ctx context.Context, name string, skip int64) error {
	if r.unreadableArchives[name] != nil {
		return r.reportBroken(name)
	}
	f, packed, err := openArchive(r.dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		defer f.Close()
		err = r.emitOpenArchive(ctx, f, packed, skip)
	}
	if r.recordUnreadable(ctx, name, err) {
		return r.reportBroken(name)
	}
	return err
}

// emitOpenArchive emits the lines of the archive f from the offset skip on. packed tells that f is compressed.
func (r *reader) emitOpenArchive(ctx context.Context, f *os.File, packed bool, skip int64) (err error) {
	file, at := r.file, r.offset
	defer func() { r.file, r.offset, r.unfinished = file, at, r.unfinished[:0] }()
	r.unfinished = r.unfinished[:0]
	if packed {
		err = r.decompress(ctx, f, skip, func(b []byte) error { return r.emitComplete(r.dropLines(b)) })
	} else {
		r.file, r.offset = f, skip
		err = r.emitToEnd(ctx)
	}
	if err != nil {
		return err // r.unfinished may hold half a line, so don't emit it.
	}
	return r.emitUnfinished()
}

// emitToEnd emits the lines from r.offset to the end of r.file, and leaves an unfinished line in r.unfinished.
func (r *reader) emitToEnd(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.file.ReadAt(r.buf, r.offset+int64(len(r.unfinished)))
		if n == 0 {
			if !errors.Is(err, io.EOF) {
				return err
			}
			if emptied, err := r.handleShrunk(); err != nil || !emptied {
				return err
			}
			continue
		}
		if err := r.emitComplete(r.buf[:n]); err != nil {
			return err
		}
	}
}

// emitComplete emits the complete lines of r.unfinished and b together, and leaves an unfinished line in r.unfinished.
func (r *reader) emitComplete(b []byte) error {
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			r.unfinished = append(r.unfinished, b...)
			if len(r.unfinished) > r.options.MaxLine {
				return r.emitUnfinished() // The line is too long, so emit it in pieces.
			}
			break
		}
		line := b[:i]
		if len(r.unfinished) > 0 {
			r.unfinished = append(r.unfinished, line...)
			line = r.unfinished
		}
		r.offset += int64(len(line)) + 1
		if err := r.emitLine(line); err != nil {
			return err
		}
		r.unfinished = r.unfinished[:0]
		b = b[i+1:]
	}
	return nil
}

// handleShrunk detects that the file is now shorter than the part that was read. One reason is that the writer has removed half a
// line after a failed write; then Read continues. If a process has emptied the file, the result emptied is true.
func (r *reader) handleShrunk() (emptied bool, err error) {
	st, err := r.file.Stat()
	if err != nil {
		return false, err
	}
	if st.Size() < r.offset+int64(len(r.unfinished)) {
		r.unfinished = r.unfinished[:0]
		emptied = st.Size() < r.offset
		if emptied {
			r.offset = 0
		}
	}
	return emptied, nil
}

// emitUnfinished emits the unfinished line, if there is one, as if it were complete.
func (r *reader) emitUnfinished() error {
	if len(r.unfinished) == 0 {
		return nil
	}
	r.offset += int64(len(r.unfinished))
	err := r.emitLine(r.unfinished)
	r.unfinished = r.unfinished[:0]
	return err
}

func (r *reader) emitLine(line []byte) error {
	if r.sinceTimestamp != nil {
		// Timestamps are local time as text, so comparing the bytes compares the times.
		if len(line) < archive.TimestampLen || bytes.Compare(line[:len(r.sinceTimestamp)], r.sinceTimestamp) < 0 {
			return nil
		}
		r.sinceTimestamp = nil
	}
	r.emitErr = r.emit(line)
	return r.emitErr
}

// SplitLine splits a line from [Read] into its time and the text of the service. The file has no time zone, so SplitLine assumes
// local time. If the line has no time, ok is false and message is the whole line.
func SplitLine(line []byte) (written time.Time, message []byte, ok bool) {
	if len(line) < archive.TimestampLen || line[archive.TimestampLen-2] != ' ' || line[archive.TimestampLen-1] != ' ' {
		return time.Time{}, line, false
	}
	written, err := time.ParseInLocation(archive.TimestampLayout, string(line[:archive.TimestampLen-2]), time.Local)
	if err != nil {
		return time.Time{}, line, false
	}
	return written, line[archive.TimestampLen:], true
}
