package web

import (
	"fmt"
	"strconv"
	"time"

	"hinit/internal/usage"
)

const (
	points     = 24 // values in a row's graph
	pointEvery = time.Hour / points
	heights    = 9 // height of a graph, without 0
	leastCPU   = 0.05
)

// past is the use of a service in the last hour. It has one value for each of at most [points] periods, oldest first.
type past struct {
	cpu, memory []float32 // processors, bytes
	run         float64   // processor time of the unfinished period
	most        uint64    // largest memory in that period
	lines       [2]string // the values as graphs
}

// add adds a measurement. passed is the time since the measurement before. If over is true, it is the last one of a period, which had the
// length stretch.
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

// line draws values as an SVG path, [points]-1 wide and [heights] high. The height stands for the largest value, or for least if
// that is larger. The style sheet enlarges it.
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
		for _, step := range [][2]int{{flat, 0}, {1, last - h}} { // a sign or a blank separates two numbers
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
