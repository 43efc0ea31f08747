package timetable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/internal/fsutil"
)

func TestLastRunsAreRemembered(t *testing.T) {
	l := LastRuns{Home: t.TempDir(), Actor: fsutil.Self()}
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
