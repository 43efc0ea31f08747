package logrotate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/pause"
)

// Handover is the state that a Set passes to its successor in the next program when PID 1 re-executes itself. The pipes stay
// open, so no output is lost.
type Handover struct {
	Logs   []handedLog
	Files  []handedFile
	Unsent [2]map[string]int64 // for stdout and stderr: number of lines that the console has not written yet, by service name
}

type handedLog struct {
	Name, Profile, Path string
	Dropped             bool
	Rate                int64
	Lines, Bytes        uint64
	ConsoleDropped      uint64
	SuppressedTotal     uint64
	Suppressed          [2]int64
	SuppressedLimit     int64
	Runs                []handedRun
}

type handedRun struct {
	Current bool
	Tail    []string
	Streams []handedStream
}

type handedStream struct {
	Index int
	Pipe  *os.File `reexec:"FD"`
	Carry []byte   // the part of an unfinished line that was already read
	Cont  bool
}

type handedFile struct {
	Path   string
	Limits Limits
	Fault  string // error of the file, or ""; with an error, Kept holds the lines to write later
	Kept   []byte
	Lost   int64
	Losses uint64
}

// freezeCall is the state of one call of Freeze: the streams whose pumps have stopped (are parked), and the files that are
// locked.
type freezeCall struct {
	parked map[*stream]struct{}
	all    chan struct{} // closed when every live stream is parked
	locked []*file
}

// closeIfParked closes fr.all once every stream is parked. The parameter live is the number of streams that are being read. fr
// may be nil. The caller holds Set.mu.
func (fr *freezeCall) closeIfParked(live int) {
	if fr != nil && fr.all != nil && len(fr.parked) == live {
		close(fr.all)
		fr.all = nil
	}
}

// recordParked records that the pump of st has stopped for Freeze. The pump calls it.
func (s *Set) recordParked(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pause != nil {
		s.pause.parked[st] = struct{}{}
		s.pause.closeIfParked(len(s.live))
		return
	}
	st.freezing.Store(false) // Thaw was called before the pump stopped, so start the pump again
	go st.pump()
}

// consolePatience is the longest time that Freeze waits for the console to write its queue. The wait is limited because the
// console's reader may have stalled.
const consolePatience = 300 * time.Millisecond

// Freeze stops every pump between two reads, and waits until the lines read so far are in the files. Output that comes later
// stays in the pipes. Freeze also waits up to consolePatience for the console. After Freeze, call [Set.HandOver]; do not call
// [Log.Pipes] before [Set.Thaw]. An error means that a disk hangs; the Set is frozen even then.
func (s *Set) Freeze(ctx context.Context) error {
	s.mu.Lock()
	if s.closed || s.pause != nil {
		s.mu.Unlock()
		return errClosed
	}
	all := make(chan struct{})
	s.pause = &freezeCall{parked: make(map[*stream]struct{}), all: all}
	for st := range s.live {
		st.freezing.Store(true)
		st.wake()
	}
	s.pause.closeIfParked(len(s.live))
	for _, c := range s.consoles {
		c.setHurry(true)
	}
	files := slices.Collect(maps.Values(s.files))
	s.mu.Unlock()

	var errs []error
	select {
	case <-all:
	case <-ctx.Done():
		errs = append(errs, s.unparkedError())
	}
	for _, f := range files {
		if !f.lockWithin(ctx) {
			errs = append(errs, fmt.Errorf("cannot finish writing %q: the disk does not answer", f.path))
			continue
		}
		s.pause.locked = append(s.pause.locked, f)
	}
	patience, cancel := context.WithTimeout(ctx, consolePatience)
	defer cancel()
	_ = s.Sync(patience) // lines that the console has not written after consolePatience are handed over as unsent
	return errors.Join(errs...)
}

// unparkedError returns an error with the names of the services whose pumps have not stopped, or nil if all have.
func (s *Set) unparkedError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := s.readingServices(s.pause.parked)
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("cannot finish writing the logs of %q: the disk does not answer", names)
}

// lockWithin tries to lock f.mu until ctx ends, and reports whether it succeeded. It polls, because a disk operation that hangs
// may hold the lock forever.
func (f *file) lockWithin(ctx context.Context) bool {
	for !f.mu.TryLock() {
		if !pause.For(ctx, time.Millisecond) {
			return f.mu.TryLock()
		}
	}
	return true
}

// Thaw undoes Freeze: it unlocks the files and starts the pumps again. It is called if PID 1 could not execute the new program.
func (s *Set) Thaw() {
	s.mu.Lock()
	fr := s.pause
	s.pause = nil
	s.mu.Unlock()
	if fr == nil {
		return
	}
	for _, f := range fr.locked {
		f.mu.Unlock()
	}
	for _, c := range s.consoles {
		c.setHurry(false)
	}
	for st := range fr.parked {
		st.freezing.Store(false)
		go st.pump()
	}
}

// HandOver returns the state that the new program needs to continue the logs. Call it between Freeze and Thaw. If Freeze could
// not stop a pump, the lines in its memory are lost, and a line in the log reports this.
func (s *Set) HandOver() (*Handover, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pause == nil {
		return nil, errors.New("internal error: the logs are not frozen")
	}
	streams := make(map[*run][]handedStream)
	for st := range s.live {
		_, parked := s.pause.parked[st]
		streams[st.run] = append(streams[st.run], st.export(parked))
	}
	runs := make(map[*Log][]handedRun)
	for _, l := range s.logs {
		runs[l] = nil
	}
	for r, list := range streams { // also for runs of dropped logs, whose pipes are still read
		runs[r.log] = append(runs[r.log], handedRun{Current: r == r.log.current, Tail: r.exportTail(), Streams: list})
	}
	h := &Handover{}
	for l, list := range runs {
		h.Logs = append(h.Logs, l.export(list))
	}
	for _, f := range s.pause.locked {
		h.Files = append(h.Files, f.export())
	}
	for i, con := range s.consoles {
		h.Unsent[i] = con.unsentLines()
	}
	return h, nil
}

func (l *Log) export(runs []handedRun) handedLog {
	out := handedLog{
		Name: l.name, Profile: l.profile, Path: l.path, Dropped: l.dropped, Rate: l.limiter.rate.Load(),
		Lines: l.counters.lines.Load(), Bytes: l.counters.bytes.Load(),
		ConsoleDropped: l.counters.consoleDropped.Load(), SuppressedTotal: l.counters.suppressed.Load(), Runs: runs,
	}
	l.limiter.mu.Lock()
	defer l.limiter.mu.Unlock()
	out.Suppressed, out.SuppressedLimit = l.limiter.suppressed, l.limiter.limit
	return out
}

func (r *run) exportTail() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tail.lines()
}

// export returns the state of the stream for the new program. If the pump is not parked, its unfinished line can't be read
// safely, so missingText replaces it.
func (s *stream) export(parked bool) handedStream {
	out := handedStream{Index: s.index, Pipe: s.file, Carry: []byte(missingText), Cont: s.lines.cont}
	if s.direct >= 0 { // s.file is closed; duplicate s.direct, because an os.File closes its descriptor
		if fd, err := unix.FcntlInt(uintptr(s.direct), unix.F_DUPFD_CLOEXEC, 3); err == nil {
			out.Pipe = os.NewFile(uintptr(fd), s.file.Name())
		}
	}
	if parked {
		out.Carry = s.lines.carry
	}
	return out
}

// missingText replaces an unfinished line that was lost. The new program writes it at the beginning of the first line of that
// stream.
const missingText = "[hinit] lines may be missing here, hinit had a fault; what follows may be the rest of a line: "

func (f *file) export() handedFile {
	out := handedFile{Path: f.path, Limits: *f.limits.Load(), Losses: f.losses.Load()}
	if f.fault != nil {
		out.Fault, out.Kept, out.Lost = f.fault.Error(), f.kept, f.lost
	}
	return out
}

// unsentLines returns, for each service, the number of lines that the console has not written. It also counts the block that is
// being written, although the reader may have seen some of its lines.
func (c *console) unsentLines() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := make(map[string]int64)
	count := func(b *block) {
		data := b.data
		for _, sh := range b.shares {
			n := min(sh.bytes, len(data))
			lines[sh.source.name] += int64(bytes.Count(data[:n], []byte{'\n'}))
			data = data[n:]
		}
	}
	if c.writingBlock != nil {
		count(c.writingBlock)
	}
	for _, b := range c.queue {
		count(b)
	}
	for _, src := range c.withDropped {
		lines[src.name] += src.dropped
	}
	return lines
}

// TakeOver continues the logs of the previous program's Set from the state h: it reads the same pipes, and completes unfinished
// lines. Call TakeOver before Open.
func (s *Set) TakeOver(h *Handover) error {
	var start []*stream
	for _, in := range h.Logs {
		l := s.Open(in.Name, in.Profile, in.Path)
		streams, err := l.resume(in)
		if err != nil {
			return err
		}
		start = append(start, streams...)
		if in.Dropped {
			s.Drop(in.Name)
		}
	}
	for _, in := range h.Files {
		s.resumeFile(in)
	}
	for i, con := range s.consoles {
		con.addUnsentNotices(s, h.Unsent[i], i)
	}
	for _, st := range start {
		go st.pump()
	}
	return nil
}

// resume restores the counters and runs of the log from the handed-over state in. It returns the streams of these runs. The
// caller starts their pumps.
func (l *Log) resume(in handedLog) ([]*stream, error) {
	l.limiter.rate.Store(in.Rate)
	l.limiter.suppressed, l.limiter.limit = in.Suppressed, in.SuppressedLimit
	l.limiter.active.Store(in.Suppressed != [2]int64{})
	l.counters.lines.Add(in.Lines)
	l.counters.bytes.Add(in.Bytes)
	l.counters.consoleDropped.Add(in.ConsoleDropped)
	l.counters.suppressed.Add(in.SuppressedTotal)
	var start []*stream
	for _, hr := range in.Runs {
		r := &run{log: l}
		for _, line := range hr.Tail {
			r.tail.add([]byte(line+"\n"), l.set.opts.Tail)
		}
		r.reached = [2]uint64{math.MaxUint64, math.MaxUint64} // reset below for the streams that were handed over
		for i := range r.streams {
			r.streams[i] = &stream{run: r, index: i, direct: -1} // a stream that has ended, unless it is replaced below
		}
		var live []*stream
		for _, hs := range hr.Streams {
			st, err := resumeStream(r, hs)
			if err != nil {
				return nil, fmt.Errorf("cannot take over the log of %q: %w", l.name, err)
			}
			r.streams[hs.Index], r.reached[hs.Index] = st, 0
			live = append(live, st)
		}
		l.set.mu.Lock()
		if hr.Current {
			l.current = r
		}
		l.set.addStreams(l, live...)
		l.set.mu.Unlock()
		start = append(start, live...)
	}
	return start, nil
}

func resumeStream(r *run, in handedStream) (*stream, error) {
	if in.Index < 0 || in.Index > 1 || in.Pipe == nil {
		return nil, fmt.Errorf("the pipe of stream %d is not there", in.Index)
	}
	s, err := newStream(r, in.Index, in.Pipe)
	if err != nil {
		return nil, err
	}
	s.lines.carry, s.lines.cont = in.Carry, in.Cont
	s.lines.room.charge(in.Carry, carryOutsideBudget)
	s.resize(readSize) // undo a flood's enlargement of the pipe
	return s, nil
}

// resumeFile restores a file's limits, its error, and the lines that were kept because of the error. It then schedules the next
// attempt to write these lines.
func (s *Set) resumeFile(in handedFile) {
	s.mu.Lock()
	f := s.files[in.Path]
	s.mu.Unlock()
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	limits := in.Limits
	f.limits.Store(&limits)
	f.losses.Store(in.Losses)
	if in.Fault != "" {
		f.fault, f.tried, f.kept, f.lost = errors.New(in.Fault), time.Now(), in.Kept, in.Lost
		s.memoryBudget.charge(in.Kept, keptOutsideBudget)
		f.recordError(f.fault)
		f.scheduleRetry()
	}
}

// addUnsentNotices makes the console write notices about lines that the previous program read but did not write there. lines maps
// the name of each service to the number of these lines. The parameter stream is 0 for stdout and 1 for stderr.
func (c *console) addUnsentNotices(s *Set, lines map[string]int64, stream int) {
	for name, n := range lines {
		if n == 0 {
			continue
		}
		s.mu.Lock()
		l := s.logs[name]
		s.mu.Unlock()
		src := &source{name: name, profile: name}
		if l != nil {
			src = &l.sources[stream]
		}
		c.mu.Lock()
		src.dropped += n
		c.withDropped = append(c.withDropped, src)
		c.wake.Signal()
		c.mu.Unlock()
	}
}
