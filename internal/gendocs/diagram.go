package main

import (
	"fmt"
	"html"
	"slices"
	"strings"
)

// stateBox is a state in a diagram, with the coordinates of the middle of its box.
type stateBox struct {
	state string
	x, y  int
}

// transitionArrow is a transition in a diagram: its two states, the events that cause it, the line as SVG path data (way), and
// the position of the text.
type transitionArrow struct {
	from, to string
	events   []string
	svgPath  string
	x, y     int
}

// serviceStates lists the states of a service in the diagram.
var serviceStates = []stateBox{
	{"waiting", 90, 60},
	{"starting", 330, 60},
	{"up", 570, 60},
	{"stopping", 810, 60},
	{"failed", 250, 200},
	{"backoff", 420, 200},
	{"parked", 620, 200},
	{"killing", 810, 200},
	{"down", 90, 300},
}

const (
	boxWidth  = 104
	boxHeight = 36
)

// serviceArrows lists the transitions in the diagram. Each of them must be in the transition table.
var serviceArrows = []transitionArrow{
	{"down", "starting", []string{"start"}, "M110 282L290 78", 160, 200},
	{"waiting", "down", []string{"stop"}, "M80 78V282", 86, 150},
	{"waiting", "starting", []string{"met"}, "M142 60H278", 196, 52},
	{"starting", "up", []string{"spawned"}, "M382 60H518", 424, 52},
	{"up", "starting", []string{"again"}, "M550 42C520 12 380 12 350 42", 435, 14},
	{"starting", "failed", []string{"spawnbad"}, "M310 78L256 182", 218, 130},
	{"failed", "starting", []string{"start"}, "M282 182L328 78", 312, 150},
	{"starting", "backoff", []string{"spawnfail"}, "M352 78L398 182", 378, 112},
	{"backoff", "starting", []string{"deadline"}, "M430 182L374 78", 414, 150},
	{"up", "backoff", []string{"crash"}, "M550 78L450 182", 506, 140},
	{"up", "parked", []string{"park"}, "M576 78L610 182", 602, 120},
	{"parked", "starting", []string{"inputs"}, "M590 218C540 300 300 290 330 78", 440, 268},
	{"up", "stopping", []string{"stop", "restart"}, "M622 60H758", 646, 52},
	{"stopping", "killing", []string{"deadline"}, "M810 78V182", 816, 135},
	{"stopping", "down", []string{"gone"}, "M862 60H890V310H142", 700, 326},
	{"killing", "down", []string{"gone"}, "M810 218V290H142", 700, 284},
}

// stateDiagram returns an SVG of the states and the most important transitions. rows is the transition table; diagram returns an
// error if an arrow isn't in it.
func stateDiagram(rows [][4]string) (string, error) {
	for _, a := range serviceArrows {
		for _, event := range a.events {
			if !slices.ContainsFunc(rows, func(r [4]string) bool { return r[0] == a.from && r[1] == event && r[2] == a.to }) {
				return "", fmt.Errorf("cannot draw that %s leads from %s to %s: the transition table does not say so", event, a.from, a.to)
			}
		}
	}
	return drawSVG("supervisor/machine.go", 910, 345, serviceStates, serviceArrows), nil
}

// drawSVG returns an SVG with the given boxes and arrows. from is the name of the file that defines them.
func drawSVG(from string, width, height int, boxes []stateBox, arrows []transitionArrow) string {
	var w strings.Builder
	fmt.Fprintf(&w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">
<!-- Generated from %s by internal/gendocs. Do not edit. -->
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555555"/></marker></defs>
<rect width="100%%" height="100%%" fill="#ffffff"/>
`, width, height, from)
	for _, a := range arrows {
		fmt.Fprintf(&w, `<path d="%s" fill="none" stroke="#555555" stroke-width="1.3" marker-end="url(#tip)"/>`+"\n", a.svgPath)
		fmt.Fprintf(&w, `<text x="%d" y="%d" fill="#333333" stroke="#ffffff" stroke-width="3" paint-order="stroke">%s</text>`+"\n",
			a.x, a.y, html.EscapeString(strings.Join(a.events, ", ")))
	}
	for _, b := range boxes {
		fill := "#eef3f8"
		if b.state == "up" || b.state == "running" {
			fill = "#d9efd9"
		}
		fmt.Fprintf(&w, `<rect x="%d" y="%d" width="%d" height="%d" rx="8" fill="%s" stroke="#44617b"/>`+"\n",
			b.x-boxWidth/2, b.y-boxHeight/2, boxWidth, boxHeight, fill)
		fmt.Fprintf(&w, `<text x="%d" y="%d" text-anchor="middle" font-weight="bold" fill="#222222">%s</text>`+"\n", b.x, b.y+5, b.state)
	}
	w.WriteString("</svg>\n")
	return w.String()
}
