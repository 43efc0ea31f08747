package logrotate

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
)

// openArchive opens an archive, in whichever form it is there.
func (r *reader) openArchive(name string) (f *os.File, compressed bool, err error) {
	for i, form := range forms(name) {
		f, err = r.open(form)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, i > 0, err
		}
	}
	return nil, false, err
}

// is reports whether the archive of that name is the file with that identity, or was made of it.
func (r *reader) is(name string, id identity) bool {
	f, compressed, err := r.openArchive(name)
	if err != nil {
		return false
	}
	defer f.Close()
	if !compressed {
		own, err := identify(f)
		return err == nil && own.dev == id.dev && own.ino == id.ino
	}
	z, err := gzip.NewReader(f)
	return err == nil && bytes.Equal(z.Extra, id.extra())
}

// errTooLarge is about a compressed archive that hinit can't have written.
var errTooLarge = errors.New("decompressed it is larger than a log of hinit; remove it")

// errFound ends unzip before the end.
var errFound = errors.New("found")

// unzip calls take with what is in the compressed archive f, piece by piece.
func (r *reader) unzip(ctx context.Context, f *os.File, take func(b []byte) error) error {
	z, err := gzip.NewReader(f)
	for left := r.o.MaxArchive; err == nil; {
		if err := ctx.Err(); err != nil {
			return err
		}
		var n int
		n, err = z.Read(r.buf)
		if left -= int64(n); left < 0 {
			return errTooLarge
		}
		if taken := take(r.buf[:n]); taken != nil {
			return taken
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// unpack is whole for a compressed archive.
func (r *reader) unpack(ctx context.Context, f *os.File, skip int64) error {
	at := r.at
	defer func() { r.at = at }()
	r.carry = r.carry[:0]
	err := r.unzip(ctx, f, func(b []byte) error {
		pass := min(skip, int64(len(b)))
		skip -= pass
		return r.take(b[pass:])
	})
	if err != nil {
		r.carry = r.carry[:0] // half a line
		return err
	}
	return r.rest()
}

// lastPacked is lastLines for a compressed archive, which is read twice: a list of where its lines begin would have no bounds.
func (r *reader) lastPacked(ctx context.Context, f *os.File, n int) (offset int64, missing int, err error) {
	lines, within := 0, false
	err = r.unzip(ctx, f, func(b []byte) error {
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
	err = r.unzip(ctx, f, func(b []byte) error {
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
