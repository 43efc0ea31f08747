package logrotate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ReadOptions say which lines [Read] gives.
type ReadOptions struct {
	// Dir is the directory of [Current] and its archives.
	Dir string
	// N is the number of last lines of the history to give; -1 gives all. Those that are missing in current are taken from
	// the archives.
	N int
	// Since leaves out what is older. Archives are used as far as it reaches back.
	Since time.Time
	// Previous gives the archives too when N is -1 and Since isn't set.
	Previous bool
	// Follow goes on with the lines that come, until ctx ends.
	Follow bool
}

// Read calls emit with the history that o asks for, oldest line first, and then, with Follow, with every line that is
// written afterwards: across rotations, without a gap or a duplicate. A line comes with its timestamp and without its
// newline, and is valid until emit returns. An error of emit ends Read and is returned.
//
// Without Follow, a directory that doesn't exist is an error that wraps fs.ErrNotExist, a missing current isn't; with Follow,
// Read waits for both, finds them again when they are replaced, and begins anew in a file that was truncated. An end by ctx
// is no error. Lines can only be missing when archives are pruned faster than emit takes their lines.
//
// Read blocks. It opens files as the process itself, for reading, without following a link as the last component. Any number
// may run at once, in any process.
func Read(ctx context.Context, o ReadOptions, emit func(line []byte) error) error {
	r := &reader{o: o, emit: emit, buf: make([]byte, readSize)}
	defer r.close()
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

type reader struct {
	o       ReadOptions
	emit    func(line []byte) error
	emitErr error
	buf     []byte

	file  *os.File // the file that is followed, nil when there is none
	at    int64    // offset behind the last line that was given
	carry []byte   // what is behind it and has no newline yet
	known string   // newest archive whose lines are given or left out
	since []byte   // lines before this text are left out, until one isn't; nil: no more
}

func (r *reader) close() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

func (r *reader) run(ctx context.Context) error {
	var hint *watch
	if r.o.Follow {
		hint = newWatch(r.o.Dir) // before the first look, so that nothing can happen unseen between
		defer hint.close()
	}
	if err := r.history(ctx); err != nil || !r.o.Follow {
		return err
	}
	r.since = nil // what comes is new
	for {
		if err := r.catchUp(ctx); err != nil {
			return err
		}
		if err := hint.wait(ctx); err != nil {
			return err
		}
	}
}

// history gives the lines that exist, and leaves r at the end of the current file.
func (r *reader) history(ctx context.Context) error {
	archives, err := r.find()
	if err != nil {
		if r.o.Follow && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if len(archives) > 0 {
		r.known = archives[len(archives)-1]
	}
	if !r.o.Since.IsZero() {
		r.since = r.o.Since.Local().AppendFormat(nil, stampLayout)
	}
	first, skip, err := r.start(archives)
	if err != nil {
		return err
	}
	for _, name := range archives[first:] {
		if err := r.whole(ctx, name, skip); err != nil {
			return err
		}
		skip = 0
	}
	if r.file == nil {
		return nil
	}
	r.at = skip
	if err := r.drain(ctx); err != nil || r.o.Follow {
		return err
	}
	return r.rest()
}

// start finds where the history that was asked for begins: the index of its first archive, len(archives) meaning current,
// and the offset there.
func (r *reader) start(archives []string) (first int, skip int64, err error) {
	all := r.o.N < 0
	if all {
		switch {
		case r.o.Previous:
			return 0, 0, nil
		case r.o.Since.IsZero():
			return len(archives), 0, nil
		}
		// An archive is named by when its last line was written, or later.
		for first = len(archives); first > 0; first-- {
			if t, ok := archiveTime(archives[first-1], Current); !ok || t.Before(r.o.Since.Truncate(time.Millisecond)) {
				break
			}
		}
		return first, 0, nil
	}
	need := r.o.N
	if r.file != nil {
		if skip, need, err = lastOf(r.file, need, r.buf); err != nil {
			return 0, 0, err
		}
	}
	for first = len(archives); need > 0 && first > 0; first-- {
		f, err := openRegular(filepath.Join(r.o.Dir, archives[first-1]))
		if errors.Is(err, fs.ErrNotExist) {
			break // pruned, and all older ones too
		}
		if err != nil {
			return 0, 0, err
		}
		skip, need, err = lastOf(f, need, r.buf)
		f.Close()
		if err != nil {
			return 0, 0, err
		}
	}
	return first, skip, nil
}

// lastOf is lastLines of all of f, which may become shorter meanwhile.
func lastOf(f *os.File, n int, buf []byte) (offset int64, missing int, err error) {
	for {
		end, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return 0, 0, err
		}
		offset, missing, err := lastLines(f, end, n, buf)
		if !errors.Is(err, io.EOF) {
			return offset, missing, err
		}
	}
}

// lastLines returns the offset at which the last n lines of f's first end bytes begin, and how many of the n are missing.
// Bytes behind the last newline count as a line.
func lastLines(f io.ReaderAt, end int64, n int, buf []byte) (offset int64, missing int, err error) {
	if n <= 0 {
		// Only what has no newline yet is still to come.
		offset, missing, err = lastLines(f, end, 1, buf)
		if err != nil || missing > 0 || end == 0 {
			return end, 0, err
		}
		if _, err := f.ReadAt(buf[:1], end-1); err != nil {
			return 0, 0, err
		}
		if buf[0] == '\n' {
			offset = end
		}
		return offset, 0, nil
	}
	stop := end - 1 // a newline at the very end ends the last line, it doesn't begin one
	for stop > 0 {
		begin := max(0, stop-int64(len(buf)))
		b := buf[:stop-begin]
		if _, err := f.ReadAt(b, begin); err != nil {
			return 0, 0, err
		}
		for {
			i := bytes.LastIndexByte(b, '\n')
			if i < 0 {
				break
			}
			if n--; n == 0 {
				return begin + int64(i) + 1, 0, nil
			}
			b = b[:i]
		}
		stop = begin
	}
	if end > 0 {
		n--
	}
	return 0, n, nil
}

// find opens the current file as r.file and returns the archives before it. It doesn't close the file that was there. The order matters: an archive that isn't in the list was
// made after the file was opened, so it is that file or a later one, and following leads there.
func (r *reader) find() ([]string, error) {
	f, err := openRegular(filepath.Join(r.o.Dir, Current))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	archives, err := archiveNames(r.o.Dir, Current)
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, err
	}
	r.file, r.at, r.carry = f, 0, r.carry[:0]
	if f == nil {
		return archives, nil
	}
	return r.before(archives)
}

// before cuts off the list what is the opened file itself, or came later.
func (r *reader) before(archives []string) ([]string, error) {
	opened, err := r.file.Stat()
	if err != nil {
		return nil, err
	}
	for i := len(archives) - 1; i >= 0 && archives[i] > r.known; i-- {
		st, err := os.Lstat(filepath.Join(r.o.Dir, archives[i]))
		if err == nil && os.SameFile(st, opened) {
			return archives[:i], nil
		}
	}
	return archives, nil
}

// catchUp gives all lines that exist now.
func (r *reader) catchUp(ctx context.Context) error {
	for {
		moved := true
		if r.file != nil {
			var err error
			if moved, err = r.moved(); err != nil {
				return err
			}
			// After the question: what was written before the file was moved is read now, and nothing is written after.
			if err := r.drain(ctx); err != nil {
				return err
			}
		}
		if !moved {
			return nil
		}
		again, err := r.advance(ctx)
		if err != nil || !again {
			return err
		}
	}
}

// moved reports whether another file now has the name of the one that is read.
func (r *reader) moved() (bool, error) {
	opened, err := r.file.Stat()
	if err != nil {
		return false, err
	}
	st, err := os.Lstat(filepath.Join(r.o.Dir, Current))
	if err != nil {
		// Between two files of a rotation, or removed: somebody may still be writing to the one we have.
		return false, nil
	}
	return st.Mode().IsRegular() && !os.SameFile(st, opened), nil
}

// advance goes on from the file that was read to its end, if there was one, to the next current file, by way of the archives
// between them. It reports whether there is one.
func (r *reader) advance(ctx context.Context) (bool, error) {
	old := r.file
	var read fs.FileInfo
	if old != nil {
		var err error
		if read, err = old.Stat(); err != nil {
			return false, err
		}
		if err := r.rest(); err != nil {
			return false, err
		}
	}
	archives, err := r.find()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // the whole directory is gone; the old file stays open, in case it comes back
	}
	if err != nil {
		return false, err
	}
	if old != nil {
		defer old.Close() // not sooner: its inode number must not be used again while it is looked for
	}
	// Those that were known before are older than the old file, and so are those up to itself. When it isn't among them it
	// was removed or pruned.
	var next []string
	for _, name := range archives {
		if name <= r.known {
			continue
		}
		next = append(next, name)
		if st, err := os.Lstat(filepath.Join(r.o.Dir, name)); err == nil && read != nil && os.SameFile(st, read) {
			next = next[:0]
		}
	}
	if len(archives) > 0 {
		r.known = max(r.known, archives[len(archives)-1])
	}
	for _, name := range next {
		if err := r.whole(ctx, name, 0); err != nil {
			return false, err
		}
	}
	return r.file != nil, nil
}

// whole gives the lines of an archive from offset skip on. One that is gone has none.
func (r *reader) whole(ctx context.Context, name string, skip int64) error {
	f, err := openRegular(filepath.Join(r.o.Dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	current := r.file
	defer func() {
		f.Close()
		r.file, r.at = current, 0
	}()
	r.file, r.at, r.carry = f, skip, r.carry[:0]
	if err := r.drain(ctx); err != nil {
		return err
	}
	return r.rest()
}

// drain gives the lines of the file from r.at to its end. What has no newline yet waits in carry.
func (r *reader) drain(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.file.ReadAt(r.buf, r.at+int64(len(r.carry)))
		if n == 0 {
			if !errors.Is(err, io.EOF) {
				return err
			}
			if emptied, err := r.shrunk(); err != nil || !emptied {
				return err
			}
			continue
		}
		for b := r.buf[:n]; len(b) > 0; {
			i := bytes.IndexByte(b, '\n')
			if i < 0 {
				r.carry = append(r.carry, b...)
				break
			}
			line := b[:i]
			if len(r.carry) > 0 {
				r.carry = append(r.carry, line...)
				line = r.carry
			}
			r.at += int64(len(line)) + 1
			if err := r.give(line); err != nil {
				return err
			}
			r.carry = r.carry[:0]
			b = b[i+1:]
		}
	}
}

// shrunk notices that the file is shorter than what was read of it: the writer took back half a line, or somebody emptied
// the file, which then begins anew. It reports the latter.
func (r *reader) shrunk() (emptied bool, err error) {
	st, err := r.file.Stat()
	if err != nil {
		return false, err
	}
	if st.Size() < r.at+int64(len(r.carry)) {
		r.carry = r.carry[:0]
		if emptied = st.Size() < r.at; emptied {
			r.at = 0
		}
	}
	return emptied, nil
}

// rest gives a last line that has no newline.
func (r *reader) rest() error {
	if len(r.carry) == 0 {
		return nil
	}
	r.at += int64(len(r.carry))
	err := r.give(r.carry)
	r.carry = r.carry[:0]
	return err
}

func (r *reader) give(line []byte) error {
	if r.since != nil {
		// Timestamps are in local time, so their text sorts as they do.
		if len(line) < stampLen || bytes.Compare(line[:len(r.since)], r.since) < 0 {
			return nil
		}
		r.since = nil
	}
	r.emitErr = r.emit(line)
	return r.emitErr
}

// openRegular opens a regular file for reading; it neither follows a link there nor waits for a FIFO.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
