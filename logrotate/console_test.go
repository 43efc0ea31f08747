package logrotate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
	"hinit/logrotate/archive"
)

func TestBlockedConsoleDelaysNothing(t *testing.T) {
	t.Parallel() // This test mostly waits, so it runs beside others.
	for _, mode := range []ConsoleMode{Raw, Prefixed, JSON} {
		t.Run(string(mode), func(t *testing.T) {
			dir := t.TempDir()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			warn := &warnings{}
			s := newSet(Options{limits: Limits{Archives: 1000}, Stdout: w, Console: mode, Warn: warn.add})
			flooder := s.Open("gateway-coder", "coder", filepath.Join(dir, "coder", archive.CurrentFile))
			modest := s.Open("gateway-writer", "writer", filepath.Join(dir, "writer", archive.CurrentFile))
			stdout1, stderr1 := openPipes(t, flooder)
			stdout2, stderr2 := openPipes(t, modest)

			// The console has no reader, and its lines exceed the buffer and the pipe.
			const lines = 30_000
			for i := range lines {
				writeText(t, stdout1, fmt.Sprintf("%5d %s\n", i, strings.Repeat("b", 93)))
			}
			testkit.Until(t, "all lines are in the file", func() bool { return flooder.Stats().Lines == lines })
			writeText(t, stdout2, "a modest line\n")
			testkit.Until(t, "the other service's line", func() bool { return modest.Stats().Lines == 1 })
			fmt.Fprint(s.Console(1), "the init's own line")

			var got []string
			done := make(chan struct{})
			go func() {
				defer close(done)
				data, _ := io.ReadAll(r)
				got = strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
			}()
			// The notice about lost lines must come without a further line, when the pipe has space.
			testkit.Until(t, "the notice", func() bool {
				c := s.consoles[0]
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.queuedBytes == 0 && len(c.sourcesWithDropped) == 0
			})
			writeText(t, stdout1, "afterwards\n")
			closeAll(stdout1, stderr1, stdout2, stderr2)
			closeSet(t, s)
			w.Close()
			<-done
			r.Close()

			if n := len(storedLines(t, filepath.Join(dir, "coder"))); n != lines+1 {
				t.Errorf("the file has %d lines", n)
			}
			dropped := flooder.Stats().ConsoleDropped
			if dropped == 0 || modest.Stats().ConsoleDropped != 0 {
				t.Errorf("dropped %d and %d lines", dropped, modest.Stats().ConsoleDropped)
			}
			var flood, others []string
			for _, line := range got {
				switch mode {
				case Prefixed:
					line = strings.TrimPrefix(line, "coder | ")
				case JSON:
					var record struct{ Message string }
					if err := json.Unmarshal([]byte(line), &record); err != nil {
						t.Fatalf("%q: %v", line, err)
					}
					line = record.Message
				}
				if strings.HasSuffix(line, " "+strings.Repeat("b", 93)) {
					flood = append(flood, line)
				} else {
					others = append(others, line)
				}
			}
			for i, line := range flood {
				if line != fmt.Sprintf("%5d %s", i, strings.Repeat("b", 93)) {
					t.Fatalf("line %d: %q", i, line)
				}
			}
			if want := lines - int(dropped); len(flood) != want {
				t.Errorf("the console has %d lines, want %d", len(flood), want)
			}
			notice := fmt.Sprintf("[hinit] %d lines of gateway-coder not shown here; see %s", dropped, filepath.Join(dir, "coder", archive.CurrentFile))
			switch mode {
			case Prefixed:
				checkLines(t, others, "writer | a modest line", "hinit | the init's own line", notice, "afterwards")
			default:
				checkLines(t, others, "a modest line", "the init's own line", notice, "afterwards")
			}
			warn.checkContains(t)
		})
	}
}

func TestConsoleModes(t *testing.T) {
	for mode, want := range map[ConsoleMode]string{
		Raw:      "own\na \"line\"\nand\n",
		Prefixed: "hinit | own\ncoder | a \"line\"\ncoder | and\n",
		Off:      "own\n",
		JSON: `{"profile":"hinit","stream":"stderr","message":"own"}` + "\n" +
			`{"profile":"coder","stream":"stderr","message":"a \"line\""}` + "\n" +
			`{"profile":"coder","stream":"stderr","message":"and"}` + "\n",
	} {
		out := newSink(t)
		s := newSet(Options{Stderr: out.file, Console: mode})
		l := s.Open("gateway-coder", "coder", "")
		stdout, stderr := openPipes(t, l)
		if n, err := io.WriteString(s.Console(2), "own"); n != 3 || err != nil {
			t.Errorf("%v: own line: %d, %v", mode, n, err)
		}
		writeText(t, stderr, "a \"line\"\nand")
		closeAll(stdout, stderr)
		closeSet(t, s)
		got := out.closeAndText()
		if mode == JSON { // Check the times, and remove them from the text.
			var b strings.Builder
			for line := range strings.Lines(got) {
				rest, ok := strings.CutPrefix(line, `{"time":"`)
				at, rest, ok2 := strings.Cut(rest, `",`)
				if tm, err := time.Parse(time.RFC3339Nano, at); !ok || !ok2 || err != nil || time.Since(tm) > time.Hour {
					t.Errorf("line %q: %v", line, err)
				}
				b.WriteString("{" + rest)
			}
			got = b.String()
		}
		if got != want {
			t.Errorf("%v: got %q, want %q", mode, got, want)
		}
	}
}

func TestConsoleThatIsGone(t *testing.T) {
	dir := t.TempDir()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	warn := &warnings{}
	s := newSet(Options{Stdout: w, Warn: warn.add})
	stdout, stderr := openPipes(t, s.Open("x", "x", filepath.Join(dir, archive.CurrentFile)))
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprint("line ", i))
		writeText(t, stdout, want[i]+"\n")
	}
	testkit.Until(t, "the warning", func() bool { return len(warn.all()) == 1 })
	writeText(t, stdout, "last\n")
	closeAll(stdout, stderr)
	closeSet(t, s)
	w.Close()
	warn.checkContains(t, "cannot write the container's stdout: broken pipe")
	checkLines(t, storedLines(t, dir), append(want, "last")...)
}

// TestConsoleFlagsAreLeftAlone checks that hinit does not change the console's O_NONBLOCK flag,
// which other processes share.
func TestConsoleFlagsAreLeftAlone(t *testing.T) {
	for _, nonblock := range []bool{false, true} {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		r, w := os.NewFile(uintptr(p[0]), "r"), os.NewFile(uintptr(p[1]), "w")
		s := newSet(Options{Stdout: w, Console: Raw})
		if err := unix.SetNonblock(p[1], nonblock); err != nil { // Set the flag after hinit has started, as a CMD may do.
			t.Fatal(err)
		}
		got := make(chan int)
		text := strings.Repeat(strings.Repeat("n", 99)+"\n", 5000) // The text does not fit into the pipe.
		io.WriteString(s.Console(1), text)
		go func() {
			data, _ := io.ReadAll(r)
			got <- len(data)
		}()
		closeSet(t, s)
		fl, err := unix.FcntlInt(uintptr(p[1]), unix.F_GETFL, 0)
		if err != nil || fl&unix.O_NONBLOCK != 0 != nonblock {
			t.Errorf("flags %#x, %v", fl, err)
		}
		w.Close()
		if n := <-got; n != len(text) {
			t.Errorf("non-blocking %v: got %d bytes of %d", nonblock, n, len(text))
		}
		r.Close()
	}
}

func TestConsoleOnAFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	dir := t.TempDir()
	warn := &warnings{}
	s := newSet(Options{Stdout: full, Warn: warn.add})
	l := s.Open("x", "x", filepath.Join(dir, archive.CurrentFile))
	stdout, stderr := openPipes(t, l)
	for i := range 10 {
		writeText(t, stdout, "line\n")
		testkit.Until(t, "it is read", func() bool { return l.Stats().Lines == uint64(i+1) })
	}
	closeAll(stdout, stderr)
	closeSet(t, s)
	warn.checkContains(t, "cannot write the container's stdout: no space left on device")
	if n := len(storedLines(t, dir)); n != 10 {
		t.Errorf("the file has %d lines", n)
	}
}

// TestAConsoleFailsTwice checks that the status shows the second failure of a console, and not only
// the first.
func TestAConsoleFailsTwice(t *testing.T) {
	warn := &warnings{}
	s := newSet(Options{Warn: warn.add})
	defer closeSet(t, s)
	c := newConsole("stdout", nil, Options{Warn: warn.add})
	s.consoles[0] = c
	fails := func(err error) {
		t.Helper()
		c.handleResult(&block{}, err)
		if shown := s.ConsoleFaults(); len(shown) == 0 != (err == nil) {
			t.Errorf("after %v the status shows %q", err, shown)
		}
	}
	for range 100 {
		fails(unix.ENOSPC)
		fails(nil)
	}
	c.fault.reportedAt = time.Time{} // Pretend that the report was a minute ago.
	fails(unix.ENOSPC)
	fails(nil)
	warn.checkContains(t, "no space left on device; lines are missing", "is written again", "no space left on device; lines are missing", "is written again")
}

// TestAConsoleThatTakesNothingIsCounted checks that lines that can't be written to the console
// count as lost.
func TestAConsoleThatTakesNothingIsCounted(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	r, gone, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	r.Close()
	for name, console := range map[string]*os.File{"full disk": full, "reader gone": gone} {
		s := newSet(Options{Stdout: console})
		l := s.Open("x", "x", "")
		stdout, stderr := openPipes(t, l)
		for i := range 10 {
			writeText(t, stdout, "line\n")
			testkit.Until(t, "it is read", func() bool { return l.Stats().Lines == uint64(i+1) })
		}
		closeAll(stdout, stderr)
		closeSet(t, s)
		if n := l.Stats().ConsoleDropped; n != 10 {
			t.Errorf("%s: %d of 10 lines are counted", name, n)
		}
	}
}

// TestALineThatIsCutOffOnTheConsoleIsCounted checks that a line counts as lost if the console's
// disk fills in the middle of a block.
func TestALineThatIsCutOffOnTheConsoleIsCounted(t *testing.T) {
	a, b := &source{name: "a"}, &source{name: "b"}
	data := &block{data: []byte("1\n2\n3\n4\n5\n6\n"), shares: []share{{a, 4}, {b, 4}, {a, 4}}}
	for written, want := range []string{"a2 b2 a2 ", "a2 b2 a2 ", "a1 b2 a2 ", "a1 b2 a2 ", "a0 b2 a2 ", "a0 b2 a2 ", "a0 b1 a2 "} {
		got := ""
		data.countLines(written, func(src *source, lines int) { got += fmt.Sprint(src.name, lines, " ") })
		if got != want {
			t.Errorf("of %d bytes: %s, not %s", written, got, want)
		}
	}
}

func TestCloseWithABlockedConsole(t *testing.T) {
	t.Parallel() // This test mostly waits, so it runs beside others.
	dir := t.TempDir()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := newSet(Options{Stdout: w})
	l := s.Open("x", "x", filepath.Join(dir, archive.CurrentFile))
	stdout, stderr := openPipes(t, l)
	for range 2000 {
		writeText(t, stdout, strings.Repeat("c", 99)+"\n")
	}
	closeAll(stdout, stderr)
	testkit.Until(t, "all lines are in the file", func() bool { return l.Stats().Lines == 2000 })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); err == nil || !strings.Contains(err.Error(), "in time") {
		t.Errorf("got %v", err)
	}
	if n := len(storedLines(t, dir)); n != 2000 {
		t.Errorf("the file has %d lines", n)
	}
	r.Close() // This close ends the goroutine that waits for the console.
	testkit.Until(t, "the console ends", func() bool {
		select {
		case <-s.consoles[0].done:
			return true
		default:
			return false
		}
	})
	w.Close()
}

func TestSyncReturnsWhenTheConsoleHasEverything(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	s := newSet(Options{Stdout: w})
	fmt.Fprintln(s.Console(1), "before")
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(w, "after")
	got := make([]byte, 13)
	if _, err := io.ReadFull(r, got); err != nil || string(got) != "before\nafter\n" {
		t.Errorf("%q, %v", got, err)
	}
	fmt.Fprint(s.Console(1), strings.Repeat("x\n", 100_000)) // These lines do not fit into the pipe.
	stuck, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Sync(stuck); err == nil {
		t.Error("a stuck console is said to have everything")
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	closeSet(t, s)
}
