package logrotate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
	"hinit/logrotate/archive"
)

// writeSmallLines writes numbered lines one by one until the pump has removed its pipe from the poller.
// It returns the number of lines.
func writeSmallLines(t *testing.T, w *os.File, first int) int {
	t.Helper()
	n := first
	testkit.Until(t, "the pipe is larger", func() bool {
		for range 2000 {
			writeText(t, w, fmt.Sprintf("line %d\n", n))
			n++
		}
		size, err := unix.FcntlInt(w.Fd(), unix.F_GETPIPE_SZ, 0)
		return err == nil && size == floodPipe
	})
	return n
}

func TestFloodBeginsAndEnds(t *testing.T) {
	actor, dir := newAgentDir(t)
	path := filepath.Join(dir, "log", archive.CurrentFile)
	s := newSet(Options{limits: Limits{MaxSize: 1 << 30}, Actor: actor, floodWindow: time.Minute, floodPause: 50 * time.Millisecond})
	l := s.Open("gateway-coder", "coder", path)
	stdout, stderr := openPipes(t, l)
	n := 0
	for range 3 {
		n = writeSmallLines(t, stdout, n)
		testkit.Until(t, "the pipe has its old size", func() bool {
			size, err := unix.FcntlInt(stdout.Fd(), unix.F_GETPIPE_SZ, 0)
			return err == nil && size == readSize
		})
		writeText(t, stdout, fmt.Sprintf("line %d\n", n)) // The poller watches the pipe again.
		n++
		testkit.Until(t, "a single line arrives", func() bool { return l.Stats().Lines == uint64(n) })
	}
	closeAll(stdout, stderr)
	closeSet(t, s)
	want := make([]string, n)
	for i := range want {
		want[i] = fmt.Sprintf("line %d", i)
	}
	checkLines(t, storedLines(t, filepath.Dir(path)), want...)
}

// TestOrdersInAFlood checks that Tail and Close work while a pipe is read without the poller.
func TestOrdersInAFlood(t *testing.T) {
	s := newSet(Options{floodWindow: time.Minute, floodPause: 50 * time.Millisecond})
	l := s.Open("gateway-coder", "coder", "")
	stdout, stderr := openPipes(t, l)
	stop, ended := make(chan struct{}), make(chan int)
	n := writeSmallLines(t, stdout, 0)
	go func() {
		for {
			select {
			case <-stop:
				ended <- n
				return
			default:
			}
			if _, err := fmt.Fprintf(stdout, "line %d\n", n); err != nil {
				ended <- n
				return
			}
			n++
		}
	}()
	for range 20 {
		answer := make(chan []string, 1)
		l.Tail(func(lines []string) { answer <- lines })
		if lines := <-answer; len(lines) != 20 {
			t.Fatalf("got %d lines", len(lines))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); err == nil {
		t.Error("a pipe that is kept open is no error")
	}
	close(stop)
	if got := <-ended; l.Stats().Lines == 0 || l.Stats().Lines > uint64(got) {
		t.Errorf("%d lines of %d", l.Stats().Lines, got)
	}
	closeAll(stdout, stderr)
}

// TestPausesFollowWhatComes checks that the pauses between reads grow while the pipe stays nearly
// empty, and shrink before its writer has to wait.
func TestPausesFollowWhatComes(t *testing.T) {
	p := readPacer{flood: true, pauseNext: true, pipeSize: floodPipe, pause: floodPause}
	cycle := func(bytes int) time.Duration {
		for n := 0; bytes >= readSize/2; bytes -= n {
			n = min(bytes, readSize)
			p.recordRead(n, readSize, floodWindow, time.Time{})
		}
		if p.recordRead(bytes, readSize, floodWindow, time.Time{}); !p.pauseNext {
			t.Fatal("there is no pause")
		}
		return p.pause
	}
	for i, c := range []struct {
		bytes int
		want  time.Duration
	}{
		{100_000, 2}, {200_000, 4}, {200_000, 4}, {400_000, 4}, {600_000, 2}, {300_000, 2}, {600_000, 1}, {1_000_000, 1}, {10_000, 2},
	} {
		if got := cycle(c.bytes); got != c.want*time.Millisecond {
			t.Errorf("cycle %d: after %d bytes the pause is %v, want %d ms", i, c.bytes, got, c.want)
		}
	}
	if p.pipeSize = readSize; cycle(40_000) != floodPause {
		t.Error("a pipe that could not be made larger is left alone for longer")
	}
}
