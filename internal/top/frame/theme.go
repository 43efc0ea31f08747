package frame

import (
	"slices"
	"strings"
)

// Theme says how roles look. Its colours are the sixteen of the terminal, which its user has chosen for his background.
type Theme struct {
	Name string
	sgr  [roles]string
}

// Themes are all themes. The first is the default, the last has no colour.
var Themes = []Theme{
	{"colours", [roles]string{Dim: "2", Title: "1", Good: "32", Doing: "33", Bad: "1;31", Key: "36", Marked: "1;35", Found: "30;43", Figure: "36"}},
	// Blue and orange-yellow are told apart with every kind of colour blindness, and bold from not bold without any colour.
	{"colour-blind", [roles]string{Dim: "2", Title: "1", Good: "34", Doing: "36", Bad: "1;33", Key: "36", Marked: "1;4", Found: "30;43", Figure: "34"}},
	{"no colour", [roles]string{Dim: "2", Title: "1", Bad: "1", Key: "4", Marked: "1;4", Found: "7", Doing: "4"}},
}

// ThemeOf returns the theme of a name, and the index of it.
func ThemeOf(name string) (index int, known bool) {
	index = slices.IndexFunc(Themes, func(t Theme) bool { return t.Name == name })
	return max(index, 0), index >= 0
}

// ANSI returns the frame as a terminal takes it: SGR sequences and no others, each line ended with its colours, no line end after
// the last.
func (f Frame) ANSI(t Theme) string {
	var b strings.Builder
	b.Grow(f.Width * f.Height * 2)
	for i := range f.rows() {
		if i > 0 {
			b.WriteByte('\n')
		}
		l := f.line(i)
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
