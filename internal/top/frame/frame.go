// Package frame describes the content of a screen: lines that consist of spans, which are texts with roles. On a terminal or in
// a picture, the role of a span determines its colour.
//
// A drawn span has no control characters, and no line is wider than the screen. The package has no state and starts no
// goroutine.
package frame

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"github.com/samber/lo"
)

// Role is the meaning of a span. A theme has a style for each role.
type Role uint8

// The values of Role.
const (
	Plain Role = iota
	Dim        // unimportant text
	Title
	Good     // a service that works
	Changing // a service that is starting or stopping
	Bad      // a service that needs attention
	KeyHint
	MarkedService // a service that is marked for an order
	SearchMatch   // text that matches a search
	Graph         // part of a graph
	numRoles
)

// Span is a piece of a line.
type Span struct {
	Text string
	Role Role
}

// Line is a line of the screen. AtCursor marks the line at the cursor.
type Line struct {
	Spans    []Span
	AtCursor bool
}

// Text returns a line with one span.
func Text(role Role, text string) Line { return Line{Spans: []Span{{text, role}}} }

// Add appends a span with the given role and text to the line.
func (l *Line) Add(role Role, text string) {
	if text != "" {
		l.Spans = append(l.Spans, Span{text, role})
	}
}

// Width returns the width of a line, in columns.
func (l *Line) Width() int {
	return lo.SumBy(l.Spans, func(s Span) int { return Width(s.Text) })
}

// String returns the text of a line.
func (l *Line) String() string {
	return strings.Join(lo.Map(l.Spans, func(s Span, _ int) string { return s.Text }), "")
}

// Fit returns the spans of the line, cut or extended to exactly width columns. It replaces control characters.
func (l *Line) Fit(width int) []Span {
	out := make([]Span, 0, len(l.Spans)+1)
	room := width
	for _, s := range l.Spans {
		if room == 0 {
			break
		}
		text := Truncate(replaceControls(s.Text), room)
		out = append(out, Span{text, s.Role})
		room -= Width(text)
	}
	if room > 0 {
		out = append(out, Span{strings.Repeat(" ", room), Plain})
	}
	return out
}

// Wrap breaks a line into lines of at most width columns. Its running time is proportional to the length of the line, which an
// agent can make very long.
func (l *Line) Wrap(width int) []Line {
	if width < 1 || l.Width() <= width {
		return []Line{*l}
	}
	var out []Line
	rest := slices.Clone(l.Spans)
	for text := range strings.SplitSeq(ansi.Hardwrap(l.String(), width, true), "\n") {
		part := Line{}
		for left := len(text); left > 0; {
			n := min(left, len(rest[0].Text))
			part.Add(rest[0].Role, rest[0].Text[:n])
			if rest[0].Text = rest[0].Text[n:]; rest[0].Text == "" {
				rest = rest[1:]
			}
			left -= n
		}
		out = append(out, part)
	}
	return out
}

// Wrap breaks a text into lines of at most width columns, at blanks where possible.
func Wrap(text string, width int) []string { return strings.Split(ansi.Wrap(text, width, ""), "\n") }

// Frame is the whole content of a screen.
type Frame struct {
	Width, Height int
	Lines         []Line
}

// Width returns the width of a text, in columns.
func Width(text string) int {
	if strings.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return ansi.StringWidth(text)
	}
	return len(text)
}

// Truncate shortens a text to at most `limit` columns. A text that it has cut ends with an ellipsis.
func Truncate(text string, limit int) string {
	if Width(text) <= limit {
		return text
	}
	return ansi.Truncate(text, max(limit, 0), "…")
}

// PadRight returns a text of exactly width columns: it cuts a longer text, and appends spaces to a shorter one.
func PadRight(text string, width int) string {
	text = Truncate(text, width)
	return text + strings.Repeat(" ", max(width-Width(text), 0))
}

// PadLeft is [PadRight], but with the spaces before the text.
func PadLeft(text string, width int) string {
	text = Truncate(text, width)
	return strings.Repeat(" ", max(width-Width(text), 0)) + text
}

// replaceControls replaces control characters by question marks. It is a second safeguard: callers must already have escaped texts
// of services and profiles.
func replaceControls(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == utf8.RuneError || r >= 0x200b && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '?'
		}
		return r
	}, text)
}

// Theme has a style for each role. It uses the sixteen colours of the terminal, which fit the background that the user has
// chosen.
type Theme struct {
	Name string
	sgr  [numRoles]string
}

// Themes has all themes. The first is the default, and the last uses no colours.
var Themes = []Theme{
	{"colours", [numRoles]string{Dim: "2", Title: "1", Good: "32", Changing: "33", Bad: "1;31", KeyHint: "36", MarkedService: "1;35", SearchMatch: "30;43", Graph: "36"}},
	// Blue and orange-yellow look different with every kind of colour blindness, and bold text differs even without colours.
	{"colour-blind", [numRoles]string{Dim: "2", Title: "1", Good: "34", Changing: "36", Bad: "1;33", KeyHint: "36", MarkedService: "1;4", SearchMatch: "30;43", Graph: "34"}},
	{"no colour", [numRoles]string{Dim: "2", Title: "1", Bad: "1", KeyHint: "4", MarkedService: "1;4", SearchMatch: "7", Changing: "4"}},
}

// ANSI returns the frame as text for a terminal. Its only escape sequences are SGR sequences (colours), which it resets at the
// end of each line. The last line has no line end.
func (f Frame) ANSI(t Theme) string {
	var b strings.Builder
	b.Grow(f.Width * f.Height * 2)
	for i := range min(len(f.Lines), f.Height) {
		if i > 0 {
			b.WriteByte('\n')
		}
		l := &f.Lines[i]
		for _, s := range l.Fit(f.Width) {
			code := t.sgr[s.Role]
			if l.AtCursor {
				code = strings.TrimPrefix(code+";7", ";")
			}
			if code == "" {
				b.WriteString(s.Text)
				continue
			}
			b.WriteString("\x1b[" + code + "m" + s.Text + "\x1b[m")
		}
	}
	return b.String()
}
