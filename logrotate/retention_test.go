package logrotate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
	"hinit/logrotate/archive"
)

// newSetWithLog creates a Set with one log that has these limits.
func newSetWithLog(t *testing.T, o Options, limits Limits) (s *Set, l *Log, dir string) {
	t.Helper()
	dir = t.TempDir()
	s = newSet(o)
	l = s.Open("gateway-coder", "coder", filepath.Join(dir, archive.CurrentFile))
	setLimits(l, limits)
	return s, l, dir
}

// writeRun writes lines in a new run, and waits until they are counted.
func writeRun(t *testing.T, l *Log, lines ...string) {
	t.Helper()
	want := l.Stats().Lines + uint64(len(lines))
	stdout, stderr := openPipes(t, l)
	writeText(t, stdout, strings.Join(lines, "\n")+"\n")
	closeAll(stdout, stderr)
	testkit.Until(t, "the lines are read", func() bool { return l.Stats().Lines == want })
}

func TestLimitsOfOneLog(t *testing.T) {
	s, l, dir := newSetWithLog(t, Options{limits: Limits{MaxSize: 1 << 20}}, Limits{MaxSize: 100, Archives: 2})
	for i := range 10 {
		writeRun(t, l, fmt.Sprintf("%060d", i))
	}
	closeSet(t, s)
	checkLines(t, storedLines(t, dir), fmt.Sprintf("%060d", 7), fmt.Sprintf("%060d", 8), fmt.Sprintf("%060d", 9))
}

// TestADirectoryWithTheNameOfAnArchiveKeptAllArchives checks that an agent's directory stops
// neither the pruning nor the compression of archives.
func TestADirectoryWithTheNameOfAnArchiveKeptAllArchives(t *testing.T) {
	t.Parallel()
	var w warnings
	s, l, dir := newSetWithLog(t, Options{Warn: w.add}, Limits{MaxSize: 100, Archives: 3, Compress: true})
	first := "@400000005c2aad0a00000000.s"
	if err := os.MkdirAll(filepath.Join(dir, first, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		writeRun(t, l, fmt.Sprintf("line %2d %s", i, strings.Repeat("x", 80)))
	}
	var paths []string
	compressed := func() bool {
		all, err := archivePaths(dir)
		paths = all
		return err == nil && len(all) == 3 && !slices.ContainsFunc(all, func(path string) bool { return !strings.HasSuffix(path, archive.PackedSuffix) })
	}
	testkit.Until(t, "three archives are left, all compressed", compressed)
	// The oldest archive is still in the list when a directory takes its place.
	if err := errors.Join(os.Remove(paths[0]), os.MkdirAll(filepath.Join(strings.TrimSuffix(paths[0], archive.PackedSuffix), "full"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		writeRun(t, l, fmt.Sprintf("more %2d %s", i, strings.Repeat("x", 80)))
	}
	testkit.Until(t, "three archives are left again, all compressed", compressed)
	closeSet(t, s)
	w.checkContains(t)
}

func TestQuota(t *testing.T) {
	s, l, dir := newSetWithLog(t, Options{}, Limits{MaxSize: 100, Quota: 400})
	for i := range 20 {
		writeRun(t, l, fmt.Sprintf("%060d", i))
	}
	closeSet(t, s)
	checkLines(t, storedLines(t, dir), fmt.Sprintf("%060d", 16), fmt.Sprintf("%060d", 17), fmt.Sprintf("%060d", 18), fmt.Sprintf("%060d", 19))
}

func TestOldArchivesGo(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	old, young := archive.NameAt(now.Add(-3*time.Hour)), archive.NameAt(now.Add(-time.Hour))
	s6 := strings.TrimSuffix(archive.NameAt(now.Add(-4*time.Hour)), ".s") + ".u"
	for _, name := range []string{old, young, s6} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := newSet(Options{})
	l := s.Open("gateway-coder", "coder", filepath.Join(dir, archive.CurrentFile))
	setLimits(l, Limits{MaxAge: 2 * time.Hour})
	writeRun(t, l, "one")
	closeSet(t, s)
	left, err := archivePaths(dir)
	if err != nil {
		t.Fatal(err)
	}
	checkLines(t, left, filepath.Join(dir, young))
}

// TestSpareSpace checks that a log is not written while the disk has less free space than min_free.
func TestSpareSpace(t *testing.T) {
	var w warnings
	s, l, dir := newSetWithLog(t, Options{Warn: w.add}, Limits{MinFree: 1 << 60})
	writeRun(t, l, "one", "two")
	testkit.Until(t, "the fault is told", func() bool { return strings.Contains(l.Stats().LastError, "are to stay free") })
	if st, err := os.Stat(filepath.Join(dir, archive.CurrentFile)); err == nil && st.Size() > 0 {
		t.Errorf("%d bytes are written", st.Size())
	}
	setLimits(l, Limits{MinFree: 1})
	testkit.Until(t, "it is written again", func() bool { return l.Stats().LastError == "" })
	writeRun(t, l, "three")
	closeSet(t, s)
	checkLines(t, storedLines(t, dir), "one", "two", "three")
	w.checkContains(t, "are to stay free", "no line was lost")
}

func TestSuppressedLines(t *testing.T) {
	console := newSink(t)
	s, l, dir := newSetWithLog(t, Options{Stdout: console.file}, Limits{Rate: 5})
	const all = 1000
	lines := make([]string, all)
	for i := range lines {
		lines[i] = fmt.Sprint("line ", i)
	}
	writeRun(t, l, lines...)
	closeSet(t, s)
	st := l.Stats()
	got := storedLines(t, dir)
	// All lines came within two seconds, so the limit admits one or two portions.
	shown, reportedLines := 0, uint64(0)
	for _, line := range got {
		var n uint64
		if _, err := fmt.Sscanf(line, "[hinit] suppressed %d lines here: there were more than 5 a second", &n); err == nil {
			reportedLines += n
			continue
		}
		shown++
	}
	if uint64(shown)+reportedLines != all || reportedLines != st.Suppressed || shown < 5 || shown > 50 {
		t.Errorf("%d lines are there, %d were suppressed, %d counted", shown, reportedLines, st.Suppressed)
	}
	if text := console.closeAndText(); text != strings.Join(got, "\n")+"\n" {
		t.Errorf("the console has %q", text)
	}
}

// TestRateIsPerSecond checks the limiter with a test clock.
func TestRateIsPerSecond(t *testing.T) {
	var l rateLimiter
	l.writeLines, l.recordDelay = func(int, []byte) {}, time.Hour
	defer func() { l.timer.Stop() }()
	l.rate.Store(2)
	now := time.Unix(100, 0)
	check := func(chunk, record, taken string) {
		t.Helper()
		r, k := l.admit(0, []byte(chunk), now)
		if string(r) != record || string(k) != taken {
			t.Errorf("%q: got %q and %q", chunk, r, k)
		}
	}
	check("a\nb\nc\n", "", "a\nb\n")
	check("d\n", "", "")
	now = now.Add(time.Second)
	check("e\n", "[hinit] suppressed 2 lines here: there were more than 2 a second\n", "e\n")
	check("f\ng\n", "", "f\n")
	l.rate.Store(0)
	check("h\n", "[hinit] suppressed 1 lines here: there were more than 2 a second\n", "h\n")
	check("i\n", "", "i\n")
}

// newSmallDiskWithArchives creates a disk of 8 MB, and a log on it with six archives of 6 MB in all.
func newSmallDiskWithArchives(t *testing.T, w *warnings) (s *Set, l *Log, dir string, names []string) {
	t.Helper()
	dir = filepath.Join(mountSmallDisk(t, 8<<20), "coder")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		names = append(names, archive.NameAt(time.Now().Add(time.Duration(i-10)*time.Minute)))
		if err := os.WriteFile(filepath.Join(dir, names[i]), make([]byte, 1<<20), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s = newSet(Options{Warn: w.add})
	return s, s.Open("gateway-coder", "coder", filepath.Join(dir, archive.CurrentFile)), dir, names
}

// TestATenantThatFilledTheDiskMadeOthersLoseTheirArchives checks that a log does not remove all its
// archives for logs.min_free_mb, because a tenant would take that space, too.
func TestATenantThatFilledTheDiskMadeOthersLoseTheirArchives(t *testing.T) {
	var w warnings
	s, l, dir, names := newSmallDiskWithArchives(t, &w)
	setLimits(l, Limits{MinFree: 1 << 60})
	writeRun(t, l, "one")
	testkit.Until(t, "the fault is told", func() bool { return strings.Contains(l.Stats().LastError, "are to stay free") })
	setLimits(l, Limits{MinFree: 1})
	testkit.Until(t, "it is written again", func() bool { return l.Stats().LastError == "" })
	closeSet(t, s)
	left, err := archive.Dir{Path: dir, Actor: fsutil.ProcessActor()}.Names()
	if err != nil {
		t.Fatal(err)
	}
	checkLines(t, left, names...)
}

// TestALogStopsGrowingWhenSpaceIsLow checks that a rotation removes the oldest archive if the next
// file would leave too little free space.
func TestALogStopsGrowingWhenSpaceIsLow(t *testing.T) {
	var w warnings
	s, l, dir, names := newSmallDiskWithArchives(t, &w)
	said := func(line string) {
		t.Helper()
		writeRun(t, l, line)
		testkit.Until(t, line+" is written", func() bool { return slices.Contains(fileLines(t, filepath.Join(dir, archive.CurrentFile)), line) })
	}
	said("one")
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	setLimits(l, Limits{MinFree: int64(st.Bavail) * int64(st.Bsize), MaxSize: 1}) //nolint:unconvert // 32 bits wide on some machines
	said("two")
	closeSet(t, s)
	left, err := archive.Dir{Path: dir, Actor: fsutil.ProcessActor()}.Names()
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 6 {
		t.Fatalf("%q are left", left)
	}
	checkLines(t, left[:5], names[1:]...)
	w.checkContains(t)
}

// TestSuppressedLinesAreCountedAtTheEndOfAFlood checks that the number of suppressed lines is logged
// after a flood without a further line.
func TestSuppressedLinesAreCountedAtTheEndOfAFlood(t *testing.T) {
	t.Parallel()
	console := newSink(t)
	s, l, dir := newSetWithLog(t, Options{Stdout: console.file, period: time.Second}, Limits{Rate: 2}) // A new retryPeriod must begin before the record.
	stdout, stderr := openPipes(t, l)
	writeText(t, stdout, "a\nb\nc\nd\n")
	const record = "[hinit] suppressed 2 lines here: there were more than 2 a second"
	testkit.Until(t, "it is told", func() bool { return strings.Contains(console.textSoFar(), record) })
	testkit.Until(t, "it is in the file", func() bool { return len(storedLines(t, dir)) == 3 })
	writeText(t, stderr, "e\n")
	testkit.Until(t, "the next line comes", func() bool { return len(storedLines(t, dir)) == 4 })
	writeText(t, stdout, "f\ng\nh\n") // These are too many lines again, but the log ends before the timer fires.
	closeAll(stdout, stderr)
	closeSet(t, s)
	got := storedLines(t, dir)
	checkLines(t, got[:4], "a", "b", record, "e")
	if last := got[len(got)-1]; !strings.HasPrefix(last, "[hinit] suppressed ") {
		t.Errorf("the last line is %q", last)
	}
}
