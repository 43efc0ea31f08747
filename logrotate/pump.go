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
)

// tailPatience is how long an answer to Tail may take.
const tailPatience = 100 * time.Millisecond

// run is the pair of pipes of one run.
type run struct {
	log     *Log
	streams [2]*stream
	asked   atomic.Uint64 // number of questions so far

	mu      sync.Mutex // never held across I/O
	tail    tail
	open    [2]string // a line without an end, as of the last answer
	reached [2]uint64 // each stream has read what was there when this many had been asked
	waiting []*question
}

// question is one call of Tail.
type question struct {
	number uint64
	done   func([]string)
	timer  *time.Timer
}

// ask adds a question and wakes the pumps.
func (r *run) ask(done func([]string)) {
	r.mu.Lock()
	q := &question{number: r.asked.Add(1), done: done}
	q.timer = time.AfterFunc(r.log.set.opts.tailPatience, guard.Func("answering for a log", func() { r.answer(q) }))
	r.waiting = append(r.waiting, q)
	ready := min(r.reached[0], r.reached[1]) >= q.number
	r.mu.Unlock()
	if ready { // both pipes are at their end
		guard.Go("answering for a log", func() { r.answer(q) })
		return
	}
	for i, s := range r.streams {
		r.log.set.consoles[i].urge(&r.log.sources[i], true)
		s.wake()
	}
}

// reach notes that stream index has read all that was in its pipe when the n-th question came; open is its unfinished line.
func (r *run) reach(index int, n uint64, open []byte) {
	r.mu.Lock()
	r.reached[index] = n
	r.open[index] = string(open[:min(len(open), tailLine)])
	var ready []*question
	for _, q := range r.waiting {
		if q.number <= min(r.reached[0], r.reached[1]) {
			ready = append(ready, q)
		}
	}
	r.mu.Unlock()
	for _, q := range ready {
		r.answer(q)
	}
}

// answer answers q, unless that has been done.
func (r *run) answer(q *question) {
	r.mu.Lock()
	at := slices.Index(r.waiting, q)
	if at < 0 {
		r.mu.Unlock()
		return
	}
	r.waiting = slices.Delete(r.waiting, at, at+1)
	lines := r.tail.lines()
	for _, open := range r.open {
		if open != "" {
			lines = append(lines, open)
		}
	}
	lines = lines[max(0, len(lines)-r.log.set.opts.Tail):]
	last := len(r.waiting) == 0
	r.mu.Unlock()
	if last {
		for i := range r.streams {
			r.log.set.consoles[i].urge(&r.log.sources[i], false)
		}
	}
	q.timer.Stop()
	q.done(lines)
}

// stream is one pipe. Only its pump uses what isn't atomic.
type stream struct {
	run      *run
	index    int        // 0 stdout, 1 stderr
	mu       sync.Mutex // guards file against wake; never held across I/O
	file     *os.File
	raw      syscall.RawConn
	ready    func(fd uintptr) bool // s.read; made once, so that waiting allocates nothing
	lines    lines
	pace     pace
	direct   int // descriptor that is read without the poller in a flood, -1 otherwise
	stopping atomic.Bool
	freezing atomic.Bool // see [Set.Freeze]

	buf   *[]byte // only while there is something in it
	n     int
	err   error
	total uint64 // bytes read

	seen   uint64 // number of questions that are answered for this stream
	target uint64 // the count of bytes at which the questions up to goal are answered
	goal   uint64
}

// wake makes the pump look at its orders. It doesn't block.
func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.file.SetReadDeadline(time.Unix(1, 0)) // in a flood it is closed, and orders are looked for after each pause
}

// stop makes the pump end when it has read what is in the pipe now.
func (s *stream) stop() {
	s.stopping.Store(true)
	s.wake()
}

// pump reads the pipe until its end, or until it is frozen.
func (s *stream) pump() {
	defer guard.Catch("reading the output of " + s.run.log.name)
	if s.flow() {
		s.close()
		s.run.log.set.ended(s)
	} else {
		s.run.log.set.parked(s)
	}
}

// flow returns true at the end of the pipe, and false when it is frozen.
func (s *stream) flow() bool {
	last := uint64(math.MaxUint64) // total at which to stop
	for {
		if s.freezing.Load() {
			s.release()
			return false
		}
		if s.pace.rest && !s.stopping.Load() {
			time.Sleep(max(s.pace.pause, s.run.log.set.opts.floodPause)) //nolint:forbidigo // the pause itself is what is wanted: lines collect meanwhile
		}
		asked, stopping := s.run.asked.Load(), s.stopping.Load()
		err := s.fetch()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// Orders are given before the deadline is set, so none can be missed between these two lines.
			_ = s.file.SetReadDeadline(time.Time{})
			continue
		}
		pause := err == nil && errors.Is(s.err, unix.EAGAIN)
		if err != nil || s.n == 0 && !pause || pause && stopping {
			break // at its end, broken, or told to stop
		}
		if s.n > 0 {
			s.total += uint64(s.n)
			s.deliver(s.lines.feed(*s.buf, s.n))
			s.release()
		}
		if s.pace.read(s.n, readSize, s.run.log.set.opts.floodWindow, time.Now()) {
			s.changePace()
		}
		if stopping && last == math.MaxUint64 {
			last = s.total + s.queued()
		}
		if s.total >= last {
			break
		}
		s.progress(asked, pause)
	}
	s.release()
	s.deliver(s.lines.end())
	s.run.log.limiter.end(s.index)
	s.run.reach(s.index, math.MaxUint64, nil)
	return true
}

// read is called by the poller's side of raw.Read, at once and then whenever the pipe may have something. A buffer is taken
// only for the call that needs it.
func (s *stream) read(fd uintptr) bool {
	if s.buf == nil {
		s.buf = s.run.log.set.inputs.Get().(*[]byte)
	}
	s.err = inShortTurn(func() (err error) {
		for s.n, err = unix.Read(int(fd), (*s.buf)[s.lines.max:]); errors.Is(err, unix.EINTR); {
			s.n, err = unix.Read(int(fd), (*s.buf)[s.lines.max:])
		}
		return err
	})
	if s.err == nil {
		return true
	}
	s.n = 0
	if errors.Is(s.err, unix.EAGAIN) {
		s.release()
		return s.stopping.Load() || s.freezing.Load() || s.seen < s.run.asked.Load()
	}
	return true
}

// inShortTurn is for what a pump does with its pipe, which waits for nothing: there are many pumps.
func inShortTurn(do func() error) error { return blocking.Do(blocking.Short, do) }

func (s *stream) release() {
	if s.buf != nil {
		s.run.log.set.inputs.Put(s.buf)
		s.buf = nil
	}
}

// queued returns how many bytes are in the pipe.
func (s *stream) queued() uint64 {
	n := 0
	s.control(func(fd int) { n, _ = unix.IoctlGetInt(fd, unix.TIOCINQ) })
	return uint64(n)
}

// progress answers questions: asked were there before the last read, which found the pipe empty when pause is set.
func (s *stream) progress(asked uint64, pause bool) {
	if s.seen >= asked {
		return
	}
	if s.goal <= s.seen {
		s.goal, s.target = asked, s.total+s.queued()
	}
	switch {
	case pause:
		s.seen = asked
	case s.total >= s.target:
		s.seen = s.goal
	default:
		return
	}
	s.run.reach(s.index, s.seen, s.lines.carry)
}

// deliver gives whole lines that are not too many to the sinks, and counts all of them then: who sees the count finds the lines.
func (s *stream) deliver(chunk []byte) {
	if len(chunk) == 0 {
		return
	}
	l := s.run.log
	s.run.mu.Lock()
	s.run.tail.add(chunk, l.set.opts.Tail)
	s.run.open[s.index] = ""
	s.run.mu.Unlock()
	if seen := l.watcher.Load(); seen != nil {
		(*seen)(chunk)
	}
	if n := l.limiter.pass(s.index, chunk); n > 0 {
		l.counters.suppressed.Add(uint64(n))
	}
	l.counters.bytes.Add(uint64(len(chunk)))
	l.counters.lines.Add(uint64(bytes.Count(chunk, []byte{'\n'})))
}

// put gives whole lines of a stream to the sinks. The file never waits for the console: what the console has no room for is given to it
// again when the file has everything, and waited for then.
func (l *Log) put(stream int, chunk []byte) {
	if len(chunk) == 0 {
		return
	}
	console, source := l.set.consoles[stream], &l.sources[stream]
	var rest []byte
	if console.mode != Off {
		rest = console.take(source, chunk, console.mode, false)
	}
	if l.file != nil {
		buf := l.set.outputs.Get().(*[]byte)
		l.file.lines(chunk, *buf)
		l.set.outputs.Put(buf)
	}
	console.insist(source, rest)
}
