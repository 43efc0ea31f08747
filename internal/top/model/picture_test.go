package model_test

import (
	"fmt"
	"html"
	"strings"

	"hinit/internal/top/frame"
)

// palette has the colours of a picture, for the background, the text and each role.
type palette struct {
	background, foreground, selection string
	roles                             map[frame.Role]string
}

var palettes = map[bool]palette{
	false: {"#ffffff", "#24292f", "#dbe9ff", map[frame.Role]string{
		frame.Plain: "#24292f", frame.Dim: "#57606a", frame.Title: "#0b3d6b", frame.Good: "#116329", frame.Changing: "#7a4b00", frame.Bad: "#b3261e", frame.KeyHint: "#0b5cad",
		frame.MarkedService: "#8250df", frame.SearchMatch: "#b35900", frame.Graph: "#0b5cad",
	}},
	true: {"#1b1f24", "#d7dae0", "#2f3b4a", map[frame.Role]string{
		frame.Plain: "#d7dae0", frame.Dim: "#8b949e", frame.Title: "#8fb8de", frame.Good: "#9fd59f", frame.Changing: "#f2d06b", frame.Bad: "#ff9a8c", frame.KeyHint: "#7cc7e8",
		frame.MarkedService: "#d2a8ff", frame.SearchMatch: "#f2b366", frame.Graph: "#7cc7e8",
	}},
}

const (
	cellWidth  = 7.8
	lineHeight = 18
	margin     = 14
	fontSize   = 13
)

// renderSVG draws a frame as an SVG for a dark or a light page. Each line is one text element.
func renderSVG(f frame.Frame, dark bool, about string) string {
	p := palettes[dark]
	width, height := 2*margin+int(float64(f.Width)*cellWidth+1), 2*margin+min(len(f.Lines), f.Height)*lineHeight
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="%d" role="img">
<title>%s</title>
<rect width="100%%" height="100%%" rx="8" fill="%s"/>
`, width, height, fontSize, html.EscapeString(about), p.background)
	for i, l := range f.Lines[:min(len(f.Lines), f.Height)] {
		top := margin + i*lineHeight
		if l.AtCursor {
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", margin, top, float64(f.Width)*cellWidth, lineHeight, p.selection)
		}
		spans := l.Fit(f.Width)
		var text strings.Builder
		at := 0
		for _, s := range spans {
			n := frame.Width(s.Text)
			if strings.TrimSpace(s.Text) != "" {
				bold := ""
				if s.Role == frame.Title || s.Role == frame.Bad {
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
