package logrotate

import (
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// So many short reads within so long are a flood of small writes. Reading each for itself would cost more than all else.
	floodReads  = 64
	floodWindow = 10 * time.Millisecond
	// floodPause is how long a flooded pipe is left to fill, at least: the finest pause that the poller knows. Each one costs the
	// waking of a thread, so they get longer, up to floodPauseMost, while little of the pipe is used.
	floodPause     = time.Millisecond
	floodPauseMost = 4 * time.Millisecond
	// floodEnd is what a pause must have brought; with less of it the flood is over.
	floodEnd = 1 << 10
	// floodPipe is the size of a flooded pipe, or less where that is not allowed (fs.pipe-max-size), so that its writer goes on
	// during a pause. It is released afterwards: a user has 64 MiB for all pipes (pipe(7), pipe-user-pages-soft).
	floodPipe = 1 << 20
)

// pace lets small writes collect in a pipe while they come in floods. A stream that is not flooded is read at once.
type pace struct {
	flood bool
	rest  bool // the next read is to be later
	reads int
	since time.Time

	size   int           // of the pipe in this flood
	came   int           // bytes since the last pause
	pause  time.Duration // the next one
	pauses int           // of this flood that brought something
	doubt  uint          // how often in a row a flood was none: somebody who waits for an answer to each line. It doubles what is needed
}

// floodDoubt is the largest doubt.
const floodDoubt = 6

// read notes that n bytes were read of a pipe from which room bytes could have come. It reports whether flood has changed.
func (p *pace) read(n, room int, window time.Duration, now time.Time) (changed bool) {
	rested := p.rest
	p.rest = false
	p.came += n
	switch {
	case n >= room/2: // there may be more
		return false
	case p.flood:
		if rested && n < floodEnd {
			doubt := uint(0)
			if p.pauses == 0 {
				doubt = min(p.doubt+1, floodDoubt)
			}
			*p = pace{since: now, doubt: doubt}
			return true
		}
		if rested {
			p.pauses++
		}
		p.again()
		return false
	case n == 0:
		return false
	}
	if now.Sub(p.since) > window<<p.doubt {
		p.reads, p.since = 0, now
	}
	p.reads++
	if p.reads < floodReads<<p.doubt {
		return false
	}
	p.flood, p.rest, p.came, p.pause = true, true, 0, floodPause
	return true
}

// again makes the next pause as long as it takes to fill a quarter to half of the pipe.
func (p *pace) again() {
	switch {
	case p.came > p.size/2:
		p.pause = max(p.pause/2, floodPause)
	case p.came < p.size/4:
		p.pause = min(p.pause*2, floodPauseMost)
	}
	p.rest, p.came = true, 0
}

// changePace takes a flooded pipe from the poller and makes it larger, or undoes that. While the poller has a pipe, each write into
// it wakes the poller (EPOLLET of epoll(7)), which costs the writer as much as this process. The poller forgets only what is
// closed, so the pipe is opened again first. Where that is impossible the pause alone has to do.
func (s *stream) changePace() {
	if s.pace.flood {
		for size := floodPipe; size > readSize && !s.resize(size); size /= 2 {
		}
		s.leavePoller()
		return
	}
	s.resize(readSize)
	s.joinPoller()
}

// resize gives the pipe another size and notes the one that it has then; it works with any.
func (s *stream) resize(size int) (done bool) {
	s.pace.size = readSize
	s.control(func(fd int) {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, size)
		done = err == nil
		if has, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0); err == nil {
			s.pace.size = has
		}
	})
	return done
}

func (s *stream) leavePoller() {
	s.control(func(old int) {
		_ = s.run.log.set.opts.Actor.Do(func() (err error) { // the pipe is the agent's
			s.direct, err = unix.Open("/proc/self/fd/"+strconv.Itoa(old), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			return err
		})
	})
	if s.direct >= 0 {
		_ = inShortTurn(s.file.Close)
	}
}

func (s *stream) joinPoller() {
	if s.direct < 0 {
		return
	}
	var file *os.File
	var raw syscall.RawConn
	err := inShortTurn(func() (err error) {
		file = os.NewFile(uintptr(s.direct), s.file.Name())
		raw, err = file.SyscallConn()
		return err
	})
	if err != nil { // only of a file that is closed
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file, s.raw, s.direct = file, raw, -1
}

// fetch calls read when there may be something to read.
func (s *stream) fetch() error {
	if s.direct < 0 {
		return s.raw.Read(s.ready)
	}
	s.read(uintptr(s.direct))
	return nil
}

// control calls do with the pipe's descriptor.
func (s *stream) control(do func(fd int)) {
	_ = inShortTurn(func() error {
		if s.direct >= 0 {
			do(s.direct)
			return nil
		}
		return s.raw.Control(func(fd uintptr) { do(int(fd)) })
	})
}

func (s *stream) close() {
	_ = inShortTurn(func() error {
		if s.direct >= 0 {
			return unix.Close(s.direct)
		}
		return s.file.Close()
	})
}
