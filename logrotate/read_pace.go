package logrotate

import (
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// A flood begins after floodReads short reads within floodWindow. From then on, reading after each write of the service would
	// cost more than everything else that hinit does.
	floodReads  = 64
	floodWindow = 10 * time.Millisecond
	// floodPause is the shortest pause between two reads during a flood. The poller can't time a shorter pause. Each pause costs
	// the wake-up of a thread, so pauses get longer, up to maxFloodPause, while the pipe doesn't fill up.
	floodPause    = time.Millisecond
	maxFloodPause = 4 * time.Millisecond
	// floodEnd is the number of bytes that must arrive during a pause for the flood to continue.
	floodEnd = 1 << 10
	// floodPipe is the size of a pipe during a flood, or less if fs.pipe-max-size is lower. A large pipe lets the writer continue
	// during a pause. After the flood the pipe is made smaller again, because a user has only 64 MiB for all pipes (pipe(7),
	// pipe-user-pages-soft).
	floodPipe = 1 << 20
)

// pace decides when a pump pauses between reads. The pump pauses only during a flood of small writes, so that a single read
// returns the data of many writes.
type pace struct {
	flood bool
	rest  bool // pause before the next read
	reads int
	since time.Time

	size       int           // size of the pipe
	sincePause int           // bytes read since the last pause
	pause      time.Duration // length of the next pause
	pauses     int           // number of pauses during this flood after which there was enough data
	// fruitlessFloods is the number of consecutive floods that ended at their first pause, because the writer waits for an
	// answer to each line. Each of them doubles the number of reads that starts a flood.
	fruitlessFloods uint
}

// floodDoubt is the largest value of pace.fruitlessFloods.
const floodDoubt = 6

// recordRead takes the result of a read into account: n bytes were read into a buffer of room bytes. The result changed tells
// whether a flood has begun or ended.
func (p *pace) recordRead(n, room int, window time.Duration, now time.Time) (changed bool) {
	rested := p.rest
	p.rest = false
	p.sincePause += n
	switch {
	case n >= room/2: // the pipe may have more data, so read again immediately
		return false
	case p.flood:
		if rested && n < floodEnd {
			doubt := uint(0)
			if p.pauses == 0 {
				doubt = min(p.fruitlessFloods+1, floodDoubt)
			}
			*p = pace{since: now, fruitlessFloods: doubt}
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
	if now.Sub(p.since) > window<<p.fruitlessFloods {
		p.reads, p.since = 0, now
	}
	p.reads++
	if p.reads < floodReads<<p.fruitlessFloods {
		return false
	}
	p.flood, p.rest, p.sincePause, p.pause = true, true, 0, floodPause
	return true
}

// adaptPause sets the length of the next pause, so that a pause fills a quarter to half of the pipe.
func (p *pace) adaptPause() {
	switch {
	case p.sincePause > p.size/2:
		p.pause = max(p.pause/2, floodPause)
	case p.sincePause < p.size/4:
		p.pause = min(p.pause*2, maxFloodPause)
	}
	p.rest, p.sincePause = true, 0
}

// changePace enlarges the pipe and removes it from the poller when a flood has begun, or undoes both when the flood has
// ended. While a pipe is in the poller, each write to the pipe wakes the poller (EPOLLET of epoll(7)), which costs the
// writer as much as this process. Only closing a file removes it from the poller, so changePace opens the pipe a second time
// first. If that fails, the pipe stays in the poller, and only the pauses reduce the cost.
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

// resize asks the kernel to give the pipe the given size in bytes, and stores the size that the pipe now has. Reading works with
// any size of the pipe.
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
		_ = s.run.log.set.opts.Actor.Do(func() (err error) { // opened with the agent's identity, because the pipe belongs to the agent
			s.direct, err = unix.Open("/proc/self/fd/"+strconv.Itoa(old), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			return err
		})
	})
	if s.direct >= 0 {
		_ = runShortCall(s.file.Close)
	}
}

func (s *stream) joinPoller() {
	if s.direct < 0 {
		return
	}
	var file *os.File
	var raw syscall.RawConn
	err := runShortCall(func() (err error) {
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

// awaitData waits until the pipe may have data, and calls read. During a flood it calls read immediately.
func (s *stream) awaitData() error {
	if s.direct < 0 {
		return s.raw.Read(s.ready)
	}
	s.read(uintptr(s.direct))
	return nil
}

// withDescriptor calls the function do with the pipe's descriptor.
func (s *stream) withDescriptor(do func(fd int)) {
	_ = runShortCall(func() error {
		if s.direct >= 0 {
			do(s.direct)
			return nil
		}
		return s.raw.Control(func(fd uintptr) { do(int(fd)) })
	})
}

func (s *stream) close() {
	_ = runShortCall(func() error {
		if s.direct >= 0 {
			return unix.Close(s.direct)
		}
		return s.file.Close()
	})
}
