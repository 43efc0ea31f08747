package logrotate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"hinit/internal/fsutil"
)

// ReadOptions say which lines [Read] gives.
type ReadOptions struct {
	// Dir is the directory of [Current] and its archives. Neither it nor what is in it may be a link.
	Dir string
	// Actor is whose permissions count; nil is the process itself.
	Actor *fsutil.Actor
	// N is the number of last lines of the history to give; -1 gives all. Those that are missing in current are taken from
	// the archives.
	N int
	// Since leaves out what is older. Archives are used as far as it reaches back.
	Since time.Time
	// Previous gives the archives too when N is -1 and Since isn't set.
	Previous bool
	// Follow goes on with the lines that come, until ctx ends.
	Follow bool
	// MaxLine is the longest line that the log can have; what is longer comes in pieces of this size or a little more. 0 is a
	// megabyte.
	MaxLine int
	// MaxArchive is how many bytes an archive can have that hinit has written; of one that has more when it is decompressed the
	// rest is not read. 0 is 256 MB.
	MaxArchive int64
}

const (
	defaultMaxLine    = 1 << 20
	defaultMaxArchive = 256 << 20
)

// Read calls emit with the history that o asks for, oldest line first, and then, with Follow, with every line that is
// written afterwards: across rotations, without a gap or a duplicate. A line comes with its timestamp and without its
// newline, and is valid until emit returns. An error of emit ends Read and is returned.
//
// Without Follow, a directory that doesn't exist is an error that wraps fs.ErrNotExist, a missing current isn't; with Follow,
// Read waits for both, finds them again when they are replaced, and begins anew in a file that was truncated. An end by ctx
// is no error. Lines can only be missing when archives are pruned faster than emit takes their lines, and those of an archive
// that cannot be read: a line without a timestamp stands in their place and names it. Without Follow, Read returns an error
// about it at the end.
//
// It needs memory for a line, however large the files are, and reads no more of them than the lines that were asked for can
// have, but for the compressed archive in which they begin, which is read whole.
//
// Read blocks. It opens files for reading, beneath the directory that Dir lies in, and follows no link there: the error wraps
// [fsutil.ErrSymlink]. Any number may run at once, in any process.
func Read(ctx context.Context, o ReadOptions, emit func(line []byte) error) error {
	if o.MaxLine == 0 {
		o.MaxLine = defaultMaxLine
	}
	if o.MaxArchive == 0 {
		o.MaxArchive = defaultMaxArchive
	}
	r := &reader{o: o, emit: emit, buf: make([]byte, readSize), broken: make(map[string]error)}
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

	broken map[string]error // archives that cannot be read
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
		hint = newWatch(r.o.Dir, &watches, pollEvery) // before the first look, so that nothing can happen unseen between
		defer hint.close()
	}
	if err := r.history(ctx); err != nil || !r.o.Follow {
		return errors.Join(err, r.unread())
	}
	clear(r.broken)
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
	first, skip, err := r.start(ctx, archives)
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

// unread is the error about archives that cannot be read.
func (r *reader) unread() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(r.broken)) {
		errs = append(errs, fmt.Errorf("%s: %w", name, r.broken[name]))
	}
	return errors.Join(errs...)
}

// unreadable takes note that an archive cannot be read, or not to its end, unless it is for another reason that reading has failed.
func (r *reader) unreadable(ctx context.Context, name string, err error) bool {
	if err == nil || ctx.Err() != nil || r.emitErr != nil {
		return false
	}
	r.broken[name] = err
	return true
}

// tellBroken gives the line that stands in the place of what cannot be read.
func (r *reader) tellBroken(name string) error {
	r.emitErr = r.emit(fmt.Appendf(nil, "[hinit] lines are missing here: %s cannot be read: %v", name, r.broken[name]))
	return r.emitErr
}

// start finds where the history that was asked for begins: the index of its first archive, len(archives) meaning current,
// and the offset there.
func (r *reader) start(ctx context.Context, archives []string) (first int, skip int64, err error) {
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
			if t, ok := archiveTime(archives[first-1]); !ok || t.Before(r.o.Since) {
				break
			}
		}
		return first, 0, nil
	}
	need := r.o.N
	if r.file != nil {
		if skip, need, err = r.lastOf(ctx, r.file, need); err != nil {
			return 0, 0, err
		}
	}
	for first = len(archives); need > 0 && first > 0; first-- {
		f, compressed, err := r.openArchive(archives[first-1])
		if errors.Is(err, fs.ErrNotExist) {
			break // pruned, and all older ones too
		}
		if err == nil {
			before := need
			if compressed {
				skip, need, err = r.lastPacked(ctx, f, need)
			} else {
				skip, need, err = r.lastOf(ctx, f, need)
			}
			f.Close()
			if err != nil {
				skip, need = 0, before
			}
		}
		if err != nil && !r.unreadable(ctx, archives[first-1], err) {
			return 0, 0, err
		}
	}
	return first, skip, nil
}

// lastOf is lastLines of all of f, which may become shorter meanwhile, or of as much of it as so many lines can have.
func (r *reader) lastOf(ctx context.Context, f *os.File, n int) (offset int64, missing int, err error) {
	for {
		end, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return 0, 0, err
		}
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		from, most := int64(0), int64(r.o.MaxLine)
		if int64(n) < end/most {
			from = max(0, end-(int64(n)+1)*most)
		}
		offset, missing, err := lastLines(io.NewSectionReader(f, from, end-from), end-from, n, r.buf)
		if from > 0 && missing > 0 { // no lines of hinit's
			missing = 0
		}
		if !errors.Is(err, io.EOF) {
			return from + offset, missing, err
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
	f, err := r.open(Current)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	archives, err := r.archives()
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, err
	}
	archives = plain(archives)
	r.file, r.at, r.carry = f, 0, r.carry[:0]
	if f == nil {
		return archives, nil
	}
	return r.before(archives)
}

// before cuts off the list what is the opened file itself, or came later.
func (r *reader) before(archives []string) ([]string, error) {
	opened, err := identify(r.file)
	if err != nil {
		return nil, err
	}
	for i := len(archives) - 1; i >= 0 && archives[i] > r.known; i-- {
		if r.is(archives[i], opened) {
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
	opened, err := identify(r.file)
	if err != nil {
		return false, err
	}
	f, err := r.open(Current)
	if err != nil {
		// Between two files of a rotation, or removed: somebody may still be writing to the one we have.
		return false, nil
	}
	defer f.Close()
	now, err := identify(f)
	return err == nil && (now.dev != opened.dev || now.ino != opened.ino), nil
}

// advance goes on from the file that was read to its end, if there was one, to the next current file, by way of the archives
// between them. It reports whether there is one.
func (r *reader) advance(ctx context.Context) (bool, error) {
	old := r.file
	var read identity
	if old != nil {
		var err error
		if read, err = identify(old); err != nil {
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
		if old != nil && r.is(name, read) {
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
	if r.broken[name] != nil {
		return r.tellBroken(name)
	}
	f, compressed, err := r.openArchive(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		if !r.unreadable(ctx, name, err) {
			return err
		}
		return r.tellBroken(name)
	}
	if compressed {
		defer f.Close()
		if err := r.unpack(ctx, f, skip); !r.unreadable(ctx, name, err) {
			return err
		}
		return r.tellBroken(name)
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
		if err := r.take(r.buf[:n]); err != nil {
			return err
		}
	}
}

// take gives the lines of b, which continues what is in carry.
func (r *reader) take(b []byte) error {
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			if r.carry = append(r.carry, b...); len(r.carry) > r.o.MaxLine {
				return r.rest() // a piece of it
			}
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
	return nil
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

// beneath runs fn with the directory that Dir lies in, and the name of Dir there. It is opened anew each time, for it may be replaced
// while the log is followed.
func (r *reader) beneath(fn func(d *fsutil.Dir, name string) error) error {
	dir, name := filepath.Split(filepath.Clean(r.o.Dir))
	if dir == "" {
		dir = "."
	}
	if name == ".." || name == "." || name == "" {
		dir, name = r.o.Dir, ""
	}
	d, err := fsutil.OpenDir(dir, r.o.Actor)
	if err != nil {
		return err
	}
	defer d.Close()
	return fn(d, name)
}

// open opens a regular file of the log; it waits for no FIFO.
func (r *reader) open(base string) (f *os.File, err error) {
	err = r.beneath(func(d *fsutil.Dir, name string) error {
		f, err = d.Open(filepath.Join(name, base))
		return err
	})
	return f, err
}

// archives returns the base names of the archives, oldest first, each once.
func (r *reader) archives() (names []string, err error) {
	err = r.beneath(func(d *fsutil.Dir, name string) error {
		entries, _, err := d.ReadSome(name, maxNames)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return err
	})
	return archivesOf(names), err
}
