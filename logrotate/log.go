package logrotate

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"hinit/internal/fault"
	"hinit/internal/redact"
)

// Log is the log of one service. Its methods don't block and may be called from any goroutine.
type Log struct {
	set     *Set
	name    string
	profile string
	path    string
	file    *file     // nil: console only
	sources [2]source // on the two consoles

	// Guarded by set.mu.
	current *run
	streams int // that are still read, of all runs
	dropped bool

	counters counters
	limiter  limiter
	secrets  atomic.Pointer[redact.Secrets] // nil: none
	watcher  atomic.Pointer[func([]byte)]   // nil: no watcher
}

type counters struct {
	lines, bytes, consoleDropped, suppressed atomic.Uint64
}

// Stats are a log's counters since it was opened. The file's counters go on when another log takes it over.
type Stats struct {
	Lines          uint64 // read from the pipes, and given to the sinks
	Bytes          uint64 // of these lines, with their newlines
	Suppressed     uint64 // of them, those that no sink got because of their rate; a line there says so too
	ConsoleDropped uint64 // lines not shown on the console; the notice there says so too
	FileLost       uint64 // lines not in the file; the gap marker there says so too
	LastError      string // the fault of the file, "" when there is none
}

// Stats returns the counters as they are now; they are not of one instant.
func (l *Log) Stats() Stats {
	st := Stats{
		Lines:          l.counters.lines.Load(),
		Bytes:          l.counters.bytes.Load(),
		Suppressed:     l.counters.suppressed.Load(),
		ConsoleDropped: l.counters.consoleDropped.Load(),
	}
	if l.file != nil {
		st.FileLost = l.file.losses.Load()
		if text := l.file.lastErr.Load(); text != nil {
			st.LastError = *text
		}
	}
	return st
}

// Pipes makes the stdout and stderr of the service's next run and starts to read them. It returns the ends for writing, in blocking
// mode and closed on exec; the caller hands them to the process and closes them. They belong to the actor's user, so that the
// process may open /dev/stdout. Pipes of earlier runs are still read.
func (l *Log) Pipes() (stdout, stderr *os.File, err error) {
	r := &run{log: l}
	var ends [2]*os.File
	for i := range r.streams {
		if err == nil {
			r.streams[i], ends[i], err = newPipe(r, i)
		}
	}
	if err == nil {
		err = l.begin(r)
	}
	if err != nil {
		for i, s := range r.streams {
			if s != nil {
				_ = ends[i].Close()
				_ = s.file.Close()
			}
		}
		return nil, nil, fmt.Errorf("cannot make the log pipes of %q: %w", l.name, err)
	}
	for _, s := range r.streams {
		go s.pump()
	}
	return ends[0], ends[1], nil
}

// begin makes r the current run, unless the log is closed.
func (l *Log) begin(r *run) error {
	l.set.mu.Lock()
	defer l.set.mu.Unlock()
	if l.set.closed || l.dropped {
		return errClosed
	}
	l.current = r
	l.set.began(l, r.streams[:]...)
	return nil
}

var errClosed = errors.New("the log is closed")

// Tail asks for the last lines of the current run, oldest first, each cut to 500 bytes. done gets them in a goroutine of this
// package, when all that is in the run's pipes now has been read, after about 100 ms at the latest. A line without an end counts.
// done must not block. Without a run it gets none.
func (l *Log) Tail(done func(lines []string)) {
	l.set.mu.Lock()
	r := l.current
	l.set.mu.Unlock()
	if r == nil {
		go done(nil)
		return
	}
	r.ask(done)
}

func streamName(index int) string { return [2]string{"stdout", "stderr"}[index] }

// newPipe makes the pipe of one stream of r. It returns the end for writing, too.
func newPipe(r *run, index int) (*stream, *os.File, error) {
	var p [2]int
	// Not os.Pipe: it makes both ends non-blocking, and a child would inherit that.
	err := fault.Before(fault.Pipe, r.log.name)
	if err == nil {
		err = unix.Pipe2(p[:], unix.O_CLOEXEC)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("pipe: %w", err)
	}
	read, write := p[0], os.NewFile(uintptr(p[1]), streamName(index))
	if err := unix.SetNonblock(read, true); err != nil {
		unix.Close(read)
		_ = write.Close()
		return nil, nil, fmt.Errorf("set non-blocking: %w", err)
	}
	if a := r.log.set.opts.Actor; a.Switches() {
		id := a.Identity()
		_ = unix.Fchown(p[1], int(id.UID), int(id.GID)) // without it only opening by name fails
	}
	pipe := os.NewFile(uintptr(read), r.log.name+" "+streamName(index))
	s, err := newStream(r, index, pipe)
	if err != nil {
		_ = errors.Join(pipe.Close(), write.Close())
		return nil, nil, err
	}
	return s, write, nil
}

// newStream makes one stream of r, which is read from a pipe.
func newStream(r *run, index int, pipe *os.File) (*stream, error) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &stream{run: r, index: index, direct: -1, file: pipe, raw: raw, lines: lines{room: &r.log.set.room, max: r.log.set.opts.MaxLine}}
	s.ready = s.read
	return s, nil
}

// Watch has seen called with the whole lines of the service, as they come, by the goroutines that read its output. It must not block,
// and must not keep what it gets. Nil ends that.
func (l *Log) Watch(seen func(lines []byte)) {
	if seen == nil {
		l.watcher.Store(nil)
		return
	}
	l.watcher.Store(&seen)
}

// Hide says which texts are secrets of the service, besides tokens of known shapes: from now on the console shows
// [redact.Masked] in their place. Texts of less than eight bytes are ignored. Without [Options].Mask it has no effect.
func (l *Log) Hide(texts []string) {
	if l.set.opts.Mask {
		l.secrets.Store(redact.NewSecrets(texts))
	}
}
