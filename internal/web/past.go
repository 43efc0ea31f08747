package web

import (
	"fmt"
	"strconv"
	"time"

	"hinit/internal/usage"
)

const (
	points     = 24 // of the lines of a row
	pointEvery = time.Hour / points
	heights    = 9 // of a line, beside 0
	leastCPU   = 0.05
)

// past is what a service used in the last hour, one value for each of at most [points] stretches of time, oldest first.
type past struct {
	cpu, memory []float32 // processors, bytes
	run         float64   // processor time of the stretch that is not over
	most        uint64    // memory of that stretch
	lines       [2]string // the values as lines
}

// add takes a measurement of the time that passed, and ends the stretch when it is over.
func (p *past) add(u usage.Usage, passed time.Duration, over bool, stretch time.Duration) {
	p.run += u.CPU * passed.Seconds()
	p.most = max(p.most, u.Memory)
	if !over {
		return
	}
	p.cpu = push(p.cpu, float32(p.run/stretch.Seconds()))
	p.memory = push(p.memory, float32(p.most))
	p.run, p.most = 0, 0
	p.lines = [2]string{line(p.cpu, leastCPU), line(p.memory, 1)}
}

func push(values []float32, v float32) []float32 {
	return append(values[max(0, len(values)-points+1):], v)
}

// line draws values as the path of an SVG, [points]-1 wide and [heights] high, which is as high as the largest of them or least. The style sheet
// makes it larger.
func line(values []float32, least float32) string {
	if len(values) < 2 {
		return ""
	}
	for _, v := range values {
		least = max(least, v)
	}
	height := func(v float32) int { return int(v/least*heights + 0.5) }
	last := height(values[0])
	out := fmt.Appendf(nil, "M%d %dl", points-len(values), heights-last)
	flat := 0
	for i, v := range values[1:] {
		h := height(v)
		if h == last && i < len(values)-2 {
			flat++
			continue
		}
		for _, step := range [][2]int{{flat, 0}, {1, last - h}} { // a number is parted from the one before it by its sign, or a blank
			if step[0] == 0 {
				continue
			}
			if out[len(out)-1] != 'l' {
				out = append(out, ' ')
			}
			out = strconv.AppendInt(out, int64(step[0]), 10)
			if step[1] >= 0 {
				out = append(out, ' ')
			}
			out = strconv.AppendInt(out, int64(step[1]), 10)
		}
		last, flat = h, 0
	}
	return string(out)
}
