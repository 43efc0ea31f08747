package kanban

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
)

const magic = "SQLite format 3\x00"

// check refuses a file that isn't a sound database, and leaves it as it is.
func (s *Store) check(ctx context.Context) error {
	path := s.paths.DB
	f, err := openRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot open board %s: %w", path, err)
	}
	defer f.Close()
	head := make([]byte, 32)
	n, err := io.ReadFull(f, head)
	head = head[:n]
	if n == 0 && errors.Is(err, io.EOF) {
		return nil // empty: a new board
	}
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("cannot read board %s: %w", path, err)
	}
	if !bytes.HasPrefix(head, []byte(magic)) {
		return &CorruptError{Path: path, Reason: "file is not a database; it begins with " + hex.EncodeToString(head) + tlsNote(head)}
	}
	if s.opt.Trust {
		return nil
	}
	reason, err := s.integrity(ctx, path)
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

// tlsNote recognises what a descriptor mix-up leaves in a database: a record of an encrypted connection.
func tlsNote(head []byte) string {
	for _, at := range []int{0, 5} {
		if len(head) >= at+3 && head[at] >= 0x14 && head[at] <= 0x17 && head[at+1] == 3 && head[at+2] <= 4 {
			return fmt.Sprintf(" (a TLS record header at offset %d: another descriptor was written over the file)", at)
		}
	}
	return ""
}

// integrity says what is wrong with a file, or nothing. It opens the file read-only, so that closing it can't fold a write-ahead
// log into a damaged file.
func (s *Store) integrity(ctx context.Context, path string) (string, error) {
	db, err := connect(path, "ro", s.opt.BusyTimeout)
	if err != nil {
		return "", err
	}
	defer db.Close()
	lines, err := read[string](ctx, db, "PRAGMA integrity_check")
	switch {
	case corrupt(err): // a file that can't be read now is not damaged
		return err.Error(), nil
	case err != nil, slices.Equal(lines, []string{"ok"}):
		return "", err
	}
	return clip(strings.Join(lines, "; "), failureErrorMaxChars), nil
}

// copyCorrupt copies a damaged file and its companions, named by their content, so that many attempts make one copy.
func copyCorrupt(path string) (string, error) {
	sum, err := hashFile(path)
	if err != nil {
		return "", err
	}
	backup := fmt.Sprintf("%s.corrupt.%s.bak", path, sum)
	if err := copyFile(path, backup); err != nil {
		return "", err
	}
	for _, companion := range companions {
		if err := copyFile(path+companion, backup+companion); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return backup, err
		}
	}
	return backup, nil
}

func hashFile(path string) (string, error) {
	f, err := openRegular(path)
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

// copyFile copies a file. A copy that is there stays.
func copyFile(from, to string) error {
	if _, err := os.Lstat(to); err == nil {
		return nil
	}
	in, err := openRegular(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return replace(to, in, 0o600)
}
