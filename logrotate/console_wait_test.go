package logrotate

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/internal/testkit"
	"hinit/logrotate/archive"
)

// numberedLines returns n lines of the given size, each with the name and its number.
func numberedLines(name string, n, size int) []byte {
	var b bytes.Buffer
	for i := range n {
		line := fmt.Sprintf("%s %d ", name, i)
		b.WriteString(line + strings.Repeat("f", max(0, size-1-len(line))) + "\n")
	}
	return b.Bytes()
}

// writeInPieces writes data in pieces of size bytes in a goroutine, and then closes w.
func writeInPieces(w *os.File, data []byte, size int) {
	go func() {
		defer w.Close()
		for piece := range slices.Chunk(data, size) {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	}()
}

// checkOrder fails the test unless got contains the lines 0 to n-1 of each name in order.
func checkOrder(t *testing.T, got []byte, want map[string]int) {
	t.Helper()
	next := make(map[string]int)
	for line := range strings.Lines(string(got)) {
		var name string
		var i int
		if _, err := fmt.Sscanf(line, "%s %d", &name, &i); err != nil {
			t.Fatalf("line %.80q: %v", line, err)
		}
		if i != next[name] {
			t.Fatalf("%s: line %d comes when it is the turn of line %d", name, i, next[name])
		}
		next[name]++
	}
	for name, n := range want {
		if next[name] != n {
			t.Errorf("%s: %d of %d lines are on the console", name, next[name], n)
		}
	}
}

// TestNoLineIsMissingWhileTheReaderReads checks that fast and slow console readers get every line
// of a flood and of 19 quiet services.
func TestNoLineIsMissingWhileTheReaderReads(t *testing.T) {
	flood := 2 << 20
	if testing.Short() {
		flood = 1 << 20
	}
	for name, read := range map[string]func(r io.Reader, got *bytes.Buffer){
		"at once": func(r io.Reader, got *bytes.Buffer) { _, _ = got.ReadFrom(r) },
		"1 MB a second": func(r io.Reader, got *bytes.Buffer) {
			tick := time.NewTicker(16 * time.Millisecond)
			defer tick.Stop()
			for n := int64(1); n > 0; <-tick.C {
				n, _ = io.CopyN(got, r, 16<<10)
			}
		},
		"bursts": func(r io.Reader, got *bytes.Buffer) {
			tick := time.NewTicker(150 * time.Millisecond)
			defer tick.Stop()
			for n := int64(1); n > 0; <-tick.C {
				n, _ = io.CopyN(got, r, 300<<10)
			}
		},
		"a few bytes at once": func(r io.Reader, got *bytes.Buffer) {
			for buf := make([]byte, 200); ; {
				n, err := r.Read(buf)
				got.Write(buf[:n])
				if err != nil {
					return
				}
			}
		},
	} {
		for _, size := range []int{64 << 10, 4000} {
			t.Run(fmt.Sprintf("%s, writes of %d", name, size), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				r, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				s := newSet(Options{limits: Limits{Archives: 1000}, Stdout: w, ConsoleStall: testkit.Patience})
				var got bytes.Buffer
				var reader sync.WaitGroup
				reader.Go(func() { read(r, &got) })

				want := map[string]int{"flooder": flood / 100}
				logs := map[string]*Log{"flooder": s.Open("flooder", "", filepath.Join(dir, "flooder", archive.CurrentFile))}
				for i := range 19 {
					name := fmt.Sprint("quiet", i)
					logs[name], want[name] = s.Open(name, "", filepath.Join(dir, name, archive.CurrentFile)), 50
				}
				for name, l := range logs {
					stdout, stderr := openPipes(t, l)
					stderr.Close()
					writeInPieces(stdout, numberedLines(name, want[name], 100), map[bool]int{true: size, false: 100}[name == "flooder"])
				}
				closeSet(t, s)
				w.Close()
				reader.Wait()
				checkOrder(t, got.Bytes(), want)
				for name, l := range logs {
					if st := l.Stats(); st.ConsoleDropped != 0 || st.Lines != uint64(want[name]) {
						t.Errorf("%s: %+v", name, st)
					}
				}
			})
		}
	}
}

// TestAStalledReaderSlowsAServiceOnce checks that a flooding service waits only once for a stalled
// reader, not for each batch.
func TestAStalledReaderSlowsAServiceOnce(t *testing.T) {
	t.Parallel() // This test mostly waits, so it runs beside others.
	const stall = 2 * time.Second
	dir := t.TempDir()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := newSet(Options{limits: Limits{Archives: 1000}, Stdout: w, ConsoleStall: stall})
	l := s.Open("flooder", "", filepath.Join(dir, archive.CurrentFile))
	stdout, stderr := openPipes(t, l)
	const lines = 120_000 // With a wait for each of these 200 batches, the test would not end.
	began := time.Now()
	writeInPieces(stdout, numberedLines("flooder", lines, 100), 64<<10)
	testkit.Until(t, "all lines are in the file", func() bool { return l.Stats().Lines == lines })
	if waited := time.Since(began); waited < stall {
		t.Errorf("the service did not wait for the console: %s", waited)
	}
	var got bytes.Buffer
	var reader sync.WaitGroup
	reader.Go(func() { _, _ = got.ReadFrom(r) })
	stderr.Close()
	closeSet(t, s)
	w.Close()
	reader.Wait()
	dropped := l.Stats().ConsoleDropped
	notice := fmt.Sprintf("[hinit] %d lines of flooder not shown here; see %s\n", dropped, filepath.Join(dir, archive.CurrentFile))
	if dropped == 0 || strings.Count(got.String(), "[hinit]") != 1 || !strings.HasSuffix(got.String(), notice) {
		t.Errorf("%d lines are missing, and the console ends with %q", dropped, got.String()[max(0, got.Len()-150):])
	}
	checkOrder(t, bytes.TrimSuffix(got.Bytes(), []byte(notice)), map[string]int{"flooder": lines - int(dropped)})
}

// TestAFloodIsNotInTheWayOfAQuietService checks that a quiet service's line waits only for a
// limited number of a flooder's bytes.
func TestAFloodIsNotInTheWayOfAQuietService(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := newSet(Options{Stdout: w, ConsoleStall: testkit.Patience})
	flooder, quiet := s.Open("flooder", "", ""), s.Open("quiet", "", "")
	stdout, stderr := openPipes(t, flooder)
	stdout2, stderr2 := openPipes(t, quiet)
	const lines = 50_000
	writeInPieces(stdout, numberedLines("flooder", lines, 100), 64<<10)
	testkit.Until(t, "the flooder waits", func() bool {
		c := s.consoles[0]
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.waitingPumps) > 0
	})
	writeText(t, stdout2, "quiet 0 \n")
	testkit.Until(t, "the line is read", func() bool { return quiet.Stats().Lines == 1 })
	closeAll(stderr, stdout2, stderr2)
	var got bytes.Buffer
	var reader sync.WaitGroup
	reader.Go(func() { _, _ = got.ReadFrom(r) })
	closeSet(t, s)
	w.Close()
	reader.Wait()
	checkOrder(t, got.Bytes(), map[string]int{"flooder": lines, "quiet": 1})
	// Before the line come the pipe, the block being written, and the flooder's share of the queue.
	if before := bytes.Index(got.Bytes(), []byte("quiet")); before > readSize+2*consoleBlockSize+2*maxSourceQueue {
		t.Errorf("the line comes after %d bytes of the flood", before)
	}
}

func TestAServiceGoesOnWhenItsReaderIsGone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s := newSet(Options{Stdout: w, ConsoleStall: time.Hour})
	l := s.Open("flooder", "", "")
	stdout, stderr := openPipes(t, l)
	stderr.Close()
	writeInPieces(stdout, numberedLines("flooder", 20_000, 100), 64<<10)
	testkit.Until(t, "the service waits", func() bool { return l.Stats().Lines > 1000 })
	r.Close()
	testkit.Until(t, "it continues", func() bool { return l.Stats().Lines == 20_000 })
	closeSet(t, s)
}

// TestLastLinesDoNotWaitForTheConsole checks that Tail answers although the console is blocked.
func TestLastLinesDoNotWaitForTheConsole(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := newSet(Options{Stdout: w, ConsoleStall: time.Hour, tailTimeout: testkit.Patience})
	l := s.Open("flooder", "", "")
	stdout, stderr := openPipes(t, l)
	stderr.Close()
	const lines = 4000
	writeInPieces(stdout, numberedLines("flooder", lines, 100), 64<<10)
	testkit.Until(t, "all is in the pipe or behind it", func() bool {
		return l.Stats().Lines > 1000 // Further lines must wait for the console.
	})
	var got []string
	testkit.Until(t, "the last line is known", func() bool {
		answer := make(chan []string, 1)
		l.Tail(func(lines []string) { answer <- lines })
		got = <-answer
		return len(got) > 0 && strings.HasPrefix(got[len(got)-1], fmt.Sprintf("flooder %d ", lines-1))
	})
	var out bytes.Buffer
	var reader sync.WaitGroup
	reader.Go(func() { _, _ = out.ReadFrom(r) })
	closeSet(t, s)
	w.Close()
	reader.Wait()
	checkOrder(t, out.Bytes(), map[string]int{"flooder": lines})
}

// TestTheConsoleSaidThatLinesAreInAFileThatLostThem checks the notice for lines that the file has
// lost, too.
func TestTheConsoleSaidThatLinesAreInAFileThatLostThem(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dir := filepath.Join(t.TempDir(), "logs")
	if err := os.WriteFile(dir, nil, 0o644); err != nil { // A file in place of the directory makes every write fail.
		t.Fatal(err)
	}
	s := newSet(Options{Stdout: w, ConsoleStall: -1})
	path := filepath.Join(dir, archive.CurrentFile)
	l := s.Open("flooder", "", path)
	stdout, stderr := openPipes(t, l)
	stderr.Close()
	const lines = 20_000
	writeInPieces(stdout, numberedLines("flooder", lines, 100), 64<<10)
	testkit.Until(t, "all lines are read", func() bool { return l.Stats().Lines == lines })
	if st := l.Stats(); st.LinesLost == 0 || st.ConsoleDropped == 0 {
		t.Fatalf("the file has lost %d lines, and the console %d", st.LinesLost, st.ConsoleDropped)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	var reader sync.WaitGroup
	reader.Go(func() { _, _ = out.ReadFrom(r) })
	closeSet(t, s)
	w.Close()
	reader.Wait()
	if want := fmt.Sprintf("[hinit] %d lines of flooder not shown here; see %s\n", l.Stats().ConsoleDropped, path); !strings.Contains(out.String(), want) {
		t.Errorf("the console has no notice %q", want)
	}
}

// TestAFreezeDoesNotWaitForTheConsole checks that pumps that wait for a console reader can be
// frozen and thawed.
func TestAFreezeDoesNotWaitForTheConsole(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := newSet(Options{Stdout: w, ConsoleStall: time.Hour})
	l := s.Open("flooder", "", "")
	stdout, stderr := openPipes(t, l)
	stderr.Close()
	const lines = 6000
	writeInPieces(stdout, numberedLines("flooder", lines, 100), 64<<10)
	testkit.Until(t, "it waits", func() bool { return l.Stats().Lines > 1000 })
	if err := s.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Thaw()
	var out bytes.Buffer
	var reader sync.WaitGroup
	reader.Go(func() { _, _ = out.ReadFrom(r) })
	closeSet(t, s)
	w.Close()
	reader.Wait()
	checkOrder(t, out.Bytes(), map[string]int{"flooder": lines})
}

// FuzzConsoleOrder checks that no line is missing or out of order, for any services and readers.
func FuzzConsoleOrder(f *testing.F) {
	f.Add(uint64(1), uint16(9000), uint16(100), false)
	f.Add(uint64(2), uint16(60000), uint16(7), true)
	f.Add(uint64(3), uint16(3), uint16(9999), true)
	f.Fuzz(func(t *testing.T, seed uint64, lines, size uint16, json bool) {
		dice := rand.New(rand.NewPCG(seed, 0))
		count, length := 1+int(lines)%20_000, 20+int(size)%20_000
		count = min(count, (1<<20)/length)
		mode := map[bool]ConsoleMode{false: Raw, true: Prefixed}[json]
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		s := newSet(Options{Stdout: w, Console: mode, ConsoleStall: time.Hour})
		want := make(map[string]int)
		for _, name := range []string{"a", "b", "c"} {
			stdout, stderr := openPipes(t, s.Open(name, name, ""))
			stderr.Close()
			want[name] = 1 + dice.IntN(count)
			writeInPieces(stdout, numberedLines(name, want[name], length), 1+dice.IntN(100_000))
		}
		var out bytes.Buffer
		var reader sync.WaitGroup
		reader.Go(func() {
			for buf := make([]byte, 1+dice.IntN(100_000)); ; {
				n, err := r.Read(buf)
				out.Write(buf[:n])
				if err != nil {
					return
				}
				if n%7 == 0 {
					time.Sleep(time.Duration(n%3) * time.Millisecond)
				}
			}
		})
		closeSet(t, s)
		w.Close()
		reader.Wait()
		got := out.Bytes()
		if mode == Prefixed {
			for name := range want {
				got = bytes.ReplaceAll(got, []byte(name+" | "), nil)
			}
		}
		checkOrder(t, got, want)
	})
}
