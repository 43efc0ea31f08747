package cmdline

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"

	"hinit/internal/control/show"
)

// passedSequences matches the control characters of a program's output that are passed on to a terminal: a tab, and a colour (ESC
// [ numbers m).
var passedSequences = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\t|\x1b\[[0-9;:]{0,61}m`) })

// Output escapes a line of a program's output for a terminal, as [show.Line] does, but keeps tabs and colours. It resets the
// colour at the end of the line.
func Output(line string) string {
	if strings.IndexByte(line, '\t') < 0 && strings.IndexByte(line, '\x1b') < 0 {
		return show.Line(line)
	}
	var b strings.Builder
	at, end := 0, ""
	for _, span := range passedSequences().FindAllStringIndex(line, -1) {
		part := line[span[0]:span[1]]
		b.WriteString(show.Line(line[at:span[0]]) + part)
		if at = span[1]; part != "\t" {
			end = "\x1b[0m"
		}
	}
	return b.String() + show.Line(line[at:]) + end
}

// JSON replaces characters of a JSON document by \u sequences: the characters that [show.Line] would escape. The meaning of the
// document does not change.
func JSON(doc []byte) []byte {
	if !slices.ContainsFunc(doc, func(c byte) bool { return c >= 0x7f }) {
		return doc
	}
	out := make([]byte, 0, len(doc)+64)
	for len(doc) > 0 {
		r, n := utf8.DecodeRune(doc)
		switch {
		case r < 0x7f || show.Line(string(doc[:n])) == string(doc[:n]):
			out = append(out, doc[:n]...)
		default:
			for _, unit := range utf16.AppendRune(nil, r) {
				out = fmt.Appendf(out, `\u%04x`, unit)
			}
		}
		doc = doc[n:]
	}
	return out
}

// Escaped is a writer that escapes text for a terminal, except for line ends. Each write must contain whole lines or whole cells
// of a table. The caller must pass a name that the agent can choose through [show.Line] or [show.Name], because the name could
// contain a line end.
type Escaped struct{ io.Writer }

// Write implements io.Writer.
func (w Escaped) Write(text []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, show.Text(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}
