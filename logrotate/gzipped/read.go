package gzipped

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
)

// errTooLarge is about a compressed archive that hinit can't have written.
var errTooLarge = errors.New("decompressed it is larger than a log of hinit; remove it")

// errFound ends a Reader before the end.
var errFound = errors.New("found")

// Reader reads compressed archives.
type Reader struct {
	Most int64  // so many bytes of an archive are read, decompressed; one that has more is an error
	Buf  []byte // for its pieces
}

// Each calls take with what is in the compressed archive f behind the first skip bytes, piece by piece. Between two pieces it ends
// with ctx.
func (r *Reader) Each(ctx context.Context, f *os.File, skip int64, take func(b []byte) error) error {
	z, err := gzip.NewReader(f)
	for left := r.Most; err == nil; {
		if err := ctx.Err(); err != nil {
			return err
		}
		var n int
		n, err = z.Read(r.Buf)
		if left -= int64(n); left < 0 {
			return errTooLarge
		}
		pass := min(skip, int64(n))
		skip -= pass
		if taken := take(r.Buf[pass:n]); taken != nil {
			return taken
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Last returns the offset at which the last n lines of the compressed archive f begin, and how many of the n are missing. It reads
// the archive twice: a list of where its lines begin would have no bounds.
func (r *Reader) Last(ctx context.Context, f *os.File, n int) (offset int64, missing int, err error) {
	lines, within := 0, false
	err = r.Each(ctx, f, 0, func(b []byte) error {
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
	err = r.Each(ctx, f, 0, func(b []byte) error {
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

// MadeOf reports whether the compressed archive f was made of a file.
func MadeOf(f *os.File, file os.FileInfo) bool {
	z, err := gzip.NewReader(f)
	return err == nil && bytes.Equal(z.Extra, origin(file))
}
