// Package initlog writes the messages of PID 1 itself: as a line in the container log, or as a warning that status also shows.
//
// No caller waits for a reader of the console, and each warning is written only once. The package's one goroutine writes the
// termination message of a Kubernetes pod.
package initlog

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/control/show"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/redact"
)

// Logger writes the messages of PID 1. Its methods may be called from any goroutine.
type Logger struct {
	console  func() io.Writer
	remember func(warning string) bool
	last     *TerminationLog
}

// New returns a Logger. console returns a writer that takes one line and must not block. remember stores a warning for status,
// and returns false if it is already known. The argument last is the termination message, which gets every line.
func New(console func() io.Writer, remember func(warning string) bool, last *TerminationLog) *Logger {
	return &Logger{console, remember, last}
}

// WithMemory returns a copy of the Logger that stores its warnings with another function remember.
func (l *Logger) WithMemory(remember func(warning string) bool) *Logger {
	return &Logger{l.console, remember, l.last}
}

// Line writes a line to the container log without a prefix.
func (l *Logger) Line(text string) {
	fmt.Fprintln(l.console(), show.Line(text))
	l.last.Add(text)
}

// Note adds a line to the termination message without writing it to the log.
func (l *Logger) Note(text string) { l.last.Add(text) }

// End writes the termination message of a container that ends with a code.
func (l *Logger) End(code int) { l.last.End(code) }

// Say writes a message from hinit to the container log.
func (l *Logger) Say(format string, args ...any) { l.Line("[hinit] " + fmt.Sprintf(format, args...)) }

// Warn writes a warning that stays relevant to the operator while the container runs. The status also shows the warning. A
// known warning is not written again.
func (l *Logger) Warn(format string, args ...any) {
	if message := fmt.Sprintf(format, args...); l.RememberWarning(message) {
		l.Say("warning: %s", message)
	}
}

// RememberWarning shows a warning in the status without writing it to the log. It returns false if the warning is known.
func (l *Logger) RememberWarning(warning string) bool { return l.remember(show.Line(warning)) }

const (
	// terminationLog is the file that Kubernetes shows as the message of an ended container. It exists only in Kubernetes.
	terminationLog = "/dev/termination-log"
	// maxMessageBytes is the number of bytes of the file that Kubernetes keeps. maxMessageLines is the maximum number of lines
	// that hinit writes; it drops older lines.
	maxMessageBytes, maxMessageLines = 4096, 16
	// rewriteEvery is the minimum time between two writes of the file with the termination message.
	rewriteEvery = time.Second
	// killed is the first line of the termination message until the container ends in the regular way.
	killed = "killed from outside (out of memory, or SIGKILL when the grace period was over), after:"
)

// TerminationLog keeps the termination message of a container up to date, so that it is right even after a SIGKILL. Its
// methods may be called from any goroutine. If the file exists, the TerminationLog owns a goroutine after the first line.
type TerminationLog struct {
	path string
	wake chan struct{} // capacity 1; wakes the goroutine after a new line

	mu    sync.Mutex
	lines []string
	start sync.Once

	file  sync.Mutex // held while the file is written
	ended bool
}

// NewTerminationLog returns the termination message of this container.
func NewTerminationLog() *TerminationLog {
	return &TerminationLog{path: terminationLog, wake: make(chan struct{}, 1)}
}

// Add adds a line to the termination message. It doesn't wait for the message's file.
func (w *TerminationLog) Add(line string) {
	w.mu.Lock()
	w.lines = append(w.lines, show.Line(line))
	w.lines = w.lines[max(0, len(w.lines)-maxMessageLines):]
	w.mu.Unlock()
	pause.Wake(w.wake)
	w.start.Do(func() { guard.Go("writing the termination message", w.follow) })
}

func (w *TerminationLog) follow() {
	for range w.wake {
		if w.write(killed, false) != nil {
			return // the file doesn't exist, or its last version is written
		}
		<-time.After(rewriteEvery)
	}
}

// End writes the last version of the termination message, with the exit code.
func (w *TerminationLog) End(code int) {
	_ = w.write(fmt.Sprintf("exit code %d, after:", code), true) // an error is ignored: the file may not exist
}

func (w *TerminationLog) write(first string, last bool) error {
	w.mu.Lock()
	text := strings.Join(w.lines, "\n")
	w.mu.Unlock()
	text = string(new(redact.Masker).Hide([]byte(text+"\n"), nil))
	if room := maxMessageBytes - len(first) - 1; len(text) > room {
		text = text[len(text)-room:]
	}
	w.file.Lock()
	defer w.file.Unlock()
	if w.ended {
		return os.ErrClosed
	}
	w.ended = last
	return blocking.Do(blocking.Foreign, func() error {
		f, err := os.OpenFile(w.path, os.O_WRONLY|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			return os.ErrInvalid
		}
		_, err = f.WriteString(first + "\n" + text)
		return err
	})
}

// Refuse reports why an init can't begin, on stderr and in the termination message. It returns the exit code.
func Refuse(code int, err error) int {
	WriteTermination(code, err)
	Stderr(err)
	return code
}

// Stderr writes an error to stderr, each line with the prefix "[hinit]".
func Stderr(err error) {
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(os.Stderr, "[hinit]", show.Line(strings.TrimSuffix(line, "\n")))
	}
}

// WriteTermination writes the termination message of an init that can't begin.
func WriteTermination(code int, err error) {
	last := NewTerminationLog()
	for line := range strings.Lines(err.Error()) {
		last.Add(strings.TrimSuffix(line, "\n"))
	}
	last.End(code)
}
