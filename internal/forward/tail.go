package forward

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/redact"
	"hinit/logrotate"
	"hinit/logrotate/archive"
)

const (
	headSize = 256       // bytes at the begin of a file by which it is known again
	longLine = 1 << 20   // a longer one comes in pieces
	tailSize = 256 << 10 // bytes that are read of one log before others have their turn
)

// position is what has been sent of a log: so many bytes of a file, uncompressed, that begins in a certain way.
type position struct {
	Offset int64     `json:"offset"`
	Length int       `json:"length"` // of what Head is the hash of
	Head   string    `json:"head"`
	At     time.Time `json:"at"` // of the last line
}

// tail reads one log from a position on.
type tail struct {
	dir     string
	service string
	profile string
	mask    *redact.Masker // nil: secrets stay

	done position // what has been sent
	here position // what has been read

	file   *os.File
	lines  *bufio.Reader
	offset int64  // of the lines that were taken from it
	head   []byte // how it begins, as far as it was read
	ended  bool   // it was at its end after it had been rotated
	inPart []byte // of a line whose end is not written yet
}

func (t *tail) close() {
	if t.file != nil {
		_ = t.file.Close()
	}
	t.file, t.lines, t.offset, t.head, t.inPart, t.ended = nil, nil, 0, nil, nil, false
}

// rewind forgets what was read and not sent.
func (t *tail) rewind() {
	if t.here != t.done {
		t.here = t.done
		t.close()
	}
}

// read returns some of the lines that have not been read yet, none when there are none, and a number that is not 0 when lines are
// missing before them.
func (t *tail) read() (records []Record, gap bool, err error) {
	if t.file == nil {
		if gap, err = t.find(); err != nil || t.file == nil {
			return nil, gap, err
		}
	}
	for size := 0; size < tailSize; {
		part, err := t.lines.ReadSlice('\n')
		t.keepHead(part)
		t.inPart = append(t.inPart, part...)
		size += len(part)
		switch {
		case err == nil, errors.Is(err, bufio.ErrBufferFull) && len(t.inPart) >= longLine:
			records = append(records, t.take())
			continue
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case !errors.Is(err, io.EOF):
			return records, gap, err
		}
		next, again, err := t.next()
		switch {
		case err != nil:
			return records, gap, err
		case next != "":
			if len(t.inPart) > 0 { // nobody will write its end
				records = append(records, t.take())
			}
			t.close()
			if err := t.open(next, position{}); err != nil {
				return records, gap, err
			}
		case !again:
			return records, gap, nil
		}
	}
	return records, gap, nil
}

// keepHead remembers how the file begins.
func (t *tail) keepHead(part []byte) {
	if at := int(t.offset) + len(t.inPart); at == len(t.head) && at < headSize {
		t.head = append(t.head, part[:min(len(part), headSize-at)]...)
	}
}

// known is how the file begins, as a position that is nowhere in it.
func (t *tail) known(most int64) position {
	head := t.head[:min(int64(len(t.head)), most)]
	sum := sha256.Sum256(head)
	return position{Length: len(head), Head: hex.EncodeToString(sum[:])}
}

// take makes a record of the line that was read.
func (t *tail) take() Record {
	t.offset += int64(len(t.inPart))
	at := t.here.At
	t.here = t.known(t.offset)
	t.here.Offset = t.offset
	line := t.inPart
	if t.mask != nil {
		line = t.mask.Hide(line, nil)
	}
	line = bytes.TrimSuffix(line, []byte{'\n'})
	written, text, dated := logrotate.Split(line)
	if dated {
		at = written
	}
	t.here.At = at
	r := Record{Time: at, Service: t.service, Profile: t.profile, Kind: KindLog, Text: strings.ToValidUTF8(string(text), "\uFFFD")}
	t.inPart = t.inPart[:0]
	return r
}

// next decides what follows the end of the file: another file, more of the same, or nothing yet.
func (t *tail) next() (path string, again bool, err error) {
	info, err := t.file.Stat()
	if err != nil {
		return "", false, err
	}
	current := filepath.Join(t.dir, logrotate.Current)
	now, err := os.Lstat(current)
	switch {
	case err == nil && os.SameFile(info, now) && info.Size() < t.offset:
		return current, false, nil // somebody has truncated it
	case err == nil && os.SameFile(info, now):
		return "", false, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", false, err
	case !t.ended: // it was rotated; more may have been written just before
		t.ended = true
		return "", true, nil
	}
	names, err := t.candidates()
	if err != nil {
		return "", false, err
	}
	for i, name := range names {
		if t.is(name, info) {
			if i+1 < len(names) {
				return names[i+1], false, nil
			}
			return "", false, nil // the next one is not there yet
		}
	}
	for _, name := range names { // it has been removed
		if younger(name, t.here.At) {
			return name, false, nil
		}
	}
	return "", false, nil
}

// candidates are all files of the log, oldest first.
func (t *tail) candidates() ([]string, error) {
	names, err := archive.Paths(t.dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	if current := filepath.Join(t.dir, logrotate.Current); exists(current) {
		names = append(names, current)
	}
	return names, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// is says whether a name is that of the file that is read, compressed or not.
func (t *tail) is(name string, info fs.FileInfo) bool {
	if other, err := os.Lstat(name); err == nil && os.SameFile(info, other) {
		return true
	}
	return t.begins(name, t.known(headSize))
}

// begins says whether a file begins as a position says.
func (t *tail) begins(name string, p position) bool {
	var other tail
	other.dir = t.dir
	defer other.close()
	return p.Length > 0 && other.open(name, p) == nil
}

// find opens the file of the position. A file that is gone leaves a gap.
func (t *tail) find() (gap bool, err error) {
	names, err := t.candidates()
	if err != nil || len(names) == 0 {
		return false, err
	}
	p := t.here
	if p.Length == 0 {
		return false, t.open(names[0], position{})
	}
	for _, name := range slices.Backward(names) { // most often it is the newest
		if err := t.open(name, p); err == nil {
			return false, nil
		} else if !errors.Is(err, errOther) && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	for _, name := range names {
		if younger(name, p.At) {
			return true, t.open(name, position{})
		}
	}
	return true, nil
}

// younger says whether a file has lines that came after a time: an archive is named after its last one.
func younger(name string, at time.Time) bool {
	info, err := os.Lstat(name)
	return filepath.Base(name) == logrotate.Current || err == nil && info.ModTime().After(at)
}

// errOther: the file is not that of the position.
var errOther = errors.New("another file")

// open opens a file of the log and goes to a position in it.
func (t *tail) open(path string, p position) error {
	f, err := openLog(path)
	if err != nil {
		return err
	}
	var in io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		if in, err = gzip.NewReader(f); err != nil {
			_ = f.Close()
			return fmt.Errorf("cannot read %q: %w", path, err)
		}
	}
	head := make([]byte, p.Length)
	if _, err = io.ReadFull(in, head); err == nil && p.Length > 0 {
		if sum := sha256.Sum256(head); hex.EncodeToString(sum[:]) != p.Head {
			err = errOther
		}
	}
	if err == nil && p.Offset > int64(p.Length) {
		err = t.skip(f, in, p)
	}
	if err != nil {
		_ = f.Close()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errOther
		}
		return err
	}
	t.file, t.offset, t.head, t.ended = f, p.Offset, head, false
	t.lines = bufio.NewReaderSize(in, 64<<10)
	return nil
}

// skip goes to a position, whose head was read.
func (t *tail) skip(f *os.File, in io.Reader, p position) error {
	if in != io.Reader(f) {
		_, err := io.CopyN(io.Discard, in, p.Offset-int64(p.Length))
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < p.Offset {
		err = errOther
	}
	if err == nil {
		_, err = f.Seek(p.Offset, io.SeekStart)
	}
	return err
}

// openLog opens a regular file, and follows no link. Root opens files of root alone: others could lead it to any file.
func openLog(path string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOFOLLOW}
	if os.Geteuid() == 0 {
		how.Resolve = unix.RESOLVE_NO_SYMLINKS
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
	if errors.Is(err, unix.ENOSYS) && os.Geteuid() != 0 {
		fd, err = unix.Open(path, int(how.Flags), 0)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = fmt.Errorf("cannot read %q: it is no file", path)
	case os.Geteuid() == 0 && st.Uid != 0:
		err = fmt.Errorf("cannot read %q as root: it is the file of user %d; run hinit forward as that user", path, st.Uid)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}
