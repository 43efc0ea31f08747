package logrotate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/reexec"
	"hinit/internal/testkit"
	"hinit/logrotate/archive"
)

// replaceSet creates the successor of a set as a re-execution would, with duplicated descriptors.
func replaceSet(t *testing.T, old *Set, o Options) *Set {
	t.Helper()
	h, err := old.HandOver()
	if err != nil {
		t.Fatal(err)
	}
	c := reexec.NewCodec()
	if _, err := c.Encode(h); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, l := range h.Logs {
		for _, r := range l.Runs {
			for k := range r.Streams {
				r.Streams[k].Pipe = duplicate(t, r.Streams[k].Pipe)
				n++
			}
		}
	}
	if n != len(c.Descriptors()) {
		t.Errorf("%d descriptors for %d streams", len(c.Descriptors()), n)
	}
	next := newSet(o)
	if err := next.TakeOver(h); err != nil {
		t.Fatal(err)
	}
	return next
}

func duplicate(t *testing.T, f *os.File) *os.File {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	if failed := raw.Control(func(n uintptr) { fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 3) }); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// closeReplaced closes the rest of a replaced set, as the end of its process would.
func closeReplaced(s *Set) {
	s.mu.Lock()
	parked := s.freeze.parked
	s.mu.Unlock()
	for st := range parked {
		st.close()
	}
	s.mu.Lock()
	s.liveStreams, s.freeze = map[*stream]struct{}{}, nil
	s.mu.Unlock()
	for _, f := range s.files {
		f.closeFile()
		if f.timer != nil {
			f.timer.Stop()
		}
	}
	for _, c := range s.consoles {
		c.mu.Lock()
		c.queue, c.sourcesWithDropped, c.closing = nil, nil, true
		c.wake.Signal()
		c.mu.Unlock()
	}
}

func freezeSet(t *testing.T, s *Set) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if err := s.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestLinesGoOnInAnotherImage(t *testing.T) {
	dir := t.TempDir()
	out := newSink(t)
	o := Options{Stdout: out.file, tailTimeout: testkit.Patience}
	s := newSet(o)
	stdout, stderr := openPipes(t, s.Open("svc", "", filepath.Join(dir, archive.CurrentFile)))
	defer closeAll(stdout, stderr)
	writeText(t, stdout, "one\ntw")
	testkit.Until(t, "the beginning of the line is read", func() bool { return strings.Contains(out.textSoFar(), "one") })
	freezeSet(t, s)
	writeText(t, stdout, "o\nthree\nfo")

	next := replaceSet(t, s, o)
	closeReplaced(s)
	writeText(t, stdout, "ur\n")
	var tail []string
	testkit.Until(t, "the lines are there", func() bool { return len(storedLines(t, dir)) == 4 })
	writeText(t, stderr, "other stream\n")
	testkit.Until(t, "that of the other stream too", func() bool { return len(storedLines(t, dir)) == 5 })
	got := make(chan []string, 1)
	next.Open("svc", "", "").Tail(func(lines []string) { got <- lines })
	if tail = <-got; len(tail) != 5 || tail[0] != "one" {
		t.Errorf("the tail of the run is %q", tail)
	}
	testkit.Until(t, "five lines are counted", func() bool { return next.Open("svc", "", "").Stats().Lines == 5 })
	closeAll(stdout, stderr)
	closeSet(t, next)
	lines := storedLines(t, dir)
	checkLines(t, lines[:4], "one", "two", "three", "four")
	if text := out.closeAndText(); text != "one\ntwo\nthree\nfour\n" {
		t.Errorf("the console has %q", text)
	}
}

func TestFrozenLogsGoOnWhenNothingComesOfIt(t *testing.T) {
	dir := t.TempDir()
	s := newSet(Options{})
	stdout, stderr := openPipes(t, s.Open("svc", "", filepath.Join(dir, archive.CurrentFile)))
	for i := range 50 {
		writeText(t, stdout, fmt.Sprintf("line %d\nhalf", i))
		freezeSet(t, s)
		writeText(t, stdout, fmt.Sprintf(" of %d\n", i))
		s.Thaw()
	}
	closeAll(stdout, stderr)
	closeSet(t, s)
	lines := storedLines(t, dir)
	if len(lines) != 100 || lines[98] != "line 49" || lines[99] != "half of 49" {
		t.Fatalf("%d lines, the last ones %q", len(lines), lines[max(0, len(lines)-2):])
	}
}

// TestNoLineIsLostDoubledOrTornUnderLoad checks that eight services at full speed lose no line
// through several re-executions.
func TestNoLineIsLostDoubledOrTornUnderLoad(t *testing.T) {
	const services, count, images = 8, 30000, 6
	dir := t.TempDir()
	o := Options{limits: Limits{MaxSize: 1 << 20, Archives: 1000}}
	s := newSet(o)
	var writers sync.WaitGroup
	for i := range services {
		stdout, stderr := openPipes(t, s.Open(fmt.Sprintf("svc%d", i), "", filepath.Join(dir, fmt.Sprint(i), archive.CurrentFile)))
		writers.Go(func() {
			defer closeAll(stdout, stderr)
			for n := range count {
				if _, err := fmt.Fprintf(stdout, "%d line %d of a service\n", i, n); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range images {
		time.Sleep(20 * time.Millisecond) // Give the services time to write; the result must also be right without this pause.
		freezeSet(t, s)
		next := replaceSet(t, s, o)
		closeReplaced(s)
		s = next
	}
	writers.Wait()
	closeSet(t, s)
	for i := range services {
		lines := storedLines(t, filepath.Join(dir, fmt.Sprint(i)))
		if len(lines) != count {
			t.Fatalf("service %d: %d lines of %d", i, len(lines), count)
		}
		for n, line := range lines {
			if want := fmt.Sprintf("%d line %d of a service", i, n); line != want {
				t.Fatalf("service %d, line %d: %q", i, n, line)
			}
		}
	}
}

func TestWhatWaitsForADiskIsHandedOver(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", archive.CurrentFile)
	// A file in place of the directory makes every write fail.
	if err := os.WriteFile(filepath.Join(dir, "sub"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var w warnings
	s := newSet(Options{Warn: w.add})
	l := s.Open("svc", "", path)
	stdout, stderr := openPipes(t, l)
	defer closeAll(stdout, stderr)
	writeText(t, stdout, "kept\n")
	testkit.Until(t, "the fault is noticed", func() bool { return l.Stats().LastError != "" })
	freezeSet(t, s)
	next := replaceSet(t, s, Options{Warn: w.add})
	closeReplaced(s)
	if st := next.Open("svc", "", path).Stats(); st.LastError == "" {
		t.Error("the fault is forgotten")
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "sub")), os.Mkdir(filepath.Join(dir, "sub"), 0o755)); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the line is written", func() bool { return len(storedLines(t, filepath.Join(dir, "sub"))) == 1 })
	writeText(t, stdout, "next\n")
	closeAll(stdout, stderr)
	closeSet(t, next)
	checkLines(t, storedLines(t, filepath.Join(dir, "sub")), "kept", "next")
}

func TestAStuckConsoleDoesNotHoldTheHandoverAndIsAccounted(t *testing.T) {
	t.Parallel() // This test mostly waits, so it runs beside others.
	dir := t.TempDir()
	r, stuck, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := newSet(Options{Stdout: stuck})
	l := s.Open("svc", "", filepath.Join(dir, archive.CurrentFile))
	stdout, stderr := openPipes(t, l)
	defer closeAll(stdout, stderr)
	const count = 4000
	for range count {
		writeText(t, stdout, strings.Repeat("x", 99)+"\n")
	}
	testkit.Until(t, "all lines are in the file", func() bool { return l.Stats().Lines == count })
	freezeSet(t, s)
	out := newSink(t)
	next := replaceSet(t, s, Options{Stdout: out.file})
	goesOn := next.Open("svc", "", "")
	closeAll(stdout, stderr)
	closeSet(t, next)
	_ = r.Close() // From here on, the old console can end.
	closeReplaced(s)
	<-s.consoles[0].done
	_ = stuck.Close()
	var missing int
	if _, err := fmt.Sscanf(out.closeAndText(), "[hinit] %d lines of svc not shown here", &missing); err != nil || missing < count-1000 || missing > count {
		t.Errorf("the new console says %q", out.textSoFar())
	}
	if n := goesOn.Stats().ConsoleDropped; n != uint64(missing) { // The status must count these lines; it showed 0.
		t.Errorf("%d lines are missing on the console, and %d are counted", missing, n)
	}
	if n := len(storedLines(t, dir)); n != count {
		t.Errorf("%d lines in the file", n)
	}
}

func TestAHungDiskIsNamed(t *testing.T) {
	s := newSet(Options{})
	l := s.Open("svc", "", filepath.Join(t.TempDir(), archive.CurrentFile))
	stdout, stderr := openPipes(t, l)
	l.file.mu.Lock() // Pretend that a write does not return.
	writeText(t, stdout, "x\n")
	testkit.Until(t, "the pump has it, and can only write it now", func() bool {
		n, err := unix.IoctlGetInt(int(stdout.Fd()), unix.TIOCINQ)
		return err == nil && n == 0
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := s.Freeze(ctx)
	if err == nil || !strings.Contains(err.Error(), `logs of ["svc"]`) {
		t.Errorf("got %v", err)
	}
	l.file.mu.Unlock()
	s.Thaw()
	closeAll(stdout, stderr)
	closeSet(t, s)
}
