package kanban

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"hinit/internal/pause"
)

// TornError says that a file is shorter than its header says, after a commit that reported success.
type TornError struct {
	Path         string
	Pages, Bytes int64
}

func (e *TornError) Error() string {
	return fmt.Sprintf("cannot trust board %s: torn-extend detected: page count mismatch: the header says %d pages, the file has %d bytes; "+
		"stop its writers and check the disk", e.Path, e.Pages, e.Bytes)
}

// tornWait is how long a file may be shorter than its header says. A checkpoint writes the header before the pages that make the
// file longer, and the log may begin anew between two looks.
const tornWait = 2 * time.Second

// checkLength compares the header's page count with the size of the file. Pages that the file lacks and the log has are no loss.
// A process that dies in a checkpoint, or finds the disk full, leaves them there, and the next checkpoint writes them.
func (s *Store) checkLength(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tornWait)
	defer cancel()
	for {
		if err := s.torn(); err == nil || !pause.For(ctx, 20*time.Millisecond) {
			return err
		}
	}
}

func (s *Store) torn() error {
	var header [100]byte
	if n, err := s.raw.ReadAt(header[:], 0); n < len(header) {
		if errors.Is(err, io.EOF) && n == 0 {
			return nil // everything is in the log still
		}
		return fmt.Errorf("cannot read header of board %s: %w", s.raw.Name(), err)
	}
	st, err := s.raw.Stat()
	if err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint16(header[16:]))
	if size == 1 {
		size = 65536
	}
	pages := int64(binary.BigEndian.Uint32(header[28:]))
	if size == 0 || st.Size() >= pages*size {
		return nil
	}
	if inLog(s.raw.Name()+"-wal", size, st.Size()/size+1, pages) {
		return nil
	}
	return &TornError{s.raw.Name(), pages, st.Size()}
}

// inLog says whether a write-ahead log has every page from first to last. The format is SQLite's: a header of 32 bytes, then
// frames of a header of 24 bytes and a page. Only frames with the salt of the header count.
func inLog(path string, size, first, last int64) bool {
	f, err := openRegular(path)
	if err != nil {
		return false
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || last-first >= st.Size()/size { // the header says what somebody wrote there
		return false
	}
	var head [32]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return false
	}
	missing := make(map[int64]bool, last-first+1)
	for page := first; page <= last; page++ {
		missing[page] = true
	}
	var frame [24]byte
	for at := int64(len(head)); len(missing) > 0; at += int64(len(frame)) + size {
		if _, err := f.ReadAt(frame[:], at); err != nil || string(frame[8:16]) != string(head[16:24]) {
			return false
		}
		delete(missing, int64(binary.BigEndian.Uint32(frame[:])))
	}
	return true
}
