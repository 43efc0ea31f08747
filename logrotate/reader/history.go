package reader

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"hinit/internal/fsutil"
	"hinit/logrotate/archive"
	"hinit/logrotate/packer"
)

// emitHistory emits the existing lines that the options select. When it returns, r is at the end of the current file.
func (r *reader) emitHistory(ctx context.Context) error {
	archives, err := r.openCurrent()
	if err != nil {
		if r.options.Follow && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if len(archives) > 0 {
		r.newestEmitted = archives[len(archives)-1]
	}
	if !r.options.Since.IsZero() {
		r.sinceTimestamp = r.options.Since.Local().AppendFormat(nil, archive.TimestampLayout)
	}
	first, skip, err := r.findStart(ctx, archives)
	if err != nil {
		return err
	}
	for _, name := range archives[first:] {
		if err := r.emitArchive(ctx, name, skip); err != nil {
			return err
		}
		skip, r.skipLines = 0, 0
	}
	if r.file == nil {
		return nil
	}
	r.offset = skip
	if err := r.emitToEnd(ctx); err != nil || r.options.Follow {
		return err
	}
	return r.emitUnfinished()
}

// unreadError returns one error that names all archives that could not be read, or nil.
func (r *reader) unreadError() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(r.unreadableArchives)) {
		errs = append(errs, fmt.Errorf("%s: %w", name, r.unreadableArchives[name]))
	}
	return errors.Join(errs...)
}

// recordUnreadable records that an archive can't be read because of err. It returns false if the archive isn't at fault: err is
// nil, ctx has ended, or emit has returned the error.
func (r *reader) recordUnreadable(ctx context.Context, name string, err error) bool {
	if err == nil || ctx.Err() != nil || r.emitErr != nil {
		return false
	}
	r.unreadableArchives[name] = err
	return true
}

// reportBroken reports an archive that can't be read.
func (r *reader) reportBroken(name string) error {
	return r.reportMissing(fmt.Sprintf("%s cannot be read: %v", name, r.unreadableArchives[name]))
}

// reportMissing reports missing lines, through Options.OnMissing or else by a line in their place. The argument why is the
// reason.
func (r *reader) reportMissing(why string) error {
	if r.options.OnMissing != nil {
		r.emitErr = r.options.OnMissing(why)
	} else {
		r.emitErr = r.emit([]byte("[hinit] lines are missing here: " + why))
	}
	return r.emitErr
}

// findStart finds where the requested lines begin: in the archive with the index first, or in the current file if first is
// len(archives). The lines begin at the offset skip. In a compressed archive they begin after r.skipLines lines, which findStart
// sets.
func (r *reader) findStart(ctx context.Context, archives []string) (first int, skip int64, err error) {
	all := r.options.LastLines < 0
	if all {
		switch {
		case r.options.Previous:
			return 0, 0, nil
		case r.options.Since.IsZero():
			return len(archives), 0, nil
		}
		// the name of an archive is the time of its rotation, so it has no later lines
		for first = len(archives); first > 0; first-- {
			if t, ok := archive.RotationTime(archives[first-1]); !ok || t.Before(r.options.Since) {
				break
			}
		}
		return first, 0, nil
	}
	need := r.options.LastLines
	if r.file != nil {
		if skip, need, err = r.lastLinesOf(ctx, r.file, need); err != nil {
			return 0, 0, err
		}
	}
	for first = len(archives); need > 0 && first > 0; first-- {
		f, packed, err := openArchive(r.dir, archives[first-1])
		if errors.Is(err, fs.ErrNotExist) {
			break // The archive was pruned meanwhile, and with it all older archives.
		}
		if err == nil {
			before := need
			if packed {
				skip = 0
				r.skipLines, need, err = r.lastLinesOfPacked(ctx, f, need)
			} else {
				skip, need, err = r.lastLinesOf(ctx, f, need)
			}
			f.Close()
			if err != nil {
				skip, r.skipLines, need = 0, 0, before
			}
		}
		if err != nil && !r.recordUnreadable(ctx, archives[first-1], err) {
			return 0, 0, err
		}
	}
	return first, skip, nil
}

// lastLinesOf returns the offset at which the last n lines of the uncompressed file f begin. If f has fewer lines, missing
// says how many are missing. It reads at most as many bytes as n lines of hinit can have. If f is emptied meanwhile, it
// starts again.
func (r *reader) lastLinesOf(ctx context.Context, f *os.File, n int) (offset int64, missing int, err error) {
	for {
		end, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return 0, 0, err
		}
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		from, most := int64(0), int64(r.options.MaxLine)
		if int64(n) < end/most {
			from = max(0, end-(int64(n)+1)*most)
		}
		offset, missing, err := lastLines(io.NewSectionReader(f, from, end-from), end-from, n, r.buf)
		if from > 0 && missing > 0 { // The file has lines longer than any that hinit writes, so emit all that was read.
			missing = 0
		}
		if !errors.Is(err, io.EOF) {
			return from + offset, missing, err
		}
	}
}

// lastLines returns the offset at which the last n lines before the offset end begin. An unfinished line counts. If there are
// fewer lines, missing says how many are missing. buf is the buffer for reading.
func lastLines(f io.ReaderAt, end int64, n int, buf []byte) (offset int64, missing int, err error) {
	stop, newlines := end-1, n // A newline at the very end belongs to the last line.
	if n <= 0 {
		stop, newlines = end, 1 // n is 0, so skip every complete line.
	}
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
			newlines--
			if newlines == 0 {
				return begin + int64(i) + 1, 0, nil
			}
			b = b[:i]
		}
		stop = begin
	}
	if end > 0 {
		newlines-- // Count the line before the first newline.
	}
	return 0, min(newlines, max(n, 0)), nil
}

// openCurrent opens the current file as r.file, and returns the archives that are older. The caller closes the old r.file. If a
// rotation adds an archive later, advance finds it.
func (r *reader) openCurrent() ([]string, error) {
	f, err := open(r.dir, archive.CurrentFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	archives, err := r.dir.Names()
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, err
	}
	archives = archive.TrimPacked(archives)
	r.file, r.offset, r.unfinished = f, 0, r.unfinished[:0]
	if f == nil {
		return archives, nil
	}
	return r.olderThanOpenFile(archives)
}

// olderThanOpenFile returns only the archives that are older than r.file. If the log was rotated after openCurrent had opened the
// file, and before it had listed the archives, r.file is itself an archive by now.
func (r *reader) olderThanOpenFile(archives []string) ([]string, error) {
	opened, err := r.file.Stat()
	if err != nil {
		return nil, err
	}
	for i := len(archives) - 1; i >= 0 && archives[i] > r.newestEmitted; i-- {
		if r.isArchiveOf(archives[i], opened) {
			return archives[:i], nil
		}
	}
	return archives, nil
}

// isArchiveOf reports whether the archive is the given file itself or its compressed form.
func (r *reader) isArchiveOf(name string, file os.FileInfo) bool {
	f, packed, err := openArchive(r.dir, name)
	if err != nil {
		return false
	}
	defer f.Close()
	if packed {
		return isCompressedFormOf(f, file)
	}
	own, err := f.Stat()
	return err == nil && os.SameFile(own, file)
}

// errTooLarge means that an archive decompresses to more than hinit ever writes into one file. It may be a decompression bomb.
var errTooLarge = errors.New("decompressed it is larger than a log of hinit; remove it")

// decompress decompresses the archive f, and passes its content without the first skip bytes to take, piece by piece. It
// stops at the first error of take, when ctx ends, or after MaxArchive bytes.
func (r *reader) decompress(ctx context.Context, f *os.File, skip int64, take func(b []byte) error) error {
	z, err := gzip.NewReader(f)
	for left := r.options.MaxArchive; err == nil; {
		if err := ctx.Err(); err != nil {
			return err
		}
		var n int
		n, err = z.Read(r.buf)
		left -= int64(n)
		if left < 0 {
			return errTooLarge
		}
		pass := min(skip, int64(n))
		skip -= pass
		if takeErr := take(r.buf[pass:n]); takeErr != nil {
			return takeErr
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// lastLinesOfPacked returns in skip how many lines of the compressed archive f come before its last n. If f has fewer lines,
// missing says how many are missing. The caller decompresses f again to emit the lines, because a list of all line offsets
// could need any amount of memory.
func (r *reader) lastLinesOfPacked(ctx context.Context, f *os.File, n int) (skip, missing int, err error) {
	lines, within := 0, false
	err = r.decompress(ctx, f, 0, func(b []byte) error {
		lines += bytes.Count(b, []byte{'\n'})
		if len(b) > 0 {
			within = b[len(b)-1] != '\n'
		}
		return nil
	})
	if within {
		lines++
	}
	return max(lines-n, 0), max(n-lines, 0), err
}

// dropLines removes from b the lines that r.skipLines says must still be skipped, and counts r.skipLines down.
func (r *reader) dropLines(b []byte) []byte {
	for ; r.skipLines > 0; r.skipLines-- {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return nil
		}
		b = b[i+1:]
	}
	return b
}

// isCompressedFormOf reports whether f was compressed from the given file, by the field [packer.OriginField] and the time in the
// gzip header. The inode number alone says too little: after the original was removed, a new file often gets the same number.
func isCompressedFormOf(f *os.File, file os.FileInfo) bool {
	z, err := gzip.NewReader(f)
	return err == nil && bytes.Equal(z.Extra, packer.OriginField(file)) && z.ModTime.Unix() == file.ModTime().Unix()
}

// open opens the regular file base in the log directory d. A named pipe there makes it fail instead of block.
func open(d archive.Dir, base string) (f *os.File, err error) {
	err = d.WithParent(func(parent *fsutil.Dir, name string) error {
		f, err = parent.Open(filepath.Join(name, base))
		return err
	})
	return f, err
}

// openArchive opens an archive, compressed or not, whichever exists. name has no suffix [archive.PackedSuffix]. packed tells that
// the opened file is compressed.
func openArchive(d archive.Dir, name string) (f *os.File, packed bool, err error) {
	for i, form := range archive.FileNames(name) {
		f, err = open(d, form)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, i > 0, err
		}
	}
	return nil, false, err
}
