package logrotate

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"hinit/internal/testkit"
	"hinit/logrotate/archive"
)

func TestNoAllocationPerLine(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes sync.Pool forget")
	}
	for _, mode := range []ConsoleMode{Raw, Prefixed, JSON} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		s := newSet(Options{limits: Limits{MaxSize: 1 << 30}, Stdout: w, Console: mode})
		stdout, stderr := openPipes(t, s.Open("x", "x", filepath.Join(t.TempDir(), archive.CurrentFile)))
		const lines = 600
		block := bytes.Repeat([]byte(strings.Repeat("x", 99)+"\n"), lines)
		buf := make([]byte, 256<<10)
		move := func(b []byte) {
			stdout.Write(b)
			for n := 0; n < bytes.Count(b, []byte{'\n'}); {
				got, err := r.Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				n += bytes.Count(buf[:got], []byte{'\n'})
			}
		}
		if got := testing.AllocsPerRun(100, func() { move(block) }); got > lines/20 {
			t.Errorf("%v: %v allocations for %d lines in one write", mode, got, lines)
		}
		// Each batch has one line.
		if got := testing.AllocsPerRun(20, func() {
			for range lines {
				move(block[:100])
			}
		}); got > lines/20 {
			t.Errorf("%v: %v allocations for %d single lines", mode, got, lines)
		}
		closeAll(stdout, stderr)
		closeSet(t, s)
		closeAll(r, w)
	}
}

func TestSilentServicesHaveNoBuffers(t *testing.T) {
	const services = 500
	var before, after runtime.MemStats
	s := newSet(Options{})
	runtime.GC()
	runtime.GC() // The second collection frees the content of pools.
	runtime.ReadMemStats(&before)
	dir := t.TempDir()
	var ends []*os.File
	var logs []*Log
	for i := range services {
		l := s.Open(fmt.Sprintf("s%d", i), "", filepath.Join(dir, fmt.Sprint(i), archive.CurrentFile))
		stdout, stderr := openPipes(t, l)
		writeText(t, stdout, "hello\n")
		ends = append(ends, stdout, stderr)
		logs = append(logs, l)
	}
	testkit.Until(t, "all have read", func() bool {
		return !slices.ContainsFunc(logs, func(l *Log) bool { return l.Stats().Lines == 0 })
	})
	var heap, stack int64
	testkit.Until(t, "a silent service has given back its buffers", func() bool {
		runtime.GC() // The second collection frees the content of pools.
		runtime.ReadMemStats(&after)
		heap = (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / services
		stack = (int64(after.StackInuse) - int64(before.StackInuse)) / services
		return heap < 8<<10 // A buffer has 64 KiB.
	})
	t.Logf("a silent service: %d bytes of heap, %d of stacks", heap, stack)
	closeAll(ends...)
	closeSet(t, s)
}

func BenchmarkOneLine(b *testing.B) {
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	s := newSet(Options{Stdout: w})
	stdout, stderr, err := s.Open("x", "x", filepath.Join(b.TempDir(), archive.CurrentFile)).Pipes()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	in := bufio.NewReader(r)
	for b.Loop() {
		io.WriteString(stdout, "one line, through to the console\n")
		if _, err := in.ReadSlice('\n'); err != nil {
			b.Fatal(err)
		}
	}
	closeAll(stdout, stderr)
	closeSet(b, s)
	w.Close()
}
