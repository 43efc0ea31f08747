package logrotate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
	"hinit/logrotate/archive"
	"hinit/logrotate/reader"
)

// stampedLine formats a log line with the given time.
func stampedLine(at time.Time, text string) string {
	return string(appendStamp(nil, at)) + text
}

// createHistory creates three archives and a current file, each with five of the lines 0 to 19, a minute
// apart.
func createHistory(t *testing.T) (dir string, first time.Time) {
	t.Helper()
	dir = t.TempDir()
	first = time.Now().Add(-time.Hour).Truncate(time.Second)
	for i := range 4 {
		var b strings.Builder
		for j := range 5 {
			b.WriteString(stampedLine(first.Add(time.Duration(i*5+j)*time.Minute), strconv.Itoa(i*5+j)) + "\n")
		}
		name := archive.NameAt(first.Add(time.Duration(i*5+4)*time.Minute + time.Second))
		if i == 3 {
			name = archive.CurrentFile
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir, first
}

func TestReadHistory(t *testing.T) {
	dir, first := createHistory(t)
	minute := func(n int) time.Time { return first.Add(time.Duration(n) * time.Minute) }
	for _, c := range []struct {
		o    reader.Options
		from int // Number of the first expected line of 20.
	}{
		{reader.Options{LastLines: -1}, 15},
		{reader.Options{LastLines: -1, Previous: true}, 0},
		{reader.Options{LastLines: 0}, 20},
		{reader.Options{LastLines: 1}, 19},
		{reader.Options{LastLines: 5}, 15},
		{reader.Options{LastLines: 6}, 14},
		{reader.Options{LastLines: 15, Previous: true}, 5},
		{reader.Options{LastLines: 19}, 1},
		{reader.Options{LastLines: 20}, 0},
		{reader.Options{LastLines: 99}, 0},
		{reader.Options{LastLines: -1, Since: minute(17)}, 17},
		{reader.Options{LastLines: -1, Since: minute(3)}, 3},
		{reader.Options{LastLines: -1, Since: minute(4).Add(500 * time.Millisecond)}, 5},
		{reader.Options{LastLines: -1, Since: minute(-9)}, 0},
		{reader.Options{LastLines: 4, Since: minute(9)}, 16},
		{reader.Options{LastLines: 12, Since: minute(9)}, 9},
		{reader.Options{LastLines: -1, Since: time.Now()}, 20},
	} {
		c.o.Dir = dir
		var got, want []string
		for i := c.from; i < 20; i++ {
			want = append(want, stampedLine(minute(i), strconv.Itoa(i)))
		}
		if err := reader.Read(t.Context(), fsutil.ProcessActor(), c.o, func(line []byte) error { got = append(got, string(line)); return nil }); err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", c.o)
		checkLines(t, got, want...)
	}
}

func TestReadLastLinesOfLargeFiles(t *testing.T) {
	dir := t.TempDir()
	var all []string
	for i := range 5000 {
		all = append(all, stampedLine(time.Now(), fmt.Sprint(i, strings.Repeat("l", i%300))))
	}
	all = append(all, "no end")
	if err := os.WriteFile(filepath.Join(dir, archive.CurrentFile), []byte(strings.Join(all, "\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 2, 1000, 5000, 5001, 5002} {
		var got []string
		if err := reader.Read(t.Context(), fsutil.ProcessActor(), reader.Options{Dir: dir, LastLines: n}, func(line []byte) error { got = append(got, string(line)); return nil }); err != nil {
			t.Fatal(err)
		}
		checkLines(t, got, all[max(0, len(all)-n):]...)
	}
}

func TestReadErrors(t *testing.T) {
	err := reader.Read(t.Context(), fsutil.ProcessActor(), reader.Options{Dir: filepath.Join(t.TempDir(), "none"), LastLines: -1}, nil)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
	if err := reader.Read(t.Context(), fsutil.ProcessActor(), reader.Options{Dir: t.TempDir(), LastLines: -1}, nil); err != nil {
		t.Errorf("empty directory: %v", err)
	}
	dir, _ := createHistory(t)
	stop := errors.New("enough")
	if err := reader.Read(t.Context(), fsutil.ProcessActor(), reader.Options{Dir: dir, LastLines: -1}, func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("emit's error: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, archive.CurrentFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, archive.CurrentFile)); err != nil {
		t.Fatal(err)
	}
	if err := reader.Read(t.Context(), fsutil.ProcessActor(), reader.Options{Dir: dir, LastLines: -1}, func([]byte) error { return nil }); err == nil {
		t.Error("a link is followed")
	}
}

// follower is a running Read, with the lines that it has emitted.
type follower struct {
	t        testing.TB
	mu       sync.Mutex
	received []string
	cancel   func()
	err      chan error
}

func startFollower(t testing.TB, o reader.Options) *follower {
	ctx, cancel := context.WithCancel(t.Context())
	f := &follower{t: t, cancel: cancel, err: make(chan error, 1)}
	o.Follow = true
	go func() {
		f.err <- reader.Read(ctx, fsutil.ProcessActor(), o, func(line []byte) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.received = append(f.received, string(line))
			return nil
		})
	}()
	return f
}

func (f *follower) lines() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.received...)
}

func (f *follower) stop() []string {
	f.t.Helper()
	f.cancel()
	if err := <-f.err; err != nil {
		f.t.Errorf("Read: %v", err)
	}
	return f.received
}

// awaitLine waits until the last returned line ends with text.
func (f *follower) awaitLine(text string) {
	f.t.Helper()
	testkit.Until(f.t, "following to "+text, func() bool {
		l := f.lines()
		return len(l) > 0 && strings.HasSuffix(l[len(l)-1], text)
	})
}

// TestFollowUnderLoad checks that several followers miss no line of a file that is rotated every
// few lines.
func TestFollowUnderLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs", "coder")
	early := startFollower(t, reader.Options{Dir: dir, LastLines: -1, Previous: true}) // The directory does not exist yet.
	s := newSet(Options{limits: Limits{MaxSize: 20_000, Archives: 10_000}})
	stdout, stderr := openPipes(t, s.Open("x", "x", filepath.Join(dir, archive.CurrentFile)))
	stderr.Close()
	const lines = 20_000
	var late []*follower
	for i := range lines {
		if i == lines/4 || i == lines/2 {
			late = append(late, startFollower(t, reader.Options{Dir: dir, LastLines: -1, Previous: true}), startFollower(t, reader.Options{Dir: dir, LastLines: 700}))
		}
		writeText(t, stdout, fmt.Sprintf("%d %s\n", i, strings.Repeat("f", i%100)))
	}
	writeText(t, stdout, "end\n")
	stdout.Close()
	closeSet(t, s)
	paths, err := archivePaths(dir)
	if err != nil || len(paths) < 50 {
		t.Fatalf("%d archives, %v", len(paths), err)
	}
	for i, f := range append([]*follower{early}, late...) {
		f.awaitLine("  end")
		got := f.stop()
		next := 0
		if i > 0 && i%2 == 0 { // These followers began with the last lines, so earlier lines are missing.
			if _, err := fmt.Sscanf(got[0][stampLen:], "%d ", &next); err != nil {
				t.Fatal(err)
			}
		}
		for _, line := range got[:len(got)-1] {
			if want := fmt.Sprintf("%d %s", next, strings.Repeat("f", next%100)); line[stampLen:] != want {
				t.Fatalf("follower %d: got %.60q, want %.60q", i, line, want)
			}
			next++
		}
		if next != lines {
			t.Errorf("follower %d: ended at %d", i, next)
		}
	}
}

func TestFollow(t *testing.T) {
	dir, _ := createHistory(t)
	path := filepath.Join(dir, archive.CurrentFile)
	add := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		writeText(t, f, text)
		f.Close()
	}
	f := startFollower(t, reader.Options{Dir: dir, LastLines: 1})
	f.awaitLine("  19")

	add("half")
	add(" a line\n")
	f.awaitLine("half a line")
	// A writer truncates half a line, and writes it again.
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	add("torn li")
	if err := os.Truncate(path, st.Size()); err != nil {
		t.Fatal(err)
	}
	add("torn line\n")
	f.awaitLine("torn line")
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	add("s\n") // The new line is shorter than the removed text.
	f.awaitLine("s")
	// The file is removed and created again. The archives are older than the emitted lines.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	add("new file\n")
	f.awaitLine("new file")
	// The file is rotated twice, with an unterminated line, before the follower reads again.
	add("cut")
	for i, text := range []string{"first\n", "second\n"} {
		if err := os.Rename(path, filepath.Join(dir, archive.NameAt(time.Now().Add(time.Duration(i)*time.Second)))); err != nil {
			t.Fatal(err)
		}
		add(text)
	}
	f.awaitLine("second")
	// Another directory replaces the removed one.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	add("new directory\n")
	f.awaitLine("new directory")
	got := f.stop()
	checkLines(t, got[1:], "half a line", "torn line", "s", "new file", "cut", "first", "second", "new directory")
}

// TestLinesThatWereRemovedBeforeAFollowerReadThemAreReported checks that a follower reports missing
// lines.
func TestLinesThatWereRemovedBeforeAFollowerReadThemAreReported(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, archive.CurrentFile)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(archive.CurrentFile, "read")
	var got []string
	err := reader.Read(t.Context(), fsutil.ProcessActor(), reader.Options{Dir: dir, LastLines: -1, Follow: true}, func(line []byte) error {
		got = append(got, string(line))
		switch string(line) {
		case "read": // Two rotations follow, and the archive of the first file is removed.
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			write(archive.NameAt(time.Now()), "kept")
			write(archive.CurrentFile, "last")
		case "last":
			return io.EOF
		}
		return nil
	})
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	checkLines(t, got, "read", "[hinit] lines are missing here: files were removed before they could be read", "kept", "last")
}

// inotifyInstances returns how many inotify instances this process has.
func inotifyInstances(t *testing.T) (n int) {
	t.Helper()
	const fds = "/proc/self/fd/"
	entries, err := os.ReadDir(fds)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(fds + e.Name()); err == nil && strings.Contains(to, "inotify") {
			n++
		}
	}
	return n
}

// TestFollowManyLogsWithOneInstanceOfInotify checks that many followers share one inotify instance,
// of which a user may have only 128.
func TestFollowManyLogsWithOneInstanceOfInotify(t *testing.T) {
	const logs = 200
	root := t.TempDir()
	paths := make([]string, logs)
	followers := make([]*follower, logs)
	say := func(text string) {
		t.Helper()
		for i, path := range paths {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
			if err != nil {
				t.Fatal(err)
			}
			writeText(t, f, stampedLine(time.Now(), fmt.Sprintf("%s of %d\n", text, i)))
			f.Close()
		}
	}
	for i := range paths {
		dir := filepath.Join(root, strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		paths[i] = filepath.Join(dir, archive.CurrentFile)
	}
	say("first")
	for i := range followers {
		followers[i] = startFollower(t, reader.Options{Dir: filepath.Dir(paths[i]), LastLines: -1})
	}
	twice := startFollower(t, reader.Options{Dir: filepath.Dir(paths[0]), LastLines: -1})
	for i, f := range followers {
		f.awaitLine(fmt.Sprintf("first of %d", i))
	}
	testkit.Until(t, "one instance of inotify", func() bool { return inotifyInstances(t) == 1 })
	say("second")
	for i, f := range append(followers, twice) {
		f.awaitLine(fmt.Sprintf("second of %d", i%logs))
		if n := len(f.lines()); n != 2 {
			t.Errorf("the follower of %d got %d lines, want 2", i, n)
		}
	}
	if twice.stop(); inotifyInstances(t) != 1 {
		t.Errorf("%d instances of inotify when one of many has ended", inotifyInstances(t))
	}
	for _, f := range followers {
		f.stop()
	}
	if n := inotifyInstances(t); n != 0 {
		t.Errorf("%d instances of inotify are left", n)
	}
}
