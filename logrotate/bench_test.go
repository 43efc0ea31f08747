package logrotate

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// BenchmarkPump moves 100-byte lines from a pipe into a rotated file with timestamps and a console that somebody reads.
func BenchmarkPump(b *testing.B) {
	for _, bc := range []struct {
		name          string
		console, file bool
	}{{"both", true, true}, {"file", false, true}, {"console", true, false}} {
		b.Run(bc.name, func(b *testing.B) { benchmarkPump(b, bc.console, bc.file) })
	}
}

func benchmarkPump(b *testing.B, console, file bool) {
	line := append(bytes.Repeat([]byte{'x'}, 99), '\n')
	block := bytes.Repeat(line, 640)
	var o Options
	if console {
		r, w, err := os.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		defer r.Close()
		go io.Copy(io.Discard, r)
		defer w.Close()
		o.Stdout = w
	}
	path := ""
	if file {
		path = filepath.Join(b.TempDir(), Current)
	}
	s := New(o)
	l := s.Open("gateway-coder", "coder", path)
	stdout, stderr, err := l.Pipes()
	if err != nil {
		b.Fatal(err)
	}
	stderr.Close()
	b.SetBytes(int64(len(block)))
	b.ReportAllocs()
	var before, after syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	for b.Loop() {
		if _, err := stdout.Write(block); err != nil {
			b.Fatal(err)
		}
	}
	stdout.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	gb := float64(b.N) * float64(len(block)) / 1e9
	b.ReportMetric((cpu(after)-cpu(before))/gb, "cpu-s/GB")
	b.ReportMetric(float64(l.Stats().ConsoleDropped)/float64(l.Stats().Lines), "dropped/line")
}

func cpu(r syscall.Rusage) float64 {
	return time.Duration(syscall.TimevalToNsec(r.Utime) + syscall.TimevalToNsec(r.Stime)).Seconds()
}
