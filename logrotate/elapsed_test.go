package logrotate

import (
	"os"
	"path/filepath"
	"testing"

	"hinit/internal/testkit"
	"hinit/logrotate/archive"
)

// A removed profile's log must not be written any more. If the log could not be written before, the retry timer may
// fire after the removal. It must not create the log's directory again, nor write through a writer that by then belongs
// to another profile's log.
func TestTheLogOfARemovedProfileIsNotWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "logs", archive.Current)
	// A file takes the place of the directory, so that writing fails.
	if err := os.WriteFile(filepath.Dir(path), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := newSet(Options{})
	l := s.Open("coder", "coder", path)
	out, errs := pipes(t, l)
	put(t, out, "one\n")
	testkit.Until(t, "the line waits", func() bool { return l.Stats().Lines == 1 })
	closeAll(out, errs)
	s.Drop("coder")
	f := l.file
	testkit.Until(t, "the file is released", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.unused) == 1
	})
	if err := os.Remove(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.fault, f.keptLines = os.ErrPermission, []byte("one\n") // the timer has fired before leave was called, so it runs now
	f.mu.Unlock()
	f.onRetryTimer()
	if _, err := os.Stat(path); err == nil || f.fd >= 0 {
		t.Errorf("it is open as %d, %v", f.fd, err)
	}
	f.freeKept()
	closeSet(t, s)
}
