package reader

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"hinit/internal/fsutil"
	"hinit/logrotate/archive"
	"hinit/logrotate/packer"
)

// errTooLarge means that the content of a compressed archive is too large to come from hinit.
var errTooLarge = errors.New("decompressed it is larger than a log of hinit; remove it")

// errFound makes decompress stop early, when its callback returns this error.
var errFound = errors.New("found")

// unpacker reads compressed archives.
type unpacker struct {
	most int64  // maximum decompressed size; a larger archive is an error
	buf  []byte // holds one piece of decompressed data
}

// decompress decompresses the archive f, drops as many bytes at the beginning of its content as skip says, and passes the rest in
// pieces to the function take. It stops if take returns an error or ctx ends.
func (r *unpacker) decompress(ctx context.Context, f *os.File, skip int64, take func(b []byte) error) error {
	z, err := gzip.NewReader(f)
	for left := r.most; err == nil; {
		if err := ctx.Err(); err != nil {
			return err
		}
		var n int
		n, err = z.Read(r.buf)
		if left -= int64(n); left < 0 {
			return errTooLarge
		}
		pass := min(skip, int64(n))
		skip -= pass
		if taken := take(r.buf[pass:n]); taken != nil {
			return taken
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// lastLines finds the last n lines in the compressed archive f. It returns the offset at which they begin in the decompressed
// data. If f has fewer than n lines, the result missing is the difference. It decompresses f twice, because a list of all line
// offsets would need unlimited memory.
func (r *unpacker) lastLines(ctx context.Context, f *os.File, n int) (offset int64, missing int, err error) {
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
	if err != nil || lines <= n {
		return 0, max(n-lines, 0), err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, 0, err
	}
	skip := lines - n
	err = r.decompress(ctx, f, 0, func(b []byte) error {
		for skip > 0 {
			i := bytes.IndexByte(b, '\n')
			if i < 0 {
				offset += int64(len(b))
				return nil
			}
			offset += int64(i) + 1
			b = b[i+1:]
			skip--
		}
		return errFound
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	return offset, 0, err
}

// isCompressedFormOf reports whether f is the compressed form of the given file. It compares the gzip header, see
// [packer.Origin].
func isCompressedFormOf(f *os.File, file os.FileInfo) bool {
	z, err := gzip.NewReader(f)
	return err == nil && bytes.Equal(z.Extra, packer.Origin(file))
}

// open opens the regular file base in the log directory d. It doesn't block on a named pipe.
func open(d archive.Dir, base string) (f *os.File, err error) {
	err = d.Do(func(parent *fsutil.Dir, name string) error {
		f, err = parent.Open(filepath.Join(name, base))
		return err
	})
	return f, err
}

// openArchive opens the archive called name, without the [archive.Packed] suffix, in whichever form exists. The result packed
// tells whether the opened file is compressed.
func openArchive(d archive.Dir, name string) (f *os.File, packed bool, err error) {
	for i, form := range archive.Forms(name) {
		f, err = open(d, form)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, i > 0, err
		}
	}
	return nil, false, err
}
