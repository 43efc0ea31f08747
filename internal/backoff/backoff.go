// Package backoff computes a delay from a number of failures. Its callers decide what counts as a failure, for example the
// supervisor's state machine after an exit. The package only does arithmetic: it reads no clock, owns no goroutine and keeps no
// state. The caller counts the failures and supplies a random number.
package backoff

import (
	"math"
	"time"
)

// Policy says how delays grow.
type Policy struct {
	Initial time.Duration // delay after the first failure
	Max     time.Duration // limit of the delay, before jitter is applied
	Factor  float64       // factor by which each further failure multiplies the delay; below 1 counts as 1
	Jitter  float64       // random part of a delay, in both directions: 0.1 means ±10 %; limited to 0..0.5
}

// Delay returns the delay after a number of consecutive failures; less than one counts as one. random is a number in [0,1): 0
// gives the shortest delay, 0.5 the delay without a random part.
func (p Policy) Delay(failures int, random float64) time.Duration {
	d := float64(p.Initial) * math.Pow(max(p.Factor, 1), float64(max(failures, 1)-1))
	if limit := float64(p.Max); p.Max > 0 && d > limit {
		d = limit
	}
	jitter := min(max(p.Jitter, 0), 0.5)
	d *= 1 + jitter*(2*random-1)
	// If Max is 0, d may be infinite. The call of min keeps the conversion to an integer defined.
	return time.Duration(min(d, float64(math.MaxInt64/2)))
}
