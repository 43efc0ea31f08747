package kanban

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
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

	"hinit/internal/pause"
	"hinit/internal/wholefile"
)

const sqliteHeader = "SQLite format 3\x00"

// checkFile returns an error if the board's file isn't a sound database. It does not change the file. A missing or empty file is
// accepted: it is a new board.
func (s *Store) checkFile(ctx context.Context) error {
	path := s.paths.DB
	f, err := wholefile.Open(path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot open board %s: %w", path, err)
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, 32))
	if err != nil {
		return fmt.Errorf("cannot read board %s: %w", path, err)
	}
	if len(head) == 0 {
		return nil // A new board has an empty file.
	}
	if !bytes.HasPrefix(head, []byte(sqliteHeader)) {
		return &CorruptError{Path: path, Reason: "file is not a database; it begins with " + hex.EncodeToString(head) + explainTLSDamage(head)}
	}
	if s.opt.SkipCheck {
		return nil
	}
	reason, err := s.checkIntegrity(ctx, path)
	if err != nil {
		return fmt.Errorf("cannot check board %s: %w", path, err)
	}
	if reason == "" {
		return nil
	}
	bad := &CorruptError{Path: path, Reason: "corrupt DB: " + reason}
	if bad.Backup, err = copyCorrupt(path); err != nil {
		bad.Reason += fmt.Sprintf("; cannot copy it aside: %v", err)
	}
	return bad
}

// explainTLSDamage returns an explanation if the file begins with a TLS record, otherwise "". Such a file was damaged by a
// program that mixed up its descriptors and wrote data of an encrypted connection into the database.
func explainTLSDamage(head []byte) string {
	for _, at := range []int{0, 5} {
		if len(head) >= at+3 && head[at] >= 0x14 && head[at] <= 0x17 && head[at+1] == 3 && head[at+2] <= 4 {
			return fmt.Sprintf(" (a TLS record header at offset %d: another descriptor was written over the file)", at)
		}
	}
	return ""
}

// checkIntegrity runs SQLite's integrity_check on a database file and returns a description of the fault, or "". It opens the
// file read-only. Otherwise SQLite could copy the write-ahead log into the damaged file when it closes it.
func (s *Store) checkIntegrity(ctx context.Context, path string) (string, error) {
	db, err := openDatabase(path, "ro", s.opt.BusyTimeout)
	if err != nil {
		return "", err
	}
	defer db.Close()
	lines, err := queryAll[string](ctx, db, "PRAGMA integrity_check")
	switch {
	case isCorrupt(err): // Any other error, such as EACCES, doesn't mean that the file is damaged.
		return err.Error(), nil
	case err != nil, slices.Equal(lines, []string{"ok"}):
		return "", err
	}
	return truncate(strings.Join(lines, "; "), failureErrorMaxChars), nil
}

// maxCorruptCopies limits the copies of damaged files beside a board. A program that keeps writing to a damaged board changes
// its content each time, so that each check would make another copy and fill the volume.
const maxCorruptCopies = 4

// copyCorrupt saves a copy of a damaged database file, its write-ahead log and the index of the log, and returns the path of the
// copy. The copy's name contains a hash of the file's content, so repeated attempts to open the board make only one copy.
func copyCorrupt(path string) (string, error) {
	sum, err := hashFile(path)
	if err != nil {
		return "", err
	}
	backup := fmt.Sprintf("%s.corrupt.%s.bak", path, sum)
	if copies, _ := filepath.Glob(path + ".corrupt.*.bak"); len(copies) >= maxCorruptCopies && !slices.Contains(copies, backup) {
		return "", fmt.Errorf("there are %d copies already; remove those that you don't need", len(copies))
	}
	if err := copyFile(path, backup); err != nil {
		return "", err
	}
	for _, companion := range walSuffixes {
		if err := copyFile(path+companion, backup+companion); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return backup, err
		}
	}
	return backup, nil
}

func hashFile(path string) (string, error) {
	f, err := wholefile.Open(path, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// copyFile copies a file. If the destination exists already, copyFile keeps it.
func copyFile(from, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return nil
	}
	in, err := wholefile.Open(from, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	return wholefile.Replace(to, 0o600, false, in.WriteTo)
}

// shortFileTimeout is how long a database file may be shorter than its header says before it is reported as damaged. A process
// that copies pages from the write-ahead log writes the header first, so the file is short for a moment.
const shortFileTimeout = 2 * time.Second

// checkLength returns an error if pages are missing at the end of the file. Pages may still be in the write-ahead log,
// because a process died during a checkpoint or found the disk full. So checkLength first lets SQLite copy them into the
// file. If SQLite can't do that now, checkLength returns no error.
func (s *Store) checkLength(ctx context.Context, q querier) error {
	if s.lengthError() == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, shortFileTimeout)
	defer cancel()
	for {
		log, err := queryFirst[struct{ Busy, Pages, Copied int }](ctx, q, "PRAGMA wal_checkpoint(PASSIVE)")
		if err != nil || log.Busy != 0 || log.Copied != log.Pages {
			return nil
		}
		if err := s.lengthError(); err == nil || !pause.For(ctx, 20*time.Millisecond) {
			return err
		}
	}
}

func (s *Store) lengthError() error {
	var header [100]byte
	if n, err := s.lengthFile.ReadAt(header[:], 0); n < len(header) {
		if errors.Is(err, io.EOF) && n == 0 {
			return nil // All pages are still in the write-ahead log.
		}
		return fmt.Errorf("cannot read header of board %s: %w", s.lengthFile.Name(), err)
	}
	st, err := s.lengthFile.Stat()
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
	return fmt.Errorf("cannot trust board %s: torn-extend detected: page count mismatch: the header says %d pages, the file has %d bytes; "+
		"stop its writers and check the disk", s.lengthFile.Name(), pages, st.Size())
}
