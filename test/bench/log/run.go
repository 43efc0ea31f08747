package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// agentID is the user ID of hinit's services.
const agentID = 10000

// patience limits every wait.
const patience = 2 * time.Minute

// run is one measurement of one logger.
type run struct {
	bench           *bench
	dir, logs, pipe string
	kind            string
	console         bool

	cmd       *exec.Cmd
	others    []*exec.Cmd
	heldFiles []*os.File
	drain     *exec.Cmd
	shown     string // File with the number of lines that reached the console.
}

func (b *bench) newRun(kind string, console bool) (*run, error) {
	b.runs++
	r := &run{bench: b, kind: kind, console: console, dir: filepath.Join(b.work, strconv.Itoa(b.runs))}
	r.logs, r.pipe, r.shown = filepath.Join(r.dir, "log"), filepath.Join(r.dir, "go"), filepath.Join(r.dir, "shown")
	if err := os.MkdirAll(r.logs, 0o755); err != nil {
		return nil, err
	}
	return r, errors.Join(unix.Mkfifo(r.pipe, 0o666), os.Chmod(r.pipe, 0o666))
}

func (r *run) writer() []string {
	return []string{r.bench.self, r.pipe, strconv.Itoa(r.bench.lines), r.kind}
}

// startLogger starts the logger. Another process reads its console, if it has one.
func (r *run) startLogger(cmd *exec.Cmd) error {
	if r.console {
		in, out, err := os.Pipe()
		if err != nil {
			return err
		}
		defer out.Close()
		defer in.Close()
		r.drain = exec.Command(r.bench.self, r.shown)
		r.drain.Env = append(os.Environ(), roleVar+"=drain")
		r.drain.Stdin, r.drain.Stderr = in, os.Stderr
		if err := r.drain.Start(); err != nil {
			return err
		}
		cmd.Stdout = out
	}
	r.cmd = cmd
	return cmd.Start()
}

func isolated() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
}

func (b *bench) copySelf() (string, error) {
	text, err := os.ReadFile(b.self)
	if err != nil {
		return "", err
	}
	to := filepath.Join(b.work, "bench")
	return to, os.WriteFile(to, text, 0o755) // The agent's user must be able to execute the copy.
}

func (b *bench) measure(l logger, kind string) (sample, error) {
	r, err := b.newRun(kind, l.console)
	if err != nil {
		return sample{}, err
	}
	defer os.RemoveAll(r.dir)
	if err := l.start(r); err != nil {
		return sample{}, err
	}
	s, err := r.measureWriter()
	return s, errors.Join(err, r.end(&s))
}

// measureWriter lets the writer begin, and waits until its last line is in the log file.
func (r *run) measureWriter() (sample, error) {
	fifo, err := openWriter(r.pipe)
	if err != nil {
		return sample{}, fmt.Errorf("the writer does not begin: %w", err)
	}
	defer fifo.Close()
	before, err := cpuTime(r.cmd.Process.Pid)
	if err != nil {
		return sample{}, err
	}
	start := time.Now()
	for n := 0; !r.isComplete(n); n++ {
		if time.Since(start) > patience {
			return sample{}, errors.New("the last line is not in the file")
		}
		<-time.After(2 * time.Millisecond)
	}
	wall := time.Since(start)
	after, err := cpuTime(r.cmd.Process.Pid)
	return sample{Seconds: wall.Seconds(), CPU: (after - before).Seconds(), Shown: -1}, err
}

func openWriter(path string) (*os.File, error) {
	end := time.Now().Add(patience)
	for {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if !errors.Is(err, unix.ENXIO) || time.Now().After(end) {
			return nil, err
		}
		<-time.After(time.Millisecond)
	}
}

// isComplete reports whether the log has the last line. Only every tenth call searches the archives,
// because that costs more.
func (r *run) isComplete(attempt int) bool {
	if endsWithMark(filepath.Join(r.logs, "current")) {
		return true
	}
	if attempt%10 != 9 {
		return false
	}
	files, _ := filepath.Glob(filepath.Join(r.logs, "*"))
	return slices.ContainsFunc(files, endsWithMark)
}

func endsWithMark(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() < int64(len(endMark)+1) {
		return false
	}
	tail := make([]byte, len(endMark)+1)
	if _, err := f.ReadAt(tail, st.Size()-int64(len(tail))); err != nil {
		return false
	}
	return string(tail) == endMark+"\n"
}

// end stops all processes and completes the sample.
func (r *run) end(s *sample) error {
	for _, f := range r.heldFiles {
		_ = f.Close()
	}
	_ = r.cmd.Process.Signal(unix.SIGTERM)
	ended := make(chan error, 1)
	go func() { ended <- r.cmd.Wait() }()
	select {
	case <-ended: //nolint:errcheck // the logger's exit code doesn't matter here
	case <-time.After(20 * time.Second):
		_ = r.cmd.Process.Kill() // The process may have ended.
		return errors.New("the logger does not end")
	}
	for _, o := range r.others {
		if err := o.Wait(); err != nil {
			return fmt.Errorf("the writer: %w", err)
		}
	}
	if r.drain == nil {
		return nil
	}
	if err := r.drain.Wait(); err != nil {
		return fmt.Errorf("the console's reader: %w", err)
	}
	text, err := os.ReadFile(r.shown)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(string(text))
	s.Shown = float64(n) / float64(r.bench.lines)
	return err
}

// cpuTime returns the processor time of a process without its children (proc(5)).
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, errors.New("cannot read the CPU time")
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on all architectures that hinit supports.
	utime, err1 := strconv.Atoi(fields[11])
	stime, err2 := strconv.Atoi(fields[12])
	return time.Duration(utime+stime) * tick, errors.Join(err1, err2)
}
