package frame

import (
	"fmt"
	"html"
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
	for i, t := range Themes {
		if t.Name == name {
			return i, true
		}
	}
	return 0, false
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
		for _, s := range l.fit(f.Width) {
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

// palette is what the roles are in a picture: the colour of the text.
type palette struct {
	paper, ink, chosen string
	roles              [roles]string
}

var palettes = map[bool]palette{
	false: {"#ffffff", "#24292f", "#dbe9ff", [roles]string{
		Plain: "#24292f", Dim: "#57606a", Title: "#0b3d6b", Good: "#116329", Doing: "#7a4b00", Bad: "#b3261e", Key: "#0b5cad",
		Marked: "#8250df", Found: "#b35900", Figure: "#0b5cad",
	}},
	true: {"#1b1f24", "#d7dae0", "#2f3b4a", [roles]string{
		Plain: "#d7dae0", Dim: "#8b949e", Title: "#8fb8de", Good: "#9fd59f", Doing: "#f2d06b", Bad: "#ff9a8c", Key: "#7cc7e8",
		Marked: "#d2a8ff", Found: "#f2b366", Figure: "#7cc7e8",
	}},
}

// The sizes of a picture, in pixels.
const (
	cellWidth  = 7.8
	lineHeight = 18
	margin     = 14
	fontSize   = 13
)

// SVG draws the frame as a picture, for a dark or a light page. Each line is one text element, whose text is that of the line.
func (f Frame) SVG(dark bool, about string) string {
	p := palettes[dark]
	width, height := 2*margin+int(float64(f.Width)*cellWidth+1), 2*margin+f.rows()*lineHeight
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="%d" role="img">
<title>%s</title>
<rect width="100%%" height="100%%" rx="8" fill="%s"/>
`, width, height, fontSize, html.EscapeString(about), p.paper)
	for i := range f.rows() {
		l := f.line(i)
		top := margin + i*lineHeight
		if l.Chosen {
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", margin, top, float64(f.Width)*cellWidth, lineHeight, p.chosen)
		}
		spans := l.fit(f.Width)
		var text strings.Builder
		at := 0
		for _, s := range spans {
			n := Width(s.Text)
			if strings.TrimSpace(s.Text) != "" {
				bold := ""
				if s.Role == Title || s.Role == Bad {
					bold = ` font-weight="bold"`
				}
				fmt.Fprintf(&text, `<tspan x="%.1f" textLength="%.1f" fill="%s"%s>%s</tspan>`,
					margin+float64(at)*cellWidth, float64(n)*cellWidth, p.roles[s.Role], bold, html.EscapeString(s.Text))
			}
			at += n
		}
		if text.Len() > 0 {
			fmt.Fprintf(&b, `<text y="%d" xml:space="preserve">%s</text>`+"\n", top+fontSize, text.String())
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}
