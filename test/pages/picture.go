package pages

import (
	"fmt"
	"html"
	"regexp"
	"strings"
)

// The sizes of the picture of a terminal, in pixels.
const (
	cellWidth  = 7.8
	lineHeight = 18
	margin     = 14
	fontSize   = 13
)

// Picture draws what a terminal shows as an SVG. The text of a line is the text of one element.
func Picture(screen string) string {
	rows := strings.Split(strings.TrimRight(screen, "\n "), "\n")
	widest := 0
	for i := range rows {
		rows[i] = strings.TrimRight(rows[i], " \r")
		widest = max(widest, len([]rune(rows[i])))
	}
	width, height := 2*margin+int(float64(widest)*cellWidth+1), 2*margin+len(rows)*lineHeight
	var w strings.Builder
	fmt.Fprintf(&w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="monospace" font-size="%d">
<rect width="100%%" height="100%%" rx="8" fill="#1b1f24"/>
`, width, height, fontSize)
	for i, row := range rows {
		if row == "" {
			continue
		}
		fmt.Fprintf(&w, `<text x="%d" y="%d" fill="%s" xml:space="preserve" textLength="%.1f">%s</text>`+"\n",
			margin, margin+i*lineHeight+fontSize, colour(row), float64(len([]rune(row)))*cellWidth, html.EscapeString(row))
	}
	w.WriteString("</svg>\n")
	return w.String()
}

// colour makes what is worth a look stand out.
func colour(row string) string {
	switch {
	case strings.HasPrefix(row, "NAME"), strings.HasPrefix(row, "keys:"):
		return "#8fb8de"
	case strings.Contains(row, "backoff") || strings.Contains(row, "(crash)"):
		return "#f2b366"
	case strings.HasPrefix(row, "gateway-"):
		return "#9fd59f"
	}
	return "#d7dae0"
}

var drawn = regexp.MustCompile(`<text [^>]*>([^<]*)</text>`)

// Drawn returns the lines that a picture shows.
func Drawn(picture string) string {
	var text strings.Builder
	for _, m := range drawn.FindAllStringSubmatch(picture, -1) {
		text.WriteString(html.UnescapeString(m[1]) + "\n")
	}
	return text.String()
}
