package applet

import (
	"bytes"
	"errors"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/s6/formats"
)

const (
	// partialLineTimeout is how long s6-log waits for the rest of an incomplete line after a signal to end.
	partialLineTimeout = 2 * time.Second
	// maxPending is the maximum number of bytes in memory for an unwritable directory. At this limit s6-log stops reading, so
	// the program that writes its input blocks.
	maxPending = 4 << 20
)

// logger is the state of one s6-log: it reads lines and carries out the logging script for each.
type logger struct {
	invocation     *Invocation
	steps          []scriptStep
	dirs           []*logDir
	maxLineLength  int
	verbose        int
	ignoreTerm     bool // SIGTERM doesn't end s6-log
	waitsForOutput bool // option -b: read no input while output waits

	partialLine   []byte // last, incomplete line
	pendingOutput []byte // output that is not yet written to stdout
	stdoutClosed  bool   // the reader of stdout has closed it
	// Time of the current input, as local time and as a TAI64N label.
	localTime   []byte
	tai64nLabel []byte
}

func runLog(c *Invocation, options []option) int {
	l := &logger{invocation: c, maxLineLength: lineLimit, verbose: 1}
	notify, ok := l.applyOptions(options)
	if !ok {
		return wrongUsage
	}
	if notify >= 0 && !isInherited(notify) {
		return c.fatal(exitUsage, "invalid notification fd: "+strerror(unix.EBADF))
	}
	steps, problem := parseScript(c.Args)
	if problem != "" {
		return c.fatal(exitUsage, problem)
	}
	if stepsWithoutAction(steps) > 0 {
		l.warn("ignoring extraneous non-action directives")
	}
	l.steps = steps
	wake, err := signalPipe()
	if err != nil {
		return c.fatal(exitSystemError, "unable to create a pipe: "+strerror(err))
	}
	for i := range steps {
		s := &steps[i]
		if s.action != '/' {
			continue
		}
		what := ""
		if s.logDir, what, err = openLogDir(s.dir, time.Now(), l.warn, l.dirs); err != nil {
			return c.fatal(exitSystemError, what+": "+strerror(err))
		}
		l.dirs = append(l.dirs, s.logDir)
	}
	if notify >= 0 {
		if _, err := unix.Write(notify, []byte("\n")); err != nil {
			l.warn("unable to notify readiness: " + strerror(err))
		}
		_ = unix.Close(notify)
	}
	return l.run(wake)
}

// applyOptions stores the options. notify is the descriptor to which s6-log must report that it is ready, or -1.
func (l *logger) applyOptions(options []option) (notify int, ok bool) {
	notify = -1
	for _, o := range options {
		switch o.letter {
		case 'q':
			l.verbose = 0
		case 'v':
			l.verbose++
		case 'b':
			l.waitsForOutput = true
		case 'p':
			l.ignoreTerm = true
		case 'd':
			n, err := strconv.ParseUint(o.value, 10, 16)
			if err != nil || n < 3 {
				return 0, false
			}
			notify = int(n)
		case 'l':
			n, err := strconv.ParseUint(o.value, 10, 31)
			if err != nil {
				return 0, false
			}
			l.maxLineLength = int(n)
			if n > 0 {
				l.maxLineLength = max(l.maxLineLength, minLineLimit)
			}
		}
	}
	return notify, true
}

// isInherited reports whether the parent process has passed on this descriptor. The Go runtime's own descriptors are
// close-on-exec.
func isInherited(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0 && unix.SetNonblock(fd, false) == nil
}

// signalPipe returns a pipe that delivers each signal as a byte.
func signalPipe() (int, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 16)
	// With SIGPIPE in the list, a write to a closed stdout fails instead of ending this process.
	signal.Notify(signals, unix.SIGTERM, unix.SIGHUP, unix.SIGALRM, unix.SIGPIPE)
	go func() {
		for s := range signals {
			if n := s.(unix.Signal); n != unix.SIGPIPE {
				_, _ = unix.Write(p[1], []byte{byte(n)})
			}
		}
	}()
	return p[0], nil
}

// run reads lines until the input ends or a signal comes, and then completes the log files.
func (l *logger) run(wake int) int {
	stdin := int(l.invocation.In.Fd())
	buf := make([]byte, 1<<16)
	var ending time.Time // end of the wait for the rest of the line; zero before a signal to end
	for {
		now := time.Now()
		if !ending.IsZero() && !now.Before(ending) {
			break
		}
		fds := []unix.PollFd{{Fd: int32(wake), Events: unix.POLLIN}}
		if l.mayRead() {
			fds = append(fds, unix.PollFd{Fd: int32(stdin), Events: unix.POLLIN})
		}
		if _, err := unix.Poll(fds, l.pollTimeout(now, ending)); err != nil && !errors.Is(err, unix.EINTR) {
			return l.invocation.fatal(exitSystemError, "unable to poll: "+strerror(err))
		}
		now = time.Now()
		if fds[0].Revents != 0 && l.handleSignals(wake, now) && ending.IsZero() {
			ending = now.Add(partialLineTimeout)
		}
		readable := len(fds) > 1 && fds[1].Revents != 0
		if readable {
			n, err := unix.Read(stdin, buf)
			switch {
			case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			case err != nil:
				l.warn("unable to read from stdin: " + strerror(err))
				ending = now
			case n == 0:
				ending = now
			default:
				l.splitLines(buf[:n], now)
			}
		}
		l.flush(now)
		if !ending.IsZero() && !readable && len(l.partialLine) == 0 {
			break
		}
	}
	return l.finishAll()
}

func (l *logger) mayRead() bool {
	return !slices.ContainsFunc(l.dirs, func(d *logDir) bool { return len(d.pending) > maxPending || l.waitsForOutput && len(d.pending) > 0 })
}

// pollTimeout returns how many milliseconds to wait for input: until the next attempt to write to a directory, or until s6-log
// must end. -1 means no limit.
func (l *logger) pollTimeout(now, ending time.Time) int {
	if !ending.IsZero() && len(l.partialLine) == 0 {
		return 0
	}
	next := ending
	for _, d := range l.dirs {
		if !d.retryAt.IsZero() && (next.IsZero() || d.retryAt.Before(next)) {
			next = d.retryAt
		}
	}
	if next.IsZero() {
		return -1
	}
	return int(max(next.Sub(now), 0)/time.Millisecond) + 1
}

// handleSignals handles the pending signals. end means that s6-log must end.
func (l *logger) handleSignals(wake int, now time.Time) (end bool) {
	var received [64]byte
	n, _ := unix.Read(wake, received[:])
	for _, s := range received[:max(n, 0)] {
		switch s := unix.Signal(s); {
		case s == unix.SIGALRM:
			for _, d := range l.dirs {
				d.startNewFile()
				d.flush(now)
			}
		case s == unix.SIGHUP, !l.ignoreTerm:
			end = true
		}
	}
	return end
}

func (l *logger) splitLines(input []byte, now time.Time) {
	l.localTime, l.tai64nLabel = l.localTime[:0], l.tai64nLabel[:0]
	for len(input) > 0 {
		i := bytes.IndexAny(input, "\n\x00")
		if i < 0 {
			l.partialLine = append(l.partialLine, input...)
			l.cutLongLine(now)
			return
		}
		if len(l.partialLine) == 0 && (l.maxLineLength == 0 || i <= l.maxLineLength) {
			l.handleLine(input[:i], now)
		} else {
			l.partialLine = append(l.partialLine, input[:i]...)
			l.cutLongLine(now)
			l.handleLine(l.partialLine, now)
			l.partialLine = l.partialLine[:0]
		}
		input = input[i+1:]
	}
}

// cutLongLine splits an incomplete line above the limit. A line of exactly this length stays whole, because its newline may
// come next.
func (l *logger) cutLongLine(now time.Time) {
	rest := l.partialLine
	for l.maxLineLength > 0 && len(rest) > l.maxLineLength {
		l.handleLine(rest[:l.maxLineLength], now)
		rest = rest[l.maxLineLength:]
	}
	l.partialLine = append(l.partialLine[:0], rest...)
}

// handleLine carries out the script for one line. The steps + and - select or deselect the line. The step f selects it if no
// earlier action was carried out for it. All other steps are actions for selected lines.
func (l *logger) handleLine(line []byte, now time.Time) {
	selected, acted := true, false
	for i := range l.steps {
		s := &l.steps[i]
		switch {
		case s.action == '+':
			selected = selected || s.match.Match(line)
		case s.action == '-':
			selected = selected && !s.match.Match(line)
		case s.action == 'f':
			selected = !acted
		case !selected:
		default:
			acted = true
			stamp := l.stamp(s.stamp, now)
			if s.label != "" {
				stamp = append(slices.Clip(stamp), s.label...)
			}
			switch s.action {
			case '1':
				l.pendingOutput = append(append(append(l.pendingOutput, stamp...), line...), '\n')
			case '2':
				// An error means that stderr has no reader.
				_, _ = l.invocation.Err.Write(bytes.Join([][]byte{[]byte(l.invocation.Name + ": alert: "), stamp, line, []byte("\n")}, nil))
			default:
				s.logDir.appendLine(stamp, line)
			}
		}
	}
}

func (l *logger) stamp(kind stampKind, now time.Time) []byte {
	switch {
	case !kind.tai64n && !kind.local:
		return nil
	case len(l.tai64nLabel) == 0:
		l.tai64nLabel = append(formats.AppendTAI64N(l.tai64nLabel[:0], now), ' ')
		l.localTime = append(appendLocalTime(l.localTime[:0], now), "  "...)
	}
	switch {
	case !kind.local:
		return l.tai64nLabel
	case !kind.tai64n:
		return l.localTime
	}
	return append(append([]byte(nil), l.tai64nLabel...), l.localTime...)
}

func (l *logger) flush(now time.Time) {
	for _, d := range l.dirs {
		d.flush(now)
	}
	if len(l.pendingOutput) > 0 && !l.stdoutClosed {
		if _, err := l.invocation.Out.Write(l.pendingOutput); err != nil {
			l.stdoutClosed = true
			l.warn("unable to write to stdout: " + strerror(err) + "; closing it")
		}
	}
	l.pendingOutput = l.pendingOutput[:0]
}

// finishAll writes all pending output, including the incomplete line, and marks the log files as complete. It returns the exit
// code.
func (l *logger) finishAll() int {
	now := time.Now()
	if len(l.partialLine) > 0 {
		l.localTime, l.tai64nLabel = l.localTime[:0], l.tai64nLabel[:0]
		l.handleLine(l.partialLine, now)
		l.partialLine = nil
	}
	l.flush(now)
	code := exitDone
	for _, d := range l.dirs {
		if !d.finish(now) {
			code = l.invocation.fatal(exitSystemError, "lines are lost: "+d.rules.path+"/current cannot be written")
		}
	}
	return code
}

func (l *logger) warn(text string) {
	if l.verbose > 0 {
		l.invocation.warn(text)
	}
}
