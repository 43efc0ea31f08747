package logrotate

import (
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// A flood begins after floodReads short reads within floodWindow. During a flood, a read after each write of the service
	// would cost more than everything else that hinit does.
	floodReads  = 64
	floodWindow = 10 * time.Millisecond
	// floodPause is the shortest pause between two reads during a flood; the runtime's poller can't time a shorter one. Each pause
	// ends with the wake-up of a thread, so pauses grow up to maxFloodPause while the pipe stays far from full.
	floodPause    = time.Millisecond
	maxFloodPause = 4 * time.Millisecond
	// floodEnd is the number of bytes that must arrive during a pause. If fewer bytes arrive, the flood has ended.
	floodEnd = 1 << 10
	// floodPipe is the size to which a pipe is enlarged during a flood, so that the writer need not wait during a pause.
	// fs.pipe-max-size may allow less. Afterwards the pipe is made smaller again, because all pipes of a user together may have
	// only 64 MiB (pipe(7), pipe-user-pages-soft).
	floodPipe = 1 << 20
)

// readPacer decides whether a pump pauses before its next read. It pauses only during a flood of small writes, so that a single
// read returns the data of many writes.
type readPacer struct {
	flood      bool
	pauseNext  bool // Whether to pause before the next read.
	shortReads int  // Number of short reads since the time `since`; floodReads of them within floodWindow begin a flood.
	since      time.Time

	pipeSize   int           // Size of the pipe in bytes.
	sincePause int           // Bytes read since the last pause.
	pause      time.Duration // Length of the next pause.
	pauses     int           // Number of pauses of this flood with at least floodEnd bytes.
	// fruitlessFloods is the number of floods in a row that ended at their first pause. Such a flood is no real flood: the
	// writer sends a line and waits for an answer. So each of them doubles the number of short reads after which the next
	// flood begins.
	fruitlessFloods uint
}

// maxFruitlessFloods is the upper limit of readPacer.fruitlessFloods.
const maxFruitlessFloods = 6

// recordRead is called after each read. n is the number of bytes read, room is the size of the buffer, and window is the time in
// which short reads are counted. The result is true if a flood has begun or ended.
func (p *readPacer) recordRead(n, room int, window time.Duration, now time.Time) (changed bool) {
	paused := p.pauseNext
	p.pauseNext = false
	p.sincePause += n
	switch {
	case n >= room/2: // The pipe may have more data, so read again immediately.
		return false
	case p.flood:
		if paused && n < floodEnd {
			fruitless := uint(0)
			if p.pauses == 0 {
				fruitless = min(p.fruitlessFloods+1, maxFruitlessFloods)
			}
			*p = readPacer{since: now, fruitlessFloods: fruitless}
			return true
		}
		if paused {
			p.pauses++
		}
		p.adaptPause()
		return false
	case n == 0:
		return false
	}
	if now.Sub(p.since) > window<<p.fruitlessFloods {
		p.shortReads, p.since = 0, now
	}
	p.shortReads++
	if p.shortReads < floodReads<<p.fruitlessFloods {
		return false
	}
	p.flood, p.pauseNext, p.sincePause, p.pause = true, true, 0, floodPause
	return true
}

// adaptPause sets the length of the next pause so that the pipe is a quarter to half full at its end.
func (p *readPacer) adaptPause() {
	switch {
	case p.sincePause > p.pipeSize/2:
		p.pause = max(p.pause/2, floodPause)
	case p.sincePause < p.pipeSize/4:
		p.pause = min(p.pause*2, maxFloodPause)
	}
	p.pauseNext, p.sincePause = true, 0
}

// changePace is called when a flood has begun or ended. At the beginning it enlarges the pipe and removes it from the runtime's
// poller; at the end it undoes both. A pipe in the poller makes each write wake the poller (EPOLLET of epoll(7)), which costs the
// writer as much time as this process. Only closing a file removes it from the poller, so changePace first opens the pipe a second
// time. If that fails, the pipe stays in the poller, and only the pauses reduce the cost.
func (s *stream) changePace() {
	if s.pacer.flood {
		size := floodPipe
		for size > readSize && !s.resize(size) {
			size /= 2
		}
		s.leavePoller()
		return
	}
	s.resize(readSize)
	s.joinPoller()
}

// resize asks the kernel to give the pipe the size in bytes, and stores the size that the pipe now has. A failure does no harm:
// reading works with any size.
func (s *stream) resize(size int) (done bool) {
	s.pacer.pipeSize = readSize
	s.withDescriptor(func(fd int) {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, size)
		done = err == nil
		if has, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0); err == nil {
			s.pacer.pipeSize = has
		}
	})
	return done
}

// leavePoller opens the pipe a second time as s.directFD, outside the poller, and closes s.file.
func (s *stream) leavePoller() {
	s.withDescriptor(func(old int) {
		// the agent's identity is needed, because the pipe belongs to the agent
		_ = s.run.log.set.opts.Actor.Do(func() (err error) {
			s.directFD, err = unix.Open("/proc/self/fd/"+strconv.Itoa(old), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			return err
		})
	})
	if s.directFD >= 0 {
		_ = runShortCall(s.file.Close)
	}
}

// joinPoller undoes leavePoller: it makes s.file from s.directFD again.
func (s *stream) joinPoller() {
	if s.directFD < 0 {
		return
	}
	var file *os.File
	var raw syscall.RawConn
	err := runShortCall(func() (err error) {
		file = os.NewFile(uintptr(s.directFD), s.file.Name())
		raw, err = file.SyscallConn()
		return err
	})
	if err != nil { // Only a closed file causes this error.
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file, s.rawConn, s.directFD = file, raw, -1
}

// awaitData blocks until the pipe may have data, and then calls read. During a flood, when the pipe isn't in the poller, it calls
// read at once.
func (s *stream) awaitData() error {
	if s.directFD < 0 {
		return s.rawConn.Read(s.readFunc)
	}
	s.read(uintptr(s.directFD))
	return nil
}

// withDescriptor calls do with a descriptor of the pipe, during a flood or not.
func (s *stream) withDescriptor(do func(fd int)) {
	_ = runShortCall(func() error {
		if s.directFD >= 0 {
			do(s.directFD)
			return nil
		}
		return s.rawConn.Control(func(fd uintptr) { do(int(fd)) })
	})
}

func (s *stream) close() {
	_ = runShortCall(func() error {
		if s.directFD >= 0 {
			return unix.Close(s.directFD)
		}
		return s.file.Close()
	})
}
