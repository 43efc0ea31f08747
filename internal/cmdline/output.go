package cmdline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"

	"hinit/internal/control/show"
	"hinit/internal/proc"
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
		at = span[1]
		if part != "\t" {
			end = "\x1b[0m"
		}
	}
	return b.String() + show.Line(line[at:]) + end
}

// Lines passes each line of a text through [Output].
func Lines(text []byte) []byte {
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		lines[i] = Output(line)
	}
	return []byte(strings.Join(lines, "\n"))
}

// longestLine is the number of bytes after which a lineWriter writes a line that has not ended.
const longestLine = 64 << 10

// lineWriter passes the output of a program through [Lines].
type lineWriter struct {
	to   io.Writer
	rest []byte // the beginning of a line
}

// Write implements io.Writer.
func (w *lineWriter) Write(data []byte) (int, error) {
	w.rest = append(w.rest, data...)
	whole := bytes.LastIndexByte(w.rest, '\n') + 1
	if len(w.rest)-whole > longestLine {
		whole = len(w.rest)
	}
	_, err := w.to.Write(Lines(w.rest[:whole]))
	w.rest = slices.Delete(w.rest, 0, whole)
	return len(data), err
}

// ForTerminal returns a writer for the output of a program. If w is a terminal, the program can't control it. Call end after the
// last write.
func ForTerminal(w io.Writer) (out io.Writer, end func()) {
	if file, is := w.(*os.File); !is || !proc.IsTerminal(file) {
		return w, func() {}
	}
	lines := &lineWriter{to: w}
	return lines, func() { _, _ = w.Write(Lines(lines.rest)) } // the terminal may be gone
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

// WriteJSON writes v as a JSON document, escaped by [JSON]. If indent is not empty, the document has many lines.
func WriteJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", indent)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(JSON(b.Bytes()))
	return err
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

// plainLetters are the characters that mean only themselves to a shell.
const plainLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+"

// Quote quotes a word for a shell, unless it is already plain. An agent may have chosen a name that a shell would carry out.
func Quote(word string) string {
	if word != "" && strings.Trim(word, plainLetters) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
