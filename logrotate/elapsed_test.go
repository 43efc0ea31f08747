package logrotate

import (
	"os"
	"path/filepath"
	"testing"

	"hinit/internal/testkit"
	"hinit/logrotate/archive"
)

// A profile was removed while its log could not be written. The last try at the file came after that, made the log's directory again and wrote with
// a writer that another profile's log had by then.
func TestTheLogOfARemovedProfileIsNotWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "logs", archive.Current)
	if err := os.WriteFile(filepath.Dir(path), nil, 0o644); err != nil { // in the way
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
	f.fault, f.kept = os.ErrPermission, []byte("one\n") // the timer comes before leave
	f.mu.Unlock()
	f.onRetryTimer()
	if _, err := os.Stat(path); err == nil || f.fd >= 0 {
		t.Errorf("it is open as %d, %v", f.fd, err)
	}
	f.freeKept()
	closeSet(t, s)
}
