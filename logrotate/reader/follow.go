// Package reader reads the logs that package logrotate writes: history, from archives too, and what is written from then on. It is for clients;
// PID 1 does not link it.
//
// While [Read] follows there are two goroutines for all followers of the process. They share one instance of inotify and end with the last
// follower.
package reader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"hinit/internal/fsutil"
	"hinit/logrotate/archive"
	"hinit/logrotate/gzipped"
)

// Options say which lines [Read] gives.
type Options struct {
	// Dir is the directory of [archive.Current] and its archives. Neither it nor what is in it may be a link.
	Dir string
	// N is the number of last lines of the history to give, from the archives too; -1 gives all.
	N int
	// Since leaves out what is older. Archives are used as far as it reaches back.
	Since time.Time
	// Previous gives the archives too when N is -1 and Since isn't set.
	Previous bool
	// Follow goes on with the lines that come, until ctx ends.
	Follow bool
	// Caught is called when the history has been given, before the lines that come. It may be nil. An error of it is one of emit.
	Caught func() error
	// Missing is called where lines are missing: an archive cannot be read, or files were removed before they could be read. It takes
	// the place of the line that says so. Its error is one of emit. It may be nil.
	Missing func(why string) error
	// MaxLine is the longest line that the log can have; longer ones come in pieces. 0 is a megabyte.
	MaxLine int
	// MaxArchive is how many bytes of an archive are read, decompressed. 0 is 256 MB.
	MaxArchive int64
}

const (
	defaultMaxLine = 1 << 20
	readSize       = 64 << 10 // how much is read at once
)

// Read calls emit with the history that o asks for, oldest line first. With Follow it then emits every line that is written
// afterwards, across rotations, without a gap or a duplicate. A line comes with its timestamp and without its newline, and is
// valid until emit returns. An error of emit ends Read and is returned.
//
// Without Follow, a missing directory is an error that wraps fs.ErrNotExist. With Follow, Read waits for the directory. It finds
// file and directory again when they are replaced, and begins anew in a truncated file. An end by ctx is no error. Lines are
// missing only when archives are pruned faster than emit takes their lines, or can't be read. A line without a timestamp stands
// in their place, and without Follow an error comes at the end.
//
// It needs memory for a line and reads no more than it must, except that the compressed archive in which the lines begin is read
// whole. Read blocks. It opens everything with the permissions of as, which the caller must name. Root shows the files of a log
// directory with the agent's permissions, because the agent can put links there. No link beneath the parent of Dir is followed:
// the error wraps [fsutil.ErrSymlink]. Any number may run at once, in any process.
func Read(ctx context.Context, as *fsutil.Actor, o Options, emit func(line []byte) error) error {
	if o.MaxLine == 0 {
		o.MaxLine = defaultMaxLine
	}
	if o.MaxArchive == 0 {
		o.MaxArchive = gzipped.Most
	}
	r := &reader{o: o, emit: emit, buf: make([]byte, readSize), broken: make(map[string]error)}
	r.dir = archive.Dir{Path: o.Dir, Actor: as}
	r.packed = unpacker{most: o.MaxArchive, buf: r.buf}
	defer func() { r.file.Close() }() // where there is one
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

// Exists reports whether as sees anything at the path of a log directory, of whatever kind.
func Exists(as *fsutil.Actor, dir string) bool {
	return archive.Dir{Path: dir, Actor: as}.Do(func(parent *fsutil.Dir, name string) error { return parent.Has(name) }) == nil
}

type reader struct {
	o       Options
	emit    func(line []byte) error
	emitErr error
	buf     []byte
	dir     archive.Dir
	packed  unpacker

	file  *os.File // the file that is followed, nil when there is none
	at    int64    // offset behind the last line that was given
	carry []byte   // what is behind it and has no newline yet
	known string   // newest archive whose lines are given or left out
	since []byte   // lines before this text are left out, until one isn't; nil: no more

	broken map[string]error // archives that cannot be read
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
	if r.o.Caught != nil {
		if r.emitErr = r.o.Caught(); r.emitErr != nil {
			return r.emitErr
		}
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
	f, err := r.dir.Open(archive.Current)
	if err != nil {
		// Between two files of a rotation, or removed: somebody may still be writing to the one we have.
		return false, nil
	}
	defer f.Close()
	now, err := f.Stat()
	return err == nil && !os.SameFile(now, opened), nil
}

// advance goes on from the end of the file that was read to the next current file, by way of the archives between them. It reports
// whether there is one.
func (r *reader) advance(ctx context.Context) (bool, error) {
	old := r.file
	var read os.FileInfo
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
	found := old == nil || slices.Contains(archives, r.known) // the oldest ones go first: nothing behind this one is gone
	for _, name := range archives {
		if name <= r.known {
			continue
		}
		next = append(next, name)
		if old != nil && r.is(name, read) {
			next, found = next[:0], true
		}
	}
	if len(archives) > 0 {
		r.known = max(r.known, archives[len(archives)-1])
	}
	if !found && len(next) > 0 && r.o.Missing != nil {
		if r.emitErr = r.o.Missing("files were removed before they could be read"); r.emitErr != nil {
			return false, r.emitErr
		}
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
	f, packed, err := r.dir.OpenArchive(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		defer f.Close()
		err = r.archived(ctx, f, packed, skip)
	}
	if r.unreadable(ctx, name, err) {
		return r.tellBroken(name)
	}
	return err
}

// archived gives the lines of the archive f, from offset skip on.
func (r *reader) archived(ctx context.Context, f *os.File, packed bool, skip int64) (err error) {
	file, at := r.file, r.at
	defer func() { r.file, r.at, r.carry = file, at, r.carry[:0] }()
	r.carry = r.carry[:0]
	if packed {
		err = r.packed.each(ctx, f, skip, r.take)
	} else {
		r.file, r.at = f, skip
		err = r.drain(ctx)
	}
	if err != nil {
		return err // what is in carry is half a line
	}
	return r.rest()
}

// drain gives the lines of the file from r.at to its end. A line without a newline yet waits in carry.
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

// shrunk notices that the file is shorter than what was read: the writer took back half a line, or somebody emptied the file. It
// reports the latter.
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
		if len(line) < archive.StampLen || bytes.Compare(line[:len(r.since)], r.since) < 0 {
			return nil
		}
		r.since = nil
	}
	r.emitErr = r.emit(line)
	return r.emitErr
}

// Split takes a line of a log file apart, as [Read] gives it: when it was read from the service, and what the service wrote.
// The time has no zone in the file, and is taken as local. A line that doesn't begin with a time is all message.
func Split(line []byte) (written time.Time, message []byte, ok bool) {
	if len(line) < archive.StampLen || line[archive.StampLen-2] != ' ' || line[archive.StampLen-1] != ' ' {
		return time.Time{}, line, false
	}
	written, err := time.ParseInLocation(archive.StampLayout, string(line[:archive.StampLen-2]), time.Local)
	if err != nil {
		return time.Time{}, line, false
	}
	return written, line[archive.StampLen:], true
}
