package watch

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"hinit/internal/fsutil"
)

// A renamed directory must be watched under its new name. The watch is requested between the event of the parent and the event
// of the directory itself, and the second event must not remove it.
func TestARenamedDirectoryKeepsTheWatchOfItsNewName(t *testing.T) {
	t.Parallel()
	var h Set
	if err := h.Open(); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
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
		if err := h.Add(path, fsutil.IDOf(info)); err != nil {
			t.Fatal(err)
		}
	}
	next := func() Event {
		t.Helper()
		select {
		case ev := <-h.Events:
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
	if ev := next(); ev.Name != novel || !h.IsDir(ev) { // the test receives the next events only after this
		t.Fatalf("got %v", ev)
	}
	watch(story)
	file := filepath.Join(story, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for ev := next(); ev.Name != file; ev = next() {
		h.IsDir(ev)
	}
}

// An overflow must be reported when more changes happen than the kernel's queue holds before the first event is read.
func TestAFloodOfChangesIsReportedAsLost(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Skip(err)
	}
	room, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || room > 100_000 {
		t.Skipf("the queue of this machine holds %s events", text)
	}
	var s Set
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	dir := t.TempDir()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Add(dir, fsutil.IDOf(info)); err != nil {
		t.Fatal(err)
	}
	names := [2]string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}
	if err := os.WriteFile(names[0], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range room { // each rename makes two events
		if err := os.Rename(names[i%2], names[(i+1)%2]); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.After(time.Minute)
	for {
		select {
		case <-s.Events:
		case <-s.Lost:
			return
		case <-deadline:
			t.Fatal("no overflow is reported")
		}
	}
}

// PID 1 must pause between reads of changes. An agent that writes to two files in turn would otherwise make PID 1 use twice the
// agent's own processor time.
func TestAFloodOfChangesTakesNoProcessor(t *testing.T) {
	t.Parallel()
	var h Set
	if err := h.Open(); err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	dir := t.TempDir()
	if err := h.AddPath(dir); err != nil {
		t.Fatal(err)
	}
	const changes = 3000
	for i := range changes { // no goroutine reads the events, so they stay in the kernel's queue
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i%2)), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	for range changes {
		<-h.Events
	}
	if took := time.Since(began); took < 200*time.Millisecond { // a slow machine takes longer in any case
		t.Errorf("%d changes were read within %v", changes, took)
	}
}
