package logrotate

import (
	"os"
	"path/filepath"
	"testing"

	"hinit/internal/testkit"
	"hinit/logrotate/archive"
)

// TestTheLogOfARemovedProfileIsNotWrittenAgain checks that a late retry does not recreate a removed
// profile's log, or write to another profile's log.
func TestTheLogOfARemovedProfileIsNotWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "logs", archive.CurrentFile)
	// A file takes the place of the directory, so that writing fails.
	if err := os.WriteFile(filepath.Dir(path), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := newSet(Options{})
	l := s.Open("coder", "coder", path)
	out, errs := openPipes(t, l)
	writeText(t, out, "one\n")
	testkit.Until(t, "the line waits", func() bool { return l.Stats().Lines == 1 })
	closeAll(out, errs)
	s.Drop("coder")
	f := l.file
	testkit.Until(t, "the file is released", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.idleWriters) == 1
	})
	if err := os.Remove(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.fault, f.keptLines = os.ErrPermission, []byte("one\n") // The timer fires before the call of leave, so it runs now.
	f.mu.Unlock()
	f.onRetryTimer()
	if _, err := os.Stat(path); err == nil || f.fd >= 0 {
		t.Errorf("it is open as %d, %v", f.fd, err)
	}
	f.dropKeptLines()
	closeSet(t, s)
}
