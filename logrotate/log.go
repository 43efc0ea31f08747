package logrotate

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
	"hinit/internal/redact"
)

// Log is the log of one service. Its methods don't block and may be called from any goroutine.
type Log struct {
	set     *Set
	name    string
	profile string
	path    string
	file    *file     // Log file; nil: the log goes only to the console.
	sources [2]source // Sources of the console lines: one for stdout, one for stderr.

	// set.mu guards the next four fields.
	currentRun  *run
	runCount    uint64 // Number of runs so far.
	openStreams int    // Number of pipes, of all runs, that are still being read.
	dropped     bool   // Whether Set.Drop was called.

	counters counters
	limiter  rateLimiter
	secrets  atomic.Pointer[redact.Secrets] // Secrets to hide on the console; nil: none.
	watcher  atomic.Pointer[func([]byte)]   // Function registered by [Log.SetWatcher]; nil: none.
}

type counters struct {
	lines, bytes, consoleDropped, suppressed atomic.Uint64
}

// Stats counts what has happened to the lines of a log since it was opened. LinesLost and LastError belong to the file, so logs
// with the same file share them.
type Stats struct {
	Lines uint64 // Number of lines read from the pipes.
	Bytes uint64 // Total length of the lines that were read, with newlines.
	// Suppressed counts the lines above the rate limit, which were not written to the sinks. Lines includes them, and a
	// record in the log states their number.
	Suppressed     uint64
	ConsoleDropped uint64 // Lines missing on the console. A notice states their number, unless the console can't be written.
	LinesLost      uint64 // Lines missing in the file, where a gap marker states their number.
	LastError      string // Current error of the file, or "".
}

// Stats returns the counters. Stats reads the counters one after another, so a line may be in one counter and not yet in
// another.
func (l *Log) Stats() Stats {
	st := Stats{
		Lines:          l.counters.lines.Load(),
		Bytes:          l.counters.bytes.Load(),
		Suppressed:     l.counters.suppressed.Load(),
		ConsoleDropped: l.counters.consoleDropped.Load(),
	}
	if l.file != nil {
		st.LinesLost = l.file.lostLineCount.Load()
		if text := l.file.lastErr.Load(); text != nil {
			st.LastError = *text
		}
	}
	return st
}

// Pipes creates the pipes for stdout and stderr of the service's next process, and starts to read them. It returns the write
// ends, which are blocking and close-on-exec. The caller passes them to the process and then closes them. The pipes belong to
// the agent's user, so that the process can open /dev/stdout. Earlier processes keep their pipes, see maxRuns.
func (l *Log) Pipes() (stdout, stderr *os.File, err error) {
	r := &run{log: l}
	var ends [2]*os.File
	for i := range r.streams {
		if err == nil {
			r.streams[i], ends[i], err = newPipe(r, i)
		}
	}
	if err == nil {
		err = l.beginRun(r)
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

// maxRuns is the number of runs of a service whose pipes are read at the same time. A process that outlives its run may hold
// a pipe open for ever, and each pipe takes a descriptor and a goroutine.
const maxRuns = 8

// beginRun makes r the current run of the service. If more than maxRuns runs now have pipes, it stops reading the pipes of the
// oldest run. It returns an error if the log is closed.
func (l *Log) beginRun(r *run) error {
	l.set.mu.Lock()
	defer l.set.mu.Unlock()
	if l.set.closed || l.dropped {
		return errClosed
	}
	l.runCount++
	l.currentRun, r.number = r, l.runCount
	l.set.addStreams(l, r.streams[:]...)
	if l.openStreams > 2*maxRuns {
		for st := range l.set.liveStreams {
			if old := st.run; old.log == l && old.number+maxRuns <= r.number {
				st.stop()
			}
		}
	}
	return nil
}

var errClosed = errors.New("the log is closed")

// Tail asks for the last lines of the current run, oldest first, each cut to 500 bytes. They include unfinished lines. done gets
// them in another goroutine, after the package has read the present content of the pipes, or after about 100 ms. done must not
// block. If no run has begun, done gets nil.
func (l *Log) Tail(done func(lines []string)) {
	l.set.mu.Lock()
	r := l.currentRun
	l.set.mu.Unlock()
	if r == nil {
		go done(nil)
		return
	}
	r.requestTail(done)
}

func streamName(index int) string { return [2]string{"stdout", "stderr"}[index] }

// newPipe creates the pipe for stdout or stderr of r. It returns the stream that reads the pipe, and the write end.
func newPipe(r *run, index int) (*stream, *os.File, error) {
	var p [2]int
	// os.Pipe would make both ends non-blocking, and the service would inherit this mode.
	err := faultinject.RunCall(faultinject.CallPipe, r.log.name, func() error { return unix.Pipe2(p[:], unix.O_CLOEXEC) })
	if err != nil {
		return nil, nil, fmt.Errorf("pipe: %w", err)
	}
	read, write := p[0], os.NewFile(uintptr(p[1]), streamName(index))
	if err := unix.SetNonblock(read, true); err != nil {
		unix.Close(read)
		_ = write.Close()
		return nil, nil, fmt.Errorf("set non-blocking: %w", err)
	}
	if a := r.log.set.opts.Actor; a.SwitchesIdentity() {
		id := a.Identity()
		_ = unix.Fchown(p[1], int(id.UID), int(id.GID)) // An error only means that the process can't open /dev/stdout by name.
	}
	pipe := os.NewFile(uintptr(read), r.log.name+" "+streamName(index))
	s, err := newStream(r, index, pipe)
	if err != nil {
		_ = errors.Join(pipe.Close(), write.Close())
		return nil, nil, err
	}
	return s, write, nil
}

// newStream returns a stream of r that reads pipe. The caller starts its pump.
func newStream(r *run, index int, pipe *os.File) (*stream, error) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &stream{run: r, index: index, directFD: -1, file: pipe, rawConn: raw, lines: lineSplitter{budget: &r.log.set.memoryBudget, maxLine: r.log.set.opts.MaxLine}}
	s.readFunc = s.read
	return s, nil
}

// SetWatcher makes the pumps call seen with each batch of complete lines of the service. seen must not block or keep the slice.
// Nil ends the calls.
func (l *Log) SetWatcher(seen func(lines []byte)) { l.watcher.Store(&seen) }

// HideSecrets replaces the known secrets of the service. From now on the console shows [redact.Masked] in place of these texts,
// besides tokens of known shapes. Texts shorter than eight bytes are ignored, because they would match too much. Without
// [Options].Mask, HideSecrets has no effect.
func (l *Log) HideSecrets(texts []string) {
	if l.set.opts.Mask {
		l.secrets.Store(redact.NewSecrets(texts))
	}
}
