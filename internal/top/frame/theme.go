package frame

import (
	"slices"
	"strings"
)

// Theme has the style of each role. It uses the sixteen colours of the terminal, which suit the user's background.
type Theme struct {
	Name string
	sgr  [roles]string
}

// Themes has all themes. The first is the default, the last has no colour.
var Themes = []Theme{
	{"colours", [roles]string{Dim: "2", Title: "1", Good: "32", Doing: "33", Bad: "1;31", Key: "36", Marked: "1;35", Found: "30;43", Figure: "36"}},
	// People with every kind of colour blindness can tell blue from orange-yellow. Bold differs from normal text without any colour.
	{"colour-blind", [roles]string{Dim: "2", Title: "1", Good: "34", Doing: "36", Bad: "1;33", Key: "36", Marked: "1;4", Found: "30;43", Figure: "34"}},
	{"no colour", [roles]string{Dim: "2", Title: "1", Bad: "1", Key: "4", Marked: "1;4", Found: "7", Doing: "4"}},
}

// ThemeOf returns the index of the theme with this name.
func ThemeOf(name string) (index int, known bool) {
	index = slices.IndexFunc(Themes, func(t Theme) bool { return t.Name == name })
	return max(index, 0), index >= 0
}

// ANSI returns the frame for a terminal. It has SGR sequences and no others, resets the colours at the end of each line, and has no
// line end after the last line.
func (f Frame) ANSI(t Theme) string {
	var b strings.Builder
	b.Grow(f.Width * f.Height * 2)
	for i := range f.rows() {
		if i > 0 {
			b.WriteByte('\n')
		}
		l := &f.Lines[i]
		for _, s := range l.Fit(f.Width) {
			code := t.sgr[s.Role]
			if l.Chosen {
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
