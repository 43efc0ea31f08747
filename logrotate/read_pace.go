package logrotate

import (
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// A flood begins after floodReads short reads within floodWindow. Then one read for each write costs more than everything
	// else in hinit.
	floodReads  = 64
	floodWindow = 10 * time.Millisecond
	// floodPause is the shortest pause between reads in a flood; the poller can't measure a shorter one. Each pause costs the
	// wake-up of a thread. So pauses grow to floodPauseMost while most of the pipe stays empty.
	floodPause     = time.Millisecond
	floodPauseMost = 4 * time.Millisecond
	// floodEnd is the number of bytes that a pause must bring. A pause with fewer bytes ends the flood.
	floodEnd = 1 << 10
	// floodPipe is the size of a pipe in a flood, or less if fs.pipe-max-size is lower. A large pipe lets the writer continue
	// during a pause. After the flood the pipe gets smaller again, because a user has 64 MiB for all pipes (pipe(7),
	// pipe-user-pages-soft).
	floodPipe = 1 << 20
)

// pace delays the reads of a pipe in a flood of small writes. Without a flood it delays nothing.
type pace struct {
	flood bool
	rest  bool // pause before the next read
	reads int
	since time.Time

	size   int           // size of the pipe in this flood
	came   int           // bytes since the last pause
	pause  time.Duration // length of the next pause
	pauses int           // number of pauses of this flood that brought data
	// number of floods in a row whose pauses brought nothing, because the writer waits for an answer to each line; each of them
	// doubles the threshold
	doubt uint
}

// floodDoubt is the limit of doubt.
const floodDoubt = 6

// recordRead handles the result of a read: n bytes into a buffer of room bytes. changed reports whether a flood has begun or
// ended.
func (p *pace) recordRead(n, room int, window time.Duration, now time.Time) (changed bool) {
	rested := p.rest
	p.rest = false
	p.came += n
	switch {
	case n >= room/2: // the pipe may have more data: read on
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
		p.adaptPause()
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

// adaptPause adapts the length of the next pause, so that a pause fills a quarter to half of the pipe.
func (p *pace) adaptPause() {
	switch {
	case p.came > p.size/2:
		p.pause = max(p.pause/2, floodPause)
	case p.came < p.size/4:
		p.pause = min(p.pause*2, floodPauseMost)
	}
	p.rest, p.came = true, 0
}

// changePace enlarges a flooded pipe and removes it from the poller, or undoes both after the flood. While a pipe is in the
// poller, each write to it wakes the poller (EPOLLET of epoll(7)), which costs the writer as much as this process. Only a close
// removes a file from the poller, so changePace opens the pipe a second time first. If that fails, only the pauses reduce the
// cost.
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

// resize tries to change the size of the pipe, and stores the resulting size. Any size works.
func (s *stream) resize(size int) (done bool) {
	s.pace.size = readSize
	s.withDescriptor(func(fd int) {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, size)
		done = err == nil
		if has, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0); err == nil {
			s.pace.size = has
		}
	})
	return done
}

func (s *stream) leavePoller() {
	s.withDescriptor(func(old int) {
		_ = s.run.log.set.opts.Actor.Do(func() (err error) { // opened as the agent, because the pipe belongs to the agent
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
	if err != nil { // only a closed file causes this error
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file, s.raw, s.direct = file, raw, -1
}

// awaitData calls read as soon as the pipe may have data.
func (s *stream) awaitData() error {
	if s.direct < 0 {
		return s.raw.Read(s.ready)
	}
	s.read(uintptr(s.direct))
	return nil
}

// withDescriptor calls do with the pipe's descriptor.
func (s *stream) withDescriptor(do func(fd int)) {
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
