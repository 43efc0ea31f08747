// Package voice says what PID 1 itself has to say: a line in the container log, or a warning that status goes on showing.
//
// It promises that no caller waits for a reader of the console, and that a warning is said once. Its one goroutine writes the
// termination message of a pod.
package voice

import (
	"fmt"
	"io"

	"hinit/internal/control/show"
)

// Voice speaks. Its methods may be called from any goroutine.
type Voice struct {
	console  func() io.Writer
	remember func(warning string) bool
	last     *LastWords
}

// New makes a Voice. The function that console returns takes one line, and must not block. remember returns false for a warning
// that is known already. last gets every line.
func New(console func() io.Writer, remember func(warning string) bool, last *LastWords) *Voice {
	return &Voice{console, remember, last}
}

// Apart returns the same Voice with another memory for warnings.
func (v *Voice) Apart(remember func(warning string) bool) *Voice {
	return &Voice{v.console, remember, v.last}
}

// Line writes a line to the container log as it is.
func (v *Voice) Line(text string) {
	fmt.Fprintln(v.console(), show.Line(text))
	v.last.Add(text)
}

// Note adds a line to the termination message alone.
func (v *Voice) Note(text string) { v.last.Add(text) }

// End writes the termination message of a container that ends with a code.
func (v *Voice) End(code int) { v.last.End(code) }

// Say writes a line of hinit's own to the container log.
func (v *Voice) Say(format string, args ...any) { v.Line("[hinit] " + fmt.Sprintf(format, args...)) }

// Warn says something that the operator should know for as long as the container runs; status shows it.
func (v *Voice) Warn(format string, args ...any) {
	if message := fmt.Sprintf(format, args...); v.Remember(message) {
		v.Say("warning: %s", message)
	}
}

// Remember adds to what status shows as warnings. It returns false for one that is there already.
func (v *Voice) Remember(warning string) bool { return v.remember(show.Line(warning)) }
