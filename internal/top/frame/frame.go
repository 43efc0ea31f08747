// Package frame is what a screen shows, before a terminal or a picture makes colours of it: lines of spans with roles.
//
// It promises that nothing of a span's text is obeyed by a terminal, whatever was put in, and that a line is never wider than the
// screen. It holds no state and owns no goroutine.
package frame

import (
	"strings"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// Role says what a span is, so that a theme can say how it looks.
type Role uint8

// The roles.
const (
	Plain  Role = iota
	Dim         // of minor interest
	Title       // the head of the screen, of a table or a pane
	Good        // works
	Doing       // on its way
	Bad         // needs somebody
	Key         // a key to press
	Marked      // chosen for an order
	Found       // what was searched for
	Figure      // a drawn figure
	roles
)

// Span is a piece of a line.
type Span struct {
	Text string
	Role Role
}

// Line is a line of the screen. Chosen is the one with the cursor.
type Line struct {
	Spans  []Span
	Chosen bool
}

// Text makes a line of one span.
func Text(role Role, text string) Line { return Line{Spans: []Span{{text, role}}} }

// Add appends a span.
func (l *Line) Add(role Role, text string) {
	if text != "" {
		l.Spans = append(l.Spans, Span{text, role})
	}
}

// Width is how many columns a line takes.
func (l *Line) Width() int {
	n := 0
	for _, s := range l.Spans {
		n += Width(s.Text)
	}
	return n
}

// String returns the text of a line.
func (l *Line) String() string {
	var b strings.Builder
	for _, s := range l.Spans {
		b.WriteString(s.Text)
	}
	return b.String()
}

// Fit returns the spans cut or filled up to a width, without anything that a terminal would obey.
func (l *Line) Fit(width int) []Span {
	out := make([]Span, 0, len(l.Spans)+1)
	room := width
	for _, s := range l.Spans {
		if room == 0 {
			break
		}
		text := clean(s.Text)
		n := Width(text)
		if n > room {
			text = Cut(text, room)
			n = Width(text)
		}
		out = append(out, Span{text, s.Role})
		room -= n
	}
	if room > 0 {
		out = append(out, Span{strings.Repeat(" ", room), Plain})
	}
	return out
}

// Wrap breaks a line into lines of a width at most.
func (l *Line) Wrap(width int) []Line {
	if width < 1 || l.Width() <= width {
		return []Line{*l}
	}
	out := []Line{{}}
	room := width
	for _, s := range l.Spans {
		for text := s.Text; text != ""; {
			part := text
			if Width(text) > room {
				part = ansi.Truncate(text, room, "")
			}
			if part == "" && room < width || room == 0 { // the next letter is too wide for what is left
				out, room = append(out, Line{}), width
				continue
			}
			if part == "" { // a letter that is wider than the screen
				return out
			}
			out[len(out)-1].Add(s.Role, part)
			room -= Width(part)
			text = text[len(part):]
		}
	}
	return out
}

// Words breaks a text into lines of a width at most, at blanks where there are some.
func Words(text string, width int) []string { return strings.Split(ansi.Wrap(text, width, ""), "\n") }

// Frame is a whole screen.
type Frame struct {
	Width, Height int
	Lines         []Line
}

// Plain returns the text of a frame without its colours, and without spaces at the ends of lines.
func (f Frame) Plain() string {
	var b strings.Builder
	for i := range f.rows() {
		for _, s := range f.line(i).Fit(f.Width) {
			b.WriteString(s.Text)
		}
		b.WriteByte('\n')
	}
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func (f Frame) rows() int { return min(len(f.Lines), f.Height) }

func (f Frame) line(i int) *Line { return &f.Lines[i] }

// Width is how many columns a text takes.
func Width(text string) int {
	if strings.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return ansi.StringWidth(text)
	}
	return len(text)
}

// Cut shortens a text to most columns, with an ellipsis.
func Cut(text string, most int) string {
	switch {
	case most <= 0:
		return ""
	case Width(text) <= most:
		return text
	}
	return ansi.Truncate(text, most, "…")
}

// Fill cuts or fills up a text to a width.
func Fill(text string, width int) string {
	text = Cut(text, width)
	return text + strings.Repeat(" ", max(width-Width(text), 0))
}

// Right is Fill with the text at the right.
func Right(text string, width int) string {
	text = Cut(text, width)
	return strings.Repeat(" ", max(width-Width(text), 0)) + text
}

// clean is the last wall: who makes a span has escaped what others chose.
func clean(text string) string {
	for i := range len(text) {
		if text[i] < ' ' || text[i] >= 0x7f {
			return strings.Map(func(r rune) rune {
				if r < ' ' || r >= 0x7f && r < 0xa0 || r == utf8.RuneError || r >= 0x200b && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
					return '?'
				}
				return r
			}, text)
		}
	}
	return text
}
