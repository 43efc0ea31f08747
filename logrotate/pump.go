package logrotate

import (
	"bytes"
	"errors"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/guard"
	"hinit/internal/trust"
)

// tailTimeout is the longest time that [Log.Tail] waits for output that is still in the pipes.
const tailTimeout = 100 * time.Millisecond

// run is one process of a service, as the log sees it: its two pipes and the last lines of its output.
type run struct {
	log             *Log
	number          uint64 // Number of the run in its log; 0 for all runs of an earlier program of PID 1.
	streams         [2]*stream
	lastTailRequest atomic.Uint64 // Number of the last call of Log.Tail.

	mu                 sync.Mutex // No goroutine holds mu during I/O.
	tail               tailBuffer
	unfinishedLines    [2]string      // Unfinished line of each stream at the last call of recordTailReached.
	finishedRequests   [2]uint64      // Number of the last TailLines request whose output each stream has read completely.
	unansweredRequests []*tailRequest // Requests that are not answered yet.
}

// tailRequest is a call of Log.Tail that is not answered yet.
type tailRequest struct {
	number uint64
	done   func([]string)
	timer  *time.Timer
}

// requestTail registers a call of Log.Tail, and wakes the pumps so that they read the present content of the pipes.
func (r *run) requestTail(done func([]string)) {
	r.mu.Lock()
	q := &tailRequest{number: r.lastTailRequest.Add(1), done: done}
	q.timer = time.AfterFunc(r.log.set.opts.tailTimeout, guard.WrapFunc("answering for a log", func() { r.answerRequest(q) }))
	r.unansweredRequests = append(r.unansweredRequests, q)
	ready := min(r.finishedRequests[0], r.finishedRequests[1]) >= q.number
	r.mu.Unlock()
	if ready { // Both pipes have ended, so no pump will answer.
		guard.Go("answering for a log", func() { r.answerRequest(q) })
		return
	}
	for i, s := range r.streams {
		r.log.set.consoles[i].setUrgent(&r.log.sources[i], true)
		s.wake()
	}
}

// recordTailReached records that the stream with this index has read its pipe up to the content that it had when TailLines
// request n came. open is the stream's unfinished last line. recordTailReached then answers each request that both streams have
// reached. The pumps call it.
func (r *run) recordTailReached(index int, n uint64, open []byte) {
	r.mu.Lock()
	r.finishedRequests[index] = n
	r.unfinishedLines[index] = string(open[:min(len(open), maxTailLine)])
	reached := min(r.finishedRequests[0], r.finishedRequests[1])
	ready := slices.DeleteFunc(slices.Clone(r.unansweredRequests), func(q *tailRequest) bool { return q.number > reached })
	r.mu.Unlock()
	for _, q := range ready {
		r.answerRequest(q)
	}
}

// answerRequest calls the callback of q with the last lines of the run. Only the first call for a request has an effect, because a
// pump and the timer may both answer it.
func (r *run) answerRequest(q *tailRequest) {
	r.mu.Lock()
	at := slices.Index(r.unansweredRequests, q)
	if at < 0 {
		r.mu.Unlock()
		return
	}
	r.unansweredRequests = slices.Delete(r.unansweredRequests, at, at+1)
	lines := r.tail.lines()
	for _, open := range r.unfinishedLines {
		if open != "" {
			lines = append(lines, open)
		}
	}
	lines = lines[max(0, len(lines)-r.log.set.opts.TailLines):]
	last := len(r.unansweredRequests) == 0
	r.mu.Unlock()
	if last {
		for i := range r.streams {
			r.log.set.consoles[i].setUrgent(&r.log.sources[i], false)
		}
	}
	q.timer.Stop()
	q.done(lines)
}

// stream reads one pipe of a run. Its pump, the goroutine that reads, is the only user of the fields that are neither atomic nor
// guarded by mu.
type stream struct {
	run      *run
	index    int        // Index of the stream: 0 for stdout, 1 for stderr.
	mu       sync.Mutex // Guards file, which wake uses and changePace replaces; no goroutine holds mu during I/O.
	file     *os.File
	rawConn  syscall.RawConn
	readFunc func(fd uintptr) bool // The method value s.read, stored so that waiting allocates nothing.
	lines    lineSplitter
	pacer    readPacer
	directFD int // Descriptor that the pump reads without the poller during a flood; otherwise -1.
	stopping atomic.Bool
	freezing atomic.Bool // Whether [Set.Freeze] has asked the pump to stop.

	buf       *[]byte // Read buffer from Set.inputs; nil while the pump waits for data.
	lastRead  int
	err       error
	bytesRead uint64 // Number of bytes read.

	answeredRequest   uint64 // Number of the last TailLines request that this stream has answered.
	tailTarget        uint64 // Value of bytesRead at which all TailLines requests up to tailTargetRequest are answered.
	tailTargetRequest uint64
}

// wake makes a waiting pump look at stopping, freezing and new TailLines requests. It doesn't block.
func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	// During a flood s.file is closed, so this deadline has no effect. The pump then looks at the flags after each pause.
	_ = s.file.SetReadDeadline(time.Unix(1, 0))
}

// stop tells the pump to exit when it has read the present content of the pipe. Processes may still have the pipe open.
func (s *stream) stop() {
	s.stopping.Store(true)
	s.wake()
}

// pump is the goroutine that reads a pipe. It exits at the end of the pipe, or when [Set.Freeze] stops it.
func (s *stream) pump() {
	defer guard.CatchPanic("reading the output of " + s.run.log.name)
	if s.readPipe() {
		s.close()
		s.run.log.set.removeStream(s)
	} else {
		s.run.log.set.recordParked(s)
	}
}

// readPipe reads the pipe and delivers its lines until the end of the pipe. It returns false if Freeze asked it to stop.
func (s *stream) readPipe() bool {
	last := uint64(math.MaxUint64) // Value of total at which to stop.
	for {
		if s.freezing.Load() {
			s.releaseBuffer()
			return false
		}
		if s.pacer.pauseNext && !s.stopping.Load() {
			time.Sleep(max(s.pacer.pause, s.run.log.set.opts.floodPause)) //nolint:forbidigo // the pause itself is intended: lines collect meanwhile
		}
		tailRequest, stopping := s.run.lastTailRequest.Load(), s.stopping.Load()
		err := s.awaitData()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// Clear the deadline that wake has set. The caller of wake sets its flag before the call, and the loop reads the
			// flags after this line, so it misses no flag.
			_ = s.file.SetReadDeadline(time.Time{})
			continue
		}
		pause := err == nil && errors.Is(s.err, unix.EAGAIN)
		if err != nil || s.lastRead == 0 && !pause || pause && stopping {
			break // End of the pipe, an error, or an empty pipe after a call of stop.
		}
		if s.lastRead > 0 {
			s.bytesRead += uint64(s.lastRead)
			s.deliver(s.lines.feed(*s.buf, s.lastRead))
			s.releaseBuffer()
		}
		if s.pacer.recordRead(s.lastRead, readSize, s.run.log.set.opts.floodWindow, time.Now()) {
			s.changePace()
		}
		if stopping && last == math.MaxUint64 {
			last = s.bytesRead + s.queuedBytes()
		}
		if s.bytesRead >= last {
			break
		}
		s.answerFinishedTails(tailRequest, pause)
	}
	s.releaseBuffer()
	s.deliver(s.lines.takeUnfinished())
	s.run.log.limiter.writeRecord(s.index)
	s.run.recordTailReached(s.index, math.MaxUint64, nil)
	return true
}

// read reads the pipe once. It is the callback of raw.Read, which calls it immediately. If read returns false, raw.Read calls it
// again when the poller reports data. A waiting pump holds no buffer, because there may be thousands of pumps.
func (s *stream) read(fd uintptr) bool {
	if s.buf == nil {
		s.buf = s.run.log.set.inputBuffers.Get().(*[]byte)
	}
	s.lastRead, s.err = blocking.Get(blocking.ShortCalls, func() (int, error) {
		return trust.Retry(func() (int, error) { return unix.Read(int(fd), (*s.buf)[s.lines.maxLine:]) })
	})
	if s.err == nil {
		return true
	}
	s.lastRead = 0
	if errors.Is(s.err, unix.EAGAIN) {
		s.releaseBuffer()
		return s.stopping.Load() || s.freezing.Load() || s.answeredRequest < s.run.lastTailRequest.Load()
	}
	return true
}

// runShortCall does an operation on a pipe that never blocks. A turn of [blocking.ShortCalls] limits how many threads the pumps
// occupy at a time.
func runShortCall(do func() error) error { return blocking.Do(blocking.ShortCalls, do) }

func (s *stream) releaseBuffer() {
	if s.buf != nil {
		s.run.log.set.inputBuffers.Put(s.buf)
		s.buf = nil
	}
}

// queuedBytes returns the number of bytes in the pipe.
func (s *stream) queuedBytes() uint64 {
	n := 0
	s.withDescriptor(func(fd int) { n, _ = unix.IoctlGetInt(fd, unix.TIOCINQ) })
	return uint64(n)
}

// answerFinishedTails answers the requests of [Log.Tail] whose output this stream has read completely. requests is the number
// of requests before the last read. pause is true if the last read found the pipe empty.
func (s *stream) answerFinishedTails(requests uint64, pause bool) {
	if s.answeredRequest >= requests {
		return
	}
	if s.tailTargetRequest <= s.answeredRequest {
		s.tailTargetRequest, s.tailTarget = requests, s.bytesRead+s.queuedBytes()
	}
	switch {
	case pause:
		s.answeredRequest = requests
	case s.bytesRead >= s.tailTarget:
		s.answeredRequest = s.tailTargetRequest
	default:
		return
	}
	s.run.recordTailReached(s.index, s.answeredRequest, s.lines.unfinished)
}

// deliver writes complete lines to the sinks, within the rate limit, and then adds them to the counters. A line that is counted is
// already written.
func (s *stream) deliver(chunk []byte) {
	if len(chunk) == 0 {
		return
	}
	l := s.run.log
	s.run.mu.Lock()
	s.run.tail.add(chunk, l.set.opts.TailLines)
	s.run.unfinishedLines[s.index] = ""
	s.run.mu.Unlock()
	if seen := l.watcher.Load(); seen != nil && *seen != nil {
		(*seen)(chunk)
	}
	if lines := l.limiter.writeAllowed(s.index, chunk); len(lines) > 0 {
		l.counters.suppressed.Add(uint64(bytes.Count(lines, []byte{'\n'})))
		l.set.consoles[s.index].enqueue(&l.sources[s.index], lines, Off, false)
	}
	l.counters.bytes.Add(uint64(len(chunk)))
	l.counters.lines.Add(uint64(bytes.Count(chunk, []byte{'\n'})))
	l.set.opts.OnWrite()
}

// writeToSinks writes complete lines of a stream to the console and the file. The file must not wait for the console, so lines for
// which the console has no room are queued there only after all lines are in the file.
func (l *Log) writeToSinks(stream int, chunk []byte) {
	if len(chunk) == 0 {
		return
	}
	console, source := l.set.consoles[stream], &l.sources[stream]
	var rest []byte
	if console.mode != Off {
		rest = console.enqueue(source, chunk, console.mode, false)
	}
	if l.file != nil {
		buf := l.set.outputBuffers.Get().(*[]byte)
		l.file.writeLines(chunk, *buf)
		l.set.outputBuffers.Put(buf)
	}
	console.addOrWait(source, rest)
}
