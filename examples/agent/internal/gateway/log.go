package gateway

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// A logger prints as the real agent does: information to standard output and warnings to standard error, both in the format
// of Python's logging. Each line is one write, so lines of several goroutines never mix.
type logger struct{ stdout, stderr io.Writer }

func (l logger) info(format string, args ...any) { writeLogLine(l.stdout, "INFO", format, args...) }
func (l logger) warn(format string, args ...any) { writeLogLine(l.stderr, "WARNING", format, args...) }

func writeLogLine(w io.Writer, level, format string, args ...any) {
	stamp := time.Now().Format("2006-01-02 15:04:05,000")
	_, _ = fmt.Fprintf(w, "%s %s gateway: %s\n", stamp, level, fmt.Sprintf(format, args...))
}

func (l logger) banner(profile string, pid int) {
	rule := strings.Repeat("─", 60)
	_, _ = fmt.Fprintf(l.stdout, "%s\n⚕ Hermes Gateway Starting (example agent, profile %s, PID %d)\n%s\n", rule, profile, pid, rule)
}
