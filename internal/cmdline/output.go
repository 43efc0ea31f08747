package cmdline

import (
	"bytes"
	"cmp"
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

// harmlessSequences matches control characters in a program's output that are harmless on a terminal: tabs and colours (ESC [
// numbers m). Other sequences could, for example, change the clipboard or the title of the terminal.
var harmlessSequences = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\t|\x1b\[[0-9;:]{0,61}m`) })

// EscapeOutput escapes one line of a program's output for a terminal. Unlike [show.EscapeLine], it keeps tabs and colours. At the
// end of the line it resets the colour, so that the next line is not coloured.
func EscapeOutput(line string) string {
	if strings.IndexByte(line, '\t') < 0 && strings.IndexByte(line, '\x1b') < 0 {
		return show.EscapeLine(line)
	}
	var b strings.Builder
	at, end := 0, ""
	for _, span := range harmlessSequences().FindAllStringIndex(line, -1) {
		part := line[span[0]:span[1]]
		b.WriteString(show.EscapeLine(line[at:span[0]]) + part)
		at = span[1]
		if part != "\t" {
			end = "\x1b[0m"
		}
	}
	return b.String() + show.EscapeLine(line[at:]) + end
}

// EscapeLines escapes each line of a text as [EscapeOutput] does.
func EscapeLines(text []byte) []byte {
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		lines[i] = EscapeOutput(line)
	}
	return []byte(strings.Join(lines, "\n"))
}

// maxBufferedLine is the size in bytes above which a lineWriter writes a line in several parts. It limits the memory of the
// writer.
const maxBufferedLine = 64 << 10

// lineWriter escapes the output of a program as [EscapeLines] does. It waits for the end of each line, because a single call of
// Write may end inside an escape sequence.
type lineWriter struct {
	output         io.Writer
	unfinishedLine []byte // the incomplete line
}

func (w *lineWriter) Write(data []byte) (int, error) {
	w.unfinishedLine = append(w.unfinishedLine, data...)
	whole := bytes.LastIndexByte(w.unfinishedLine, '\n') + 1
	if len(w.unfinishedLine)-whole > maxBufferedLine {
		whole = len(w.unfinishedLine)
	}
	_, err := w.output.Write(EscapeLines(w.unfinishedLine[:whole]))
	w.unfinishedLine = slices.Delete(w.unfinishedLine, 0, whole)
	return len(data), err
}

// TerminalWriter returns a writer to w for the output of a program. If w is a terminal, the writer escapes the output, so that the
// program can't control the terminal. Call end after the last write.
func TerminalWriter(w io.Writer) (out io.Writer, end func()) {
	file, is := w.(*os.File)
	if checked, wrapped := w.(*checkedWriter); wrapped {
		file, is = checked.Writer.(*os.File)
	}
	if !is || !proc.IsTerminal(file) {
		return w, func() {}
	}
	lines := &lineWriter{output: w}
	return lines, func() { _, _ = w.Write(EscapeLines(lines.unfinishedLine)) } // the terminal may have been closed
}

// EscapeJSON replaces characters that could control a terminal by \u sequences. They are the characters that [show.EscapeLine]
// escapes. The JSON document keeps its meaning.
func EscapeJSON(doc []byte) []byte {
	if !slices.ContainsFunc(doc, func(c byte) bool { return c >= 0x7f }) {
		return doc
	}
	out := make([]byte, 0, len(doc)+64)
	for len(doc) > 0 {
		r, n := utf8.DecodeRune(doc)
		switch {
		case r < 0x7f || show.EscapeLine(string(doc[:n])) == string(doc[:n]):
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

// WriteJSON writes v as a JSON document, escaped by [EscapeJSON]. If indent is not empty, each value is on its own line.
func WriteJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", indent)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(EscapeJSON(b.Bytes()))
	return err
}

// EscapedWriter is a writer that escapes text for a terminal, except for line ends. Each write must contain whole lines, or whole
// cells of a table. Pass a name that an agent can choose through [show.EscapeLine] or [show.EscapeName] first, because it may
// contain a line end.
type EscapedWriter struct{ io.Writer }

// Write implements io.Writer.
func (w EscapedWriter) Write(text []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, show.EscapeText(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// checkedWriter stores the first error of a write.
type checkedWriter struct {
	io.Writer
	err error
}

func (w *checkedWriter) Write(data []byte) (int, error) {
	n, err := w.Writer.Write(data)
	w.err = cmp.Or(w.err, err)
	return n, err
}

// RunWithOutput calls run with standard output, and returns the exit code of the process. If a write has failed although run
// returns [ExitDone] or [ExitNotUp], RunWithOutput reports the error and returns [ExitFailed].
func RunWithOutput(run func(out io.Writer) int) int {
	out := &checkedWriter{Writer: os.Stdout}
	code := run(out)
	if out.err != nil && (code == ExitDone || code == ExitNotUp) {
		fmt.Fprintln(os.Stderr, "cannot write the output:", out.err)
		return ExitFailed
	}
	return code
}

// shellSafeCharacters are the characters without a special meaning in a shell.
const shellSafeCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+"

// ShellQuote quotes a word for a shell if it contains a character that is not plain. People paste printed commands into a shell,
// where a name chosen by an agent could otherwise run a command.
func ShellQuote(word string) string {
	if word != "" && strings.Trim(word, shellSafeCharacters) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
