package profiles

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// TestARenamedDirectoryKeepsTheWatchOfItsNewName asks for the watch of the new name between the event of the parent and the event
// of the directory itself.
func TestARenamedDirectoryKeepsTheWatchOfItsNewName(t *testing.T) {
	t.Parallel()
	h, err := newDirWatches()
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	dir := t.TempDir()
	novel, story := filepath.Join(dir, "novel"), filepath.Join(dir, "story")
	if err := os.Mkdir(novel, 0o755); err != nil {
		t.Fatal(err)
	}
	watch := func(path string) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.add(path, stampOf(info)); err != nil {
			t.Fatal(err)
		}
	}
	next := func() fsnotify.Event {
		t.Helper()
		select {
		case ev := <-h.changes():
			return ev
		case <-time.After(time.Minute):
			t.Fatal("there is no notification")
		}
		panic("unreachable")
	}
	watch(dir)
	watch(novel)
	if err := os.Rename(novel, story); err != nil {
		t.Fatal(err)
	}
	if ev := next(); ev.Name != novel || !h.handleGone(ev) { // the next ones are held back until the test takes them
		t.Fatalf("got %v", ev)
	}
	watch(story)
	file := filepath.Join(story, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for ev := next(); ev.Name != file; ev = next() {
		h.handleGone(ev)
	}
}
