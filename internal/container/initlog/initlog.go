// Package initlog writes the messages of PID 1 itself: as lines in the container log, and as warnings that the status shows
// too.
//
// Only [WriteStderr] waits for a reader of the console, for a second at most. Each warning is written once. The package owns a
// goroutine that writes the termination message of a Kubernetes pod, and one for each call of WriteStderr.
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

// Logger writes the messages of hinit itself to the container log and to the status. Any goroutine may call its methods.
type Logger struct {
	console        func() io.Writer
	storeWarning   func(warning string) bool
	terminationLog *TerminationLog
}

// New returns a Logger. console returns a writer for one line, which must not block. remember stores a warning for the
// status, and returns false if the status already has it. last is the termination message of the pod, to which every line is
// added.
func New(console func() io.Writer, remember func(warning string) bool, last *TerminationLog) *Logger {
	return &Logger{console, remember, last}
}

// WithWarningStore returns a Logger that passes its warnings to another function remember.
func (l *Logger) WithWarningStore(remember func(warning string) bool) *Logger {
	return &Logger{l.console, remember, l.terminationLog}
}

// Print writes a line to the container log without a prefix.
func (l *Logger) Print(text string) {
	fmt.Fprintln(l.console(), show.EscapeLine(text))
	l.terminationLog.Add(text)
}

// AddToTermination adds a line to the termination message only.
func (l *Logger) AddToTermination(text string) { l.terminationLog.Add(text) }

// End writes the termination message of a container that ends with this exit code.
func (l *Logger) End(code int) { l.terminationLog.End(code) }

// Say writes a message from hinit to the container log.
func (l *Logger) Say(format string, args ...any) { l.Print("[hinit] " + fmt.Sprintf(format, args...)) }

// Warn writes a warning that stays relevant while the container runs: to the container log once, and to the status.
func (l *Logger) Warn(format string, args ...any) {
	if message := fmt.Sprintf(format, args...); l.RememberWarning(message) {
		l.Say("warning: %s", message)
	}
}

// RememberWarning shows a warning in the status but not in the container log. It returns false if the warning is known already.
func (l *Logger) RememberWarning(text string) bool { return l.storeWarning(show.EscapeLine(text)) }

const (
	// terminationLogPath is the file that Kubernetes shows as the message of an ended container. Elsewhere it does not exist.
	terminationLogPath = "/dev/termination-log"
	// maxMessageBytes is how many bytes of the termination message Kubernetes keeps. maxMessageLines is how many lines hinit
	// writes there, without the older ones.
	maxMessageBytes, maxMessageLines = 4096, 16
	// minRewriteInterval is the minimum time between two writes of the termination message.
	minRewriteInterval = time.Second
	// killedMessage is the first line of the termination message until the container ends in the regular way. So it stays there
	// after a SIGKILL.
	killedMessage = "killed from outside (out of memory, or SIGKILL when the grace period was over), after:"
)

// TerminationLog keeps the termination message of a container up to date, so that it says something even after a SIGKILL. Any
// goroutine may call its methods. With the first line it starts a goroutine, if the file exists.
type TerminationLog struct {
	path string
	wake chan struct{} // channel of capacity 1 that wakes the goroutine for a new line

	mu        sync.Mutex
	lines     []string
	startOnce sync.Once

	fileMutex sync.Mutex // a goroutine holds file while it writes the file
	ended     bool
}

// NewTerminationLog returns the termination message of this container, without any line.
func NewTerminationLog() *TerminationLog {
	return &TerminationLog{path: terminationLogPath, wake: make(chan struct{}, 1)}
}

// Add adds a line to the termination message, without waiting for the file.
func (w *TerminationLog) Add(line string) {
	w.mu.Lock()
	w.lines = append(w.lines, show.EscapeLine(line))
	w.lines = w.lines[max(0, len(w.lines)-maxMessageLines):]
	w.mu.Unlock()
	pause.Wake(w.wake)
	w.startOnce.Do(func() { guard.Go("writing the termination message", w.writeLoop) })
}

func (w *TerminationLog) writeLoop() {
	for range w.wake {
		if w.write(killedMessage, false) != nil {
			return // the container has no such file, or End has already written the last version
		}
		<-time.After(minRewriteInterval)
	}
}

// End writes the last version of the termination message, with the exit code.
func (w *TerminationLog) End(code int) {
	_ = w.write(fmt.Sprintf("exit code %d, after:", code), true) // write fails where there is no such file
}

func (w *TerminationLog) write(first string, last bool) error {
	w.mu.Lock()
	text := strings.Join(w.lines, "\n")
	w.mu.Unlock()
	text = string(new(redact.Masker).Hide([]byte(text+"\n"), nil))
	if room := maxMessageBytes - len(first) - 1; len(text) > room {
		text = text[len(text)-room:]
	}
	w.fileMutex.Lock()
	defer w.fileMutex.Unlock()
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

// ReportRefusal reports on stderr and in the termination message why an init can't begin. It returns code.
func ReportRefusal(code int, err error) int {
	WriteTermination(code, err)
	WriteStderr(err)
	return code
}

// stderrTimeout is how long WriteStderr waits for the reader of stderr.
const stderrTimeout = time.Second

// WriteStderr writes an error to stderr, with "[hinit]" before each line. If the reader of stderr has stalled, it returns after
// stderrTimeout, because a container must end without that reader too.
func WriteStderr(err error) {
	to := os.Stderr
	pause.AtMost(stderrTimeout, guard.GoWithDone("writing to stderr", func() {
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintln(to, "[hinit]", show.EscapeLine(strings.TrimSuffix(line, "\n")))
		}
	}))
}

// WriteTermination writes the termination message of an init that can't begin.
func WriteTermination(code int, err error) {
	last := NewTerminationLog()
	for line := range strings.Lines(err.Error()) {
		last.Add(strings.TrimSuffix(line, "\n"))
	}
	last.End(code)
}
