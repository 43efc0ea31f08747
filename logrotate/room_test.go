package logrotate

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/internal/testkit"
	"hinit/logrotate/archive"
)

// TestGatewaysWithoutALogDirectoryCannotEndTheContainer checks the memory of 200 services without
// log directories whose last line never ends. They must stay within the shared budget.
func TestGatewaysWithoutALogDirectoryCannotEndTheContainer(t *testing.T) {
	const services = 200
	gone := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(gone, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := newSet(Options{Console: Off, period: time.Second, tailTimeout: testkit.Patience})
	full := s.memoryBudget.remaining.Load()
	if full != maxBudget {
		t.Errorf("the room is of %d bytes, want %d", full, maxBudget)
	}
	whole := bytes.Repeat([]byte(strings.Repeat("x", 999)+"\n"), 100)
	endless := bytes.Repeat([]byte("x"), 60_000)
	var ends []*os.File
	for i := range services {
		stdout, stderr := openPipes(t, s.Open(fmt.Sprint("s", i), "", filepath.Join(gone, fmt.Sprint(i), archive.CurrentFile)))
		for _, w := range []*os.File{stdout, stderr} {
			writeText(t, w, string(whole))
			writeText(t, w, string(endless))
			ends = append(ends, w)
		}
	}
	for i := range services {
		read := make(chan struct{})
		s.Open(fmt.Sprint("s", i), "", "").Tail(func([]string) { close(read) })
		<-read
	}
	if err := s.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	h, err := s.HandOver()
	if err != nil {
		t.Fatal(err)
	}
	memory, lines := 0, uint64(0)
	for _, f := range h.Files {
		memory += cap(f.Kept)
		lines += uint64(bytes.Count(f.Kept, []byte{'\n'})) + f.Losses
	}
	var read uint64
	for _, l := range h.Logs {
		read += l.Lines
		for _, st := range l.Runs[0].Streams {
			memory += cap(st.Unfinished)
		}
	}
	if most := maxBudget + services*(keptOutsideBudget+2*unfinishedOutsideBudget); memory > most || memory < maxBudget/2 {
		t.Errorf("%d bytes are kept, want at most %d", memory, most)
	}
	if lines != read || read < services*200 {
		t.Errorf("%d lines are kept or counted as lost of %d", lines, read)
	}
	s.Thaw()
	closeAll(ends...)
	for i := range services {
		s.Drop(fmt.Sprint("s", i))
	}
	testkit.Until(t, "the room is free again", func() bool { return s.memoryBudget.remaining.Load() == full })
	closeSet(t, s)
}

// TestALineThatFindsNoRoomIsSplitAndNotLost checks that a line is split if the memory budget is
// used up.
func TestALineThatFindsNoRoomIsSplitAndNotLost(t *testing.T) {
	line := []byte(strings.Repeat("é", 30_000) + "\n")
	out := splitAll(line, 64<<10, func() int { return 1000 }) // The lines have no budget, and each call of feed gets 1000 bytes.
	if got := joinSplitLines(out); !bytes.Equal(got, line) {
		t.Errorf("got %d bytes, want %d", len(got), len(line))
	}
	if n := bytes.Count(out, []byte{'\n'}); n < 10 || n > 20 {
		t.Errorf("the line has become %d", n)
	}
}
