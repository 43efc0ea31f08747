package timetable

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

func TestLastRunsAreRemembered(t *testing.T) {
	l := LastRuns{Home: t.TempDir(), Actor: fsutil.ProcessActor()}
	if last, err := l.Load(); len(last) > 0 || err != nil {
		t.Errorf("before the first: %v, %v", last, err)
	}
	at := time.Now().Round(time.Second).UTC()
	if err := l.Save(map[string]time.Time{"backup": at}); err != nil {
		t.Fatal(err)
	}
	if last, err := l.Load(); err != nil || !last["backup"].Equal(at) {
		t.Errorf("after it: %v, %v", last, err)
	}
	if err := os.WriteFile(filepath.Join(l.Home, scheduleFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Load(); err == nil || !strings.Contains(err.Error(), "delete "+scheduleFile) {
		t.Errorf("of a broken file it says %v", err)
	}
}

// TestWhateverIsInThePlaceOfTheLastRunsHoldsNothingUp checks that reading the file of last runs returns soon and reads
// no other file. The agent may put a FIFO, a link to root's file, a directory or very many names there.
func TestWhateverIsInThePlaceOfTheLastRunsHoldsNothingUp(t *testing.T) {
	names := make([]string, 60_000)
	for i := range names {
		names[i] = `"` + strconv.Itoa(i) + `":"0001-01-01T00:00:00Z"`
	}
	for kind, put := range map[string]func(path string) error{
		"FIFO":      func(path string) error { return unix.Mkfifo(path, 0o666) },
		"link":      func(path string) error { return os.Symlink("/etc/passwd", path) },
		"directory": func(path string) error { return os.Mkdir(path, 0o755) },
		"text":      func(path string) error { return os.WriteFile(path, []byte(`{"last":{"backup":"soon"}}`), 0o644) },
		"crowd": func(path string) error {
			return os.WriteFile(path, []byte(`{"last":{`+strings.Join(names, ",")+"}}"), 0o644)
		},
	} {
		l := LastRuns{Home: t.TempDir(), Actor: fsutil.ProcessActor()}
		if err := put(filepath.Join(l.Home, scheduleFile)); err != nil {
			t.Fatal(err)
		}
		if last, err := l.Load(); err == nil || len(last) > 0 || strings.Contains(err.Error(), "root:") {
			t.Errorf("%s: %d last runs, %v", kind, len(last), err)
		}
		err := l.Save(map[string]time.Time{"backup": time.Unix(1e9, 0)})
		regular := kind == "text" || kind == "crowd"
		if last, _ := l.Load(); (err == nil) != regular || regular && len(last) != 1 {
			t.Errorf("%s: after the next run it says %v: %v", kind, last, err)
		}
		if info, err := os.Lstat("/etc/passwd"); err != nil || info.ModTime().After(time.Now().Add(-time.Second)) {
			t.Errorf("%s: root's file was written: %v", kind, err)
		}
	}
}
