package logrotate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"

	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/redact"
)

// readSize is the number of bytes that a pump reads at once: the default size of a pipe.
const readSize = 64 << 10

// Set holds the logs of all services, and the console that they share. Create one with [New].
type Set struct {
	opts          Options
	consoles      [2]*console  // Consoles for stdout and stderr.
	inputBuffers  sync.Pool    // *[]byte values: MaxLine bytes for an unfinished line, then readSize bytes.
	outputBuffers sync.Pool    // *[]byte values for formatted lines, empty.
	memoryBudget  bufferBudget // Shared limit for unfinished lines and kept lines.

	mu              sync.Mutex // No goroutine holds mu during I/O.
	closed          bool
	logs            map[string]*Log
	files           map[string]*file
	liveStreams     map[*stream]struct{}
	idleWriters     []*lumberjack.Logger // Writers of closed files, to use again: lumberjack never ends a writer's goroutine.
	allStreamsEnded chan struct{}        // Closed when Close was called and no stream is live.
	freeze          *freezeCall          // State between Freeze and Thaw; otherwise nil.

	background sync.WaitGroup // Counter of short-lived goroutines, for which flush waits.
	compressor compressor
}

// New creates a Set and starts the goroutines of the console. [Set.Close] ends them.
func New(o Options) *Set {
	o = o.withDefaults()
	s := &Set{
		opts:            o,
		logs:            make(map[string]*Log),
		files:           make(map[string]*file),
		liveStreams:     make(map[*stream]struct{}),
		allStreamsEnded: make(chan struct{}),
	}
	// The budget is at most a quarter of this process's memory limit.
	s.memoryBudget.remaining.Store(min(maxBudget, debug.SetMemoryLimit(-1)/4))
	s.inputBuffers.New = func() any { return new(make([]byte, o.MaxLine+readSize)) }
	// Timestamps make the output longer than the input. Twice the size is enough for lines of usual length, so each read causes
	// one write. It is also enough for any single line.
	s.outputBuffers.New = func() any { return new(make([]byte, 0, 2*(o.MaxLine+readSize))) }
	s.compressor.opts = o
	s.compressor.ctx, s.compressor.cancel = context.WithCancel(context.Background())
	s.consoles[0] = newConsole("stdout", o.Stdout, o)
	s.consoles[1] = newConsole("stderr", o.Stderr, o)
	return s
}

// Open returns the log of the service name, and creates it if necessary. The console shows it as profile; "" means name. file is
// the path of the log file, which the first line creates; "" means console only. If the log exists already, Open ignores profile
// and file. It doesn't block.
func (s *Set) Open(name, profile, file string) *Log {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.logs[name]; l != nil {
		return l
	}
	profile = cmp.Or(profile, name)
	l := &Log{set: s, name: name, profile: profile, path: file}
	l.limiter.writeLines, l.limiter.recordDelay = l.writeToSinks, s.opts.period
	for i := range l.sources {
		l.sources[i] = source{name: name, profile: profile, file: file, droppedTotal: &l.counters.consoleDropped, secrets: &l.secrets}
	}
	if file != "" {
		l.file = s.useFile(l)
	}
	s.logs[name] = l
	return l
}

// useFile returns the file at the path of l, and counts l as a user of it. The caller holds mu.
func (s *Set) useFile(l *Log) *file {
	f := s.files[l.path]
	if f == nil {
		f = &file{set: s, path: l.path, onDisk: onDisk{fd: -1}, service: l.name}
		if n := len(s.idleWriters); n > 0 {
			f.writer, s.idleWriters = s.idleWriters[n-1], s.idleWriters[:n-1]
		} else {
			f.writer = newWriter()
		}
		f.archives.Dir = filepath.Dir(l.path)
		limits := s.opts.limits
		f.limits.Store(&limits)
		s.files[l.path] = f
	}
	f.userCount++
	f.useCount++
	return f
}

// releaseFile ends the use of f by one log. If no other log uses f, releaseFile closes f, which may block on the disk.
func (s *Set) releaseFile(f *file) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// f stays in the map until it is closed, so that a path never has two files. finish runs without the lock. Meanwhile
	// another Log may start to use f and even release it again, so that f is open again. In that case, repeat.
	for uses := uint64(0); f.userCount == 1 && uses != f.useCount; {
		uses = f.useCount
		s.mu.Unlock()
		if err := f.finishFile(); err != nil {
			s.opts.Warn(f.service, err.Error())
		}
		s.mu.Lock()
	}
	f.userCount--
	if f.userCount == 0 {
		delete(s.files, f.path)
		s.idleWriters = append(s.idleWriters, f.writer)
		s.background.Go(guard.WrapFunc("forgetting the log of "+f.service, f.dropKeptLines))
	}
}

// Drop removes the log of the service name from the Set. Its pipes are still read to their ends, and then its file is closed.
// Afterwards [Log.Pipes] of this log fails, and Open with the same name creates a new log. Drop ignores an unknown name and
// doesn't block.
func (s *Set) Drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.logs[name]
	if l == nil {
		return
	}
	delete(s.logs, name)
	l.dropped = true
	if l.openStreams == 0 && !s.closed { // Otherwise Close closes all files.
		s.releaseLogFile(l)
	}
}

// releaseLogFile releases the file of a dropped log in the background, because that may block on the disk. The caller holds
// mu, and calls releaseLogFile once for each Log.
func (s *Set) releaseLogFile(l *Log) {
	if l.file != nil {
		s.background.Go(guard.WrapFunc("closing the log of "+l.name, func() { s.releaseFile(l.file) }))
	}
}

// addStreams counts new streams of l as live. removeStream undoes it. The caller holds mu.
func (s *Set) addStreams(l *Log, streams ...*stream) {
	for _, st := range streams {
		s.liveStreams[st] = struct{}{}
		l.openStreams++
	}
}

// removeStream is called by the pump of a stream that has ended. After the last stream of a dropped log, it releases the file
// of the log. After the last stream of all, Close or Freeze continues.
func (s *Set) removeStream(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.liveStreams, st)
	l := st.run.log
	l.openStreams--
	if l.openStreams == 0 && l.dropped {
		s.releaseLogFile(l)
	}
	if len(s.liveStreams) == 0 && s.closed {
		close(s.allStreamsEnded)
	}
	s.freeze.closeIfParked(len(s.liveStreams))
}

// Console returns a writer for the init's own lines to the container's stdout (1) or stderr (2). Each Write must consist of
// complete lines; a missing last newline is added. Write never blocks or fails: lines without room in the queue are dropped, and
// a notice counts them. In the modes Prefixed and JSON, the lines appear under the profile "hinit".
func (s *Set) Console(stream int) io.Writer {
	return &initWriter{console: s.consoles[stream-1], source: &source{name: "hinit", profile: "hinit", droppedTotal: new(atomic.Uint64), secrets: new(atomic.Pointer[redact.Secrets])}}
}

// Sync waits until all lines in the queues of the consoles are written, or until ctx ends.
func (s *Set) Sync(ctx context.Context) error {
	for _, c := range s.consoles {
		if !pause.Until(ctx, c.whenWritten()) {
			return fmt.Errorf("cannot write out the container's %s: %w", c.stream, context.Cause(ctx))
		}
	}
	return nil
}

// closeReserve is the last part of Close's time limit, for the last writes to files and console. Before this part, Close
// waits for the pipes.
const closeReserve = 200 * time.Millisecond

// Close waits for the ends of all pipes, and then writes and closes files and console. If pipes are still open shortly before the
// deadline of ctx, it reads what they contain and closes them; the error names their services. If ctx has no deadline, Close
// waits until ctx is cancelled, and then up to 200 ms more. On a closed Set only Stats and Tail work.
func (s *Set) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	if len(s.liveStreams) == 0 {
		close(s.allStreamsEnded)
	}
	s.mu.Unlock()
	s.compressor.cancel()

	patience, cancel := context.WithCancel(ctx)
	defer cancel()
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		patience, cancel = context.WithTimeout(ctx, left-min(s.opts.closeReserve, left/2))
		defer cancel()
	}
	var errs []error
	if !pause.Until(patience, s.allStreamsEnded) {
		errs = append(errs, s.stopPumps())
	}

	rest := ctx
	if ctx.Err() != nil {
		rest, cancel = context.WithTimeout(context.WithoutCancel(ctx), s.opts.closeReserve)
		defer cancel()
	}
	done := make(chan error, 1)
	go func() { done <- s.flushAndClose() }()
	select {
	case err := <-done:
		errs = append(errs, err)
	case <-rest.Done():
		errs = append(errs, fmt.Errorf("cannot finish the logs in time: %w", context.Cause(rest)))
	}
	return errors.Join(errs...)
}

// stopPumps makes every pump exit when it has read the present content of its pipe. The error names the services whose pipes were
// still open.
func (s *Set) stopPumps() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.liveStreams {
		st.stop()
	}
	for _, c := range s.consoles {
		c.setNoWaiting(true)
	}
	if len(s.liveStreams) == 0 {
		return nil
	}
	return fmt.Errorf("cannot read the logs of %q to their end: a process keeps them open", s.readingServices(nil))
}

// readingServices returns the sorted names of the services with live streams. It leaves out the streams in except. The caller
// holds mu.
func (s *Set) readingServices(except map[*stream]struct{}) []string {
	var names []string
	for st := range s.liveStreams {
		if _, is := except[st]; !is {
			names = append(names, st.run.log.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// flushAndClose waits for the pumps and the background work, then writes the remaining lines and closes files and consoles.
func (s *Set) flushAndClose() error {
	<-s.allStreamsEnded
	s.background.Wait()
	s.compressor.work.Wait()
	var errs []error
	s.mu.Lock()
	files := slices.Collect(maps.Values(s.files))
	s.mu.Unlock()
	for _, f := range files {
		errs = append(errs, f.finishFile())
	}
	for _, c := range s.consoles {
		c.close()
	}
	return errors.Join(errs...)
}

const (
	// maxBudget is the maximum number of bytes for the unfinished lines and kept lines of all services together. The first bytes
	// of each buffer (unfinishedOutsideBudget or keptOutsideBudget) don't count, so that every service always has some.
	maxBudget = 16 << 20
	// keptOutsideBudget is the number of bytes of kept lines (lines that wait while their file can't be written) that each file
	// may hold without using the budget.
	keptOutsideBudget = 16 << 10
)

// bufferBudget is the number of bytes by which the buffers of all services may still grow together. Without it, an agent could
// fill PID 1's memory: with long unfinished lines in many runs, or by making its log file unwritable so that lines are kept.
type bufferBudget struct{ remaining atomic.Int64 }

// grow returns b with a capacity of n bytes, or of less if the budget is used up. If possible it at least doubles the
// capacity, up to limit. The first spare bytes of a buffer don't count against the budget.
func (r *bufferBudget) grow(b []byte, n, spare, limit int) []byte {
	if n <= cap(b) {
		return b
	}
	for _, size := range [...]int{min(max(n, 2*cap(b)), limit), min(n, limit), min(spare, limit)} {
		if size > cap(b) && r.reserve(int64(max(size, spare)-max(cap(b), spare))) {
			return append(make([]byte, 0, size), b...)
		}
	}
	return b
}

// reserve takes n bytes out of the budget. If fewer are left, it takes none and returns false.
func (r *bufferBudget) reserve(n int64) bool {
	if n == 0 || r.remaining.Add(-n) >= 0 {
		return true
	}
	r.remaining.Add(n)
	return false
}

// charge takes the size of b, a buffer from the previous program of PID 1, out of the budget, even if too little is left.
// free returns the size of a buffer that is no longer used to the budget.
func (r *bufferBudget) charge(b []byte, spare int) { r.remaining.Add(-int64(max(cap(b)-spare, 0))) }

func (r *bufferBudget) free(b []byte, spare int) { r.remaining.Add(int64(max(cap(b)-spare, 0))) }
