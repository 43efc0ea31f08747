package logrotate

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/logrotate/archive"
)

// BenchmarkPump moves 100-byte lines from a pipe into a rotated file with timestamps, and to a
// console with a reader.
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
		path = filepath.Join(b.TempDir(), archive.CurrentFile)
	}
	s := newSet(o)
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
	b.ReportMetric((cpuSeconds(after)-cpuSeconds(before))/gb, "cpu-s/GB")
	b.ReportMetric(float64(l.Stats().ConsoleDropped)/float64(l.Stats().Lines), "dropped/line")
}

// flooderEnv makes this test binary a process that writes the given number of 100-byte lines, each
// with one write.
const flooderEnv = "LOGROTATE_TEST_FLOODER"

func runFlooder(order string) int {
	n, err := strconv.Atoi(order)
	if err != nil {
		return 1
	}
	line := append(bytes.Repeat([]byte{'x'}, 99), '\n')
	for range n {
		if _, err := unix.Write(1, line); err != nil {
			return 1
		}
	}
	return 0
}

// BenchmarkSmallWrites measures the processor time of a pump for lines that another process writes
// one by one.
func BenchmarkSmallWrites(b *testing.B) {
	s := newSet(Options{})
	stdout, stderr, err := s.Open("gateway-coder", "coder", filepath.Join(b.TempDir(), archive.CurrentFile)).Pipes()
	if err != nil {
		b.Fatal(err)
	}
	stderr.Close()
	const lines = 200_000
	b.SetBytes(100 * lines)
	var before, after syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	for b.Loop() {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), flooderEnv+"="+strconv.Itoa(lines))
		cmd.Stdout = stdout
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
	}
	syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	b.StopTimer()
	b.ReportMetric((cpuSeconds(after)-cpuSeconds(before))/(float64(b.N)*100*lines/1e9), "cpu-s/GB")
	stdout.Close()
	closeSet(b, s)
}

func cpuSeconds(r syscall.Rusage) float64 {
	return time.Duration(syscall.TimevalToNsec(r.Utime) + syscall.TimevalToNsec(r.Stime)).Seconds()
}

// BenchmarkWriter compares lumberjack with bare system calls.
func BenchmarkWriter(b *testing.B) {
	batch := bytes.Repeat([]byte{'x'}, 64<<10/100*(100+stampLen))
	openFile := func(b *testing.B) (fd int, dir string) {
		b.Helper()
		dir = b.TempDir()
		fd, err := unix.Open(filepath.Join(dir, archive.CurrentFile), unix.O_RDWR|unix.O_APPEND|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { unix.Close(fd) })
		return fd, dir
	}
	emptied := func(b *testing.B, fd, n int) { // emptied truncates the file as often as it would be rotated.
		if n%11 == 0 {
			if err := unix.Ftruncate(fd, 0); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("write/lumberjack", func(b *testing.B) {
		fd, _ := openFile(b)
		lj := newWriter()
		lj.Filename = "/proc/self/fd/" + strconv.Itoa(fd)
		defer lj.Close()
		b.SetBytes(int64(len(batch)))
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			emptied(b, fd, n)
			if _, err := lj.Write(batch); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("write/descriptor", func(b *testing.B) {
		fd, _ := openFile(b)
		b.SetBytes(int64(len(batch)))
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			emptied(b, fd, n)
			if _, err := unix.Write(fd, batch); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("open/lumberjack", func(b *testing.B) {
		fd, _ := openFile(b)
		lj := newWriter()
		lj.Filename = "/proc/self/fd/" + strconv.Itoa(fd)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := lj.Write(nil); err != nil {
				b.Fatal(err)
			}
			if err := lj.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
