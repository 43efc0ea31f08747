// Package backoff computes how long to wait before the next try. It is pure arithmetic: it reads no clock, owns no
// goroutine and keeps no state; the caller counts the failures and draws the random number.
package backoff

import (
	"math"
	"time"
)

// Policy says how delays grow.
type Policy struct {
	Initial time.Duration // delay after the first failure
	Max     time.Duration // the delay stops growing here (jitter is applied around it)
	Factor  float64       // growth per further failure; below 1 counts as 1
	Jitter  float64       // share by which a delay is spread both ways, 0.1 is ±10 %; outside 0..0.5 is clamped
}

// Delay returns the wait after the failures-th failure in a row (1 is the first; less counts as 1). random is a number
// in [0,1) drawn by the caller: 0 gives the shortest delay of the spread, 0.5 the middle.
func (p Policy) Delay(failures int, random float64) time.Duration {
	d := float64(p.Initial) * math.Pow(max(p.Factor, 1), float64(max(failures, 1)-1))
	if limit := float64(p.Max); p.Max > 0 && d > limit {
		d = limit
	}
	jitter := min(max(p.Jitter, 0), 0.5)
	d *= 1 + jitter*(2*random-1)
	// Inf or NaN cannot pass the limit unless Max is 0; keep the conversion defined in that case too.
	return time.Duration(min(d, float64(math.MaxInt64/2)))
}
