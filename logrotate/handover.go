package logrotate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/pause"
	"hinit/internal/redact"
)

// Handover is what a Set passes to the Set of the next program when PID 1 re-executes itself. It contains the pipes, so services
// can write during the exec and lose nothing.
type Handover struct {
	Logs   []handedLog
	Files  []handedFile
	Unsent [2]map[string]int64 // Lines that the console has not written, by service name; [0] for stdout, [1] for stderr.
}

// handedLog is the part of a Handover for one log. handedRun is for a run with pipes that are still read, and handedStream for
// such a pipe. handedFile is for a log file.
type handedLog struct {
	Name, Profile, Path string
	Dropped             bool
	Rate                int64
	Lines, Bytes        uint64
	ConsoleDropped      uint64
	SuppressedTotal     uint64
	Suppressed          [2]int64
	SuppressedLimit     int64
	Secrets             *redact.Secrets // Values to hide on the console; nil: none.
	Maskers             [2]redact.Masker
	Runs                []handedRun
}

type handedRun struct {
	Current bool
	Tail    []string
	Streams []handedStream
}

type handedStream struct {
	Index      int
	Pipe       *os.File `reexec:"FD"`
	Unfinished []byte   `reexec:"Carry"` // Unfinished line, as far as it was read.
	Continued  bool     `reexec:"Cont"`
}

type handedFile struct {
	Path   string
	Limits Limits
	Fault  string // Error of the file, or ""; with an error, Kept holds the lines to write later.
	Kept   []byte
	Lost   int64
	Losses uint64
}

// freezeCall is the state between Freeze and Thaw.
type freezeCall struct {
	parked    map[*stream]struct{} // Streams whose pumps have stopped.
	allParked chan struct{}        // Closed when the pump of every live stream has stopped.
	locked    []*file              // Files whose mu is held.
}

// closeIfParked closes fr.allParked if the pumps of all live streams have stopped. live is the number of live streams. fr may
// be nil. The caller holds Set.mu.
func (fr *freezeCall) closeIfParked(live int) {
	if fr != nil && fr.allParked != nil && len(fr.parked) == live {
		close(fr.allParked)
		fr.allParked = nil
	}
}

// recordParked is the last call of a pump that stops for Freeze. If the Set was thawed in the meantime, recordParked starts
// the pump again.
func (s *Set) recordParked(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freeze != nil {
		s.freeze.parked[st] = struct{}{}
		s.freeze.closeIfParked(len(s.liveStreams))
		return
	}
	st.freezing.Store(false) // Thaw was called before the pump stopped, so start it again.
	go st.pump()
}

// consoleTimeout is how long Freeze waits for the console to write its queue. A reader that has stalled must not hold up the
// re-execution.
const consoleTimeout = 300 * time.Millisecond

// Freeze prepares for [Set.HandOver]: it stops every pump between two reads, when the lines read so far are in the files. Later
// output stays in the pipes. It waits for the console, too, up to consoleTimeout. The error means that a disk hangs; even then,
// the Set is frozen and may be handed over. Until [Set.Thaw], don't call [Log.Pipes].
func (s *Set) Freeze(ctx context.Context) error {
	s.mu.Lock()
	if s.closed || s.freeze != nil {
		s.mu.Unlock()
		return errClosed
	}
	all := make(chan struct{})
	s.freeze = &freezeCall{parked: make(map[*stream]struct{}), allParked: all}
	for st := range s.liveStreams {
		st.freezing.Store(true)
		st.wake()
	}
	s.freeze.closeIfParked(len(s.liveStreams))
	for _, c := range s.consoles {
		c.setNoWaiting(true)
	}
	files := slices.Collect(maps.Values(s.files))
	s.mu.Unlock()

	var errs []error
	if !pause.Until(ctx, all) {
		errs = append(errs, s.unparkedError())
	}
	for _, f := range files {
		if !f.lockWithin(ctx) {
			errs = append(errs, fmt.Errorf("cannot finish writing %q: the disk does not answer", f.path))
			continue
		}
		s.freeze.locked = append(s.freeze.locked, f)
	}
	patience, cancel := context.WithTimeout(ctx, consoleTimeout)
	defer cancel()
	_ = s.Sync(patience) // Lines that are not on the console after consoleTimeout are handed over as unsent.
	return errors.Join(errs...)
}

// unparkedError returns an error with the names of the services whose pumps have not stopped, or nil if all have.
func (s *Set) unparkedError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := s.readingServices(s.freeze.parked)
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

// Thaw undoes Freeze, after PID 1 could not execute the new program.
func (s *Set) Thaw() {
	s.mu.Lock()
	fr := s.freeze
	s.freeze = nil
	s.mu.Unlock()
	if fr == nil {
		return
	}
	for _, f := range fr.locked {
		f.mu.Unlock()
	}
	for _, c := range s.consoles {
		c.setNoWaiting(false)
	}
	for st := range fr.parked {
		st.freezing.Store(false)
		go st.pump()
	}
}

// HandOver returns the state that [Set.TakeOver] needs in the new program. Call it between Freeze and Thaw. If a pump did not stop
// because a disk hangs, the lines that it holds are lost, and a line in the log says so.
func (s *Set) HandOver() (*Handover, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freeze == nil {
		return nil, errors.New("internal error: the logs are not frozen")
	}
	streams := make(map[*run][]handedStream)
	for st := range s.liveStreams {
		_, parked := s.freeze.parked[st]
		streams[st.run] = append(streams[st.run], st.export(parked))
	}
	runs := make(map[*Log][]handedRun)
	for _, l := range s.logs {
		runs[l] = nil
	}
	for r, list := range streams { // Include runs of dropped logs, whose pipes are still read.
		runs[r.log] = append(runs[r.log], handedRun{Current: r == r.log.currentRun, Tail: r.exportTail(), Streams: list})
	}
	h := &Handover{}
	for l, list := range runs {
		h.Logs = append(h.Logs, l.export(list))
	}
	for _, f := range s.freeze.locked {
		h.Files = append(h.Files, f.export())
	}
	for i, con := range s.consoles {
		h.Unsent[i] = con.unsentLines()
	}
	return h, nil
}

// export returns the state of the log for the next program. The argument runs has the runs of the log, with their pipes.
func (l *Log) export(runs []handedRun) handedLog {
	out := handedLog{
		Name: l.name, Profile: l.profile, Path: l.path, Dropped: l.dropped, Rate: l.limiter.rate.Load(),
		Lines: l.counters.lines.Load(), Bytes: l.counters.bytes.Load(),
		ConsoleDropped: l.counters.consoleDropped.Load(), SuppressedTotal: l.counters.suppressed.Load(),
		Secrets: l.secrets.Load(), Runs: runs,
	}
	for i, c := range l.set.consoles {
		src := &l.sources[i]
		src.maskMu.Lock()
		out.Maskers[i] = src.masker
		src.maskMu.Unlock()
		c.mu.Lock()
		out.ConsoleDropped -= uint64(src.droppedLines) // addUnsentNotices counts these lines again.
		c.mu.Unlock()
	}
	l.limiter.mu.Lock()
	defer l.limiter.mu.Unlock()
	out.Suppressed, out.SuppressedLimit = l.limiter.suppressed, l.limiter.exceededRate
	return out
}

func (r *run) exportTail() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tail.lines()
}

// export returns the state of the stream for the new program. A pump that is not parked may be changing the unfinished line, so
// missingLinesText takes its place.
func (s *stream) export(parked bool) handedStream {
	out := handedStream{Index: s.index, Pipe: s.file, Unfinished: []byte(missingLinesText), Continued: s.lines.continued}
	if s.directFD >= 0 { // s.file is closed, so duplicate s.directFD, because an os.File closes its descriptor.
		if fd, err := unix.FcntlInt(uintptr(s.directFD), unix.F_DUPFD_CLOEXEC, 3); err == nil {
			out.Pipe = os.NewFile(uintptr(fd), s.file.Name())
		}
	}
	if parked {
		out.Unfinished = s.lines.unfinished
	}
	return out
}

// missingLinesText stands in place of an unfinished line that was lost. The new program writes it in front of the first bytes of
// that stream.
const missingLinesText = "[hinit] lines may be missing here, hinit had a fault; what follows may be the rest of a line: "

func (f *file) export() handedFile {
	out := handedFile{Path: f.path, Limits: *f.limits.Load(), Losses: f.lostLineCount.Load()}
	if f.fault != nil {
		out.Fault, out.Kept, out.Lost = f.fault.Error(), f.keptLines, f.lostLines
	}
	return out
}

// unsentLines counts, for each service, the lines in the console's queue. It includes the block that is being written, although
// the reader may already have some of its lines.
func (c *console) unsentLines() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := make(map[string]int64)
	count := func(src *source, n int) { lines[src.name] += int64(n) }
	if c.writingBlock != nil {
		c.writingBlock.countLines(0, count)
	}
	for _, b := range c.queue {
		b.countLines(0, count)
	}
	for _, src := range c.sourcesWithDropped {
		lines[src.name] += src.droppedLines
	}
	return lines
}

// TakeOver continues the logs of the previous program's Set: it reads the same pipes and completes their unfinished lines. Call it
// before Open.
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

// resume restores the counters and the runs of the log. It returns the streams of these runs, whose pumps the caller must start.
func (l *Log) resume(in handedLog) ([]*stream, error) {
	l.limiter.rate.Store(in.Rate)
	l.limiter.suppressed, l.limiter.exceededRate = in.Suppressed, in.SuppressedLimit
	l.limiter.hasSuppressed.Store(in.Suppressed != [2]int64{})
	l.counters.lines.Add(in.Lines)
	l.counters.bytes.Add(in.Bytes)
	l.counters.consoleDropped.Add(in.ConsoleDropped)
	l.counters.suppressed.Add(in.SuppressedTotal)
	l.secrets.Store(in.Secrets)
	for i := range l.sources {
		l.sources[i].masker = in.Maskers[i]
	}
	var start []*stream
	for _, hr := range in.Runs {
		r := &run{log: l}
		for _, line := range hr.Tail {
			r.tail.add([]byte(line+"\n"), l.set.opts.TailLines)
		}
		// All requests count as finished for a stream that has ended. The loop below sets other values for live streams.
		r.finishedRequests = [2]uint64{math.MaxUint64, math.MaxUint64}
		for i := range r.streams {
			// Make a stream that has ended. The loop below replaces it if a live stream was handed over.
			r.streams[i] = &stream{run: r, index: i, directFD: -1}
		}
		var live []*stream
		for _, hs := range hr.Streams {
			st, err := resumeStream(r, hs)
			if err != nil {
				return nil, fmt.Errorf("cannot take over the log of %q: %w", l.name, err)
			}
			r.streams[hs.Index], r.finishedRequests[hs.Index] = st, 0
			live = append(live, st)
		}
		l.set.mu.Lock()
		if hr.Current {
			l.currentRun = r
		}
		l.set.addStreams(l, live...)
		l.set.mu.Unlock()
		start = append(start, live...)
	}
	return start, nil
}

// resumeStream makes a stream from the state that the earlier program has handed over, with its unfinished line.
func resumeStream(r *run, in handedStream) (*stream, error) {
	if in.Index < 0 || in.Index > 1 || in.Pipe == nil {
		return nil, fmt.Errorf("the pipe of stream %d is not there", in.Index)
	}
	s, err := newStream(r, in.Index, in.Pipe)
	if err != nil {
		return nil, err
	}
	s.lines.unfinished, s.lines.continued = in.Unfinished, in.Continued
	s.lines.budget.charge(in.Unfinished, unfinishedOutsideBudget)
	s.resize(readSize) // The pipe may still have the size for a flood.
	return s, nil
}

// resumeFile restores the limits of a file. If the file could not be written, it restores the fault and the kept lines, and
// schedules the next attempt.
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
	f.lostLineCount.Store(in.Losses)
	if in.Fault != "" {
		f.fault, f.lastAttempt, f.keptLines, f.lostLines = errors.New(in.Fault), time.Now(), in.Kept, in.Lost
		s.memoryBudget.charge(in.Kept, keptOutsideBudget)
		f.recordError(f.fault)
		f.scheduleRetry()
	}
}

// addUnsentNotices makes the console write a notice for each service with lines that the previous program read but did not write
// to the console. lines maps the name of a service to the number of such lines. stream is 0 for stdout and 1 for stderr.
func (c *console) addUnsentNotices(s *Set, lines map[string]int64, stream int) {
	maps.DeleteFunc(lines, func(_ string, n int64) bool { return n == 0 })
	for name, n := range lines {
		s.mu.Lock()
		l := s.logs[name]
		s.mu.Unlock()
		src := &source{name: name, profile: name, droppedTotal: new(atomic.Uint64)}
		if l != nil {
			src = &l.sources[stream]
		}
		c.mu.Lock()
		src.droppedLines += n
		src.droppedTotal.Add(uint64(n))
		c.sourcesWithDropped = append(c.sourcesWithDropped, src)
		c.wake.Signal()
		c.mu.Unlock()
	}
}
