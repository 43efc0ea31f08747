package foreign

import (
	"os"
	"path/filepath"
	"testing"

	"hinit/internal/fsutil"
)

// A service must not get the logger of another service, although its directory gets the other's name between the two openings.
func TestAServiceDoesNotGetTheLoggerOfAnother(t *testing.T) {
	base := t.TempDir()
	open := func(path string) *Directory {
		dir, err := fsutil.OpenNoLink(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = dir.Close() })
		info, err := dir.Lstat("")
		if err != nil {
			t.Fatal(err)
		}
		return &Directory{Path: path, dir: dir, ID: fsutil.IDOf(info)}
	}
	for _, name := range []string{"a/log", "b/log"} {
		if err := os.MkdirAll(filepath.Join(base, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	service := open(base + "/a")
	if err := service.checkLogger(open(base + "/a/log")); err != nil {
		t.Errorf("its own logger: %v", err)
	}
	if err := service.checkLogger(open(base + "/b/log")); err == nil {
		t.Error("it got the logger of another service")
	}
}
