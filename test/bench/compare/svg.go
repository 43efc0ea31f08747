package main

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

type plot struct {
	title, unit string
	lines       []line
}

type line struct {
	name   string
	points []point
	bold   bool
}

type point struct{ x, y float64 }

// Size of a plot, and of the frame in it.
const (
	plotWidth, plotHeight                      = 760, 440
	frameLeft, frameTop, frameRight, frameDown = 70, 48, 620, 390
)

// colourOf returns a line's colour, the same in all plots and distinguishable with any colour
// blindness.
func colourOf(name string) string {
	switch name {
	case hinitName:
		return "#0072b2"
	case loopName:
		return "#7f7f7f"
	case "s6":
		return "#d55e00"
	case "runit":
		return "#009e73"
	case "supervisord":
		return "#cc79a7"
	case pebbleName:
		return "#e69f00"
	case "nitro":
		return "#56b4e9"
	}
	return "#8c6d31"
}

type axisScale struct{ low, high, from, to float64 }

func (s axisScale) position(v float64) float64 {
	v = max(v, s.low)
	return s.from + (math.Log10(v)-math.Log10(s.low))/(math.Log10(s.high)-math.Log10(s.low))*(s.to-s.from)
}

// powersOfTen returns the powers of ten in the range.
func (s axisScale) powersOfTen() []float64 {
	var all []float64
	for e := math.Ceil(math.Log10(s.low) - 1e-9); e <= math.Log10(s.high)+1e-9; e++ {
		all = append(all, math.Pow(10, e))
	}
	return all
}

// svg draws the plot. A zero is at the lower edge, because a logarithmic axis has no zero.
func (p plot) svg() string {
	x := axisScale{math.Inf(1), 0, frameLeft, frameRight}
	y := axisScale{math.Inf(1), 0, frameDown, frameTop}
	for _, l := range p.lines {
		for _, pt := range l.points {
			x.low, x.high = min(x.low, pt.x), max(x.high, pt.x)
			if pt.y > 0 {
				y.low, y.high = min(y.low, pt.y), max(y.high, pt.y)
			}
		}
	}
	if math.IsInf(y.low, 1) {
		y.low, y.high = 1, 1
	}
	y.low = math.Pow(10, math.Floor(math.Log10(y.low)))
	y.high = math.Pow(10, math.Ceil(math.Log10(y.high)))
	if y.low == y.high {
		y.high *= 10
	}
	if x.low == x.high {
		x.high *= 10
	}
	var w strings.Builder
	fmt.Fprintf(&w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">
<rect width="100%%" height="100%%" fill="#ffffff"/>
<text x="%d" y="24" font-size="16" fill="#222222">%s</text>
`, plotWidth, plotHeight, frameLeft, html.EscapeString(p.title))
	for _, v := range y.powersOfTen() {
		fmt.Fprintf(&w, `<path d="M%d %.1fH%d" stroke="#dddddd"/><text x="%d" y="%.1f" text-anchor="end" fill="#555555">%s</text>`+"\n",
			frameLeft, y.position(v), frameRight, frameLeft-8, y.position(v)+4, tickLabel(v))
	}
	for _, v := range p.serviceCounts() {
		fmt.Fprintf(&w, `<path d="M%.1f %dV%d" stroke="#eeeeee"/><text x="%.1f" y="%d" text-anchor="middle" fill="#555555">%s</text>`+"\n",
			x.position(v), frameTop, frameDown, x.position(v), frameDown+18, tickLabel(v))
	}
	fmt.Fprintf(&w, `<text x="%d" y="%d" text-anchor="end" fill="#555555">services</text>`+"\n", frameRight, frameDown+38)
	fmt.Fprintf(&w, `<text x="%d" y="%d" fill="#555555">%s</text>`+"\n", frameLeft-62, frameTop-8, html.EscapeString(p.unit))
	names := p.labels(x, y)
	for i, l := range p.lines {
		colour, width := colourOf(l.name), 1.5
		if l.bold {
			width = 3
		}
		var path strings.Builder
		for k, pt := range l.points {
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(k, 1)], x.position(pt.x), y.position(pt.y))
			fmt.Fprintf(&w, `<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s"><title>%s, %s: %s</title></circle>`+"\n",
				x.position(pt.x), y.position(pt.y), width+1, colour, html.EscapeString(l.name), tickLabel(pt.x), formatNumber(pt.y))
		}
		fmt.Fprintf(&w, `<path d="%s" fill="none" stroke="%s" stroke-width="%g"/>`+"\n", path.String(), colour, width)
		fmt.Fprintf(&w, `<text x="%.1f" y="%.1f" fill="%s" stroke="#ffffff" stroke-width="4" paint-order="stroke">%s</text>`+"\n", names[i].x, names[i].y+4, colour, html.EscapeString(l.name))
	}
	w.WriteString("</svg>\n")
	return w.String()
}

// serviceCounts returns all numbers of services in the plot.
func (p plot) serviceCounts() []float64 {
	var all []float64
	for _, l := range p.lines {
		for _, pt := range l.points {
			if !slices.Contains(all, pt.x) {
				all = append(all, pt.x)
			}
		}
	}
	slices.Sort(all)
	return all
}

// labels returns the positions of the lines' names: beside each last point, moved apart to be
// readable.
func (p plot) labels(x, y axisScale) []point {
	const apart, beside = 16, 9
	places := make([]point, len(p.lines))
	order := make([]int, len(p.lines))
	for i, l := range p.lines {
		order[i] = i
		if n := len(l.points); n > 0 {
			places[i] = point{x.position(l.points[n-1].x) + beside, y.position(l.points[n-1].y)}
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(places[a].x, places[b].x), cmp.Compare(places[a].y, places[b].y))
	})
	for k := 1; k < len(order); k++ {
		if above := places[order[k-1]]; above.x == places[order[k]].x {
			places[order[k]].y = max(places[order[k]].y, above.y+apart)
		}
	}
	// Move names up that are below the lower edge.
	for k, i := range slices.Backward(order) {
		low := float64(frameDown)
		if k+1 < len(order) && places[order[k+1]].x == places[i].x {
			low = places[order[k+1]].y - apart
		}
		places[i].y = min(places[i].y, low)
	}
	return places
}

func tickLabel(v float64) string {
	if v >= 1 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%g", v)
}
