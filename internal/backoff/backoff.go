// Package backoff computes how long to wait after a number of failures. It only does arithmetic: the caller counts the
// failures and supplies a random number. The package reads no clock, owns no goroutine and keeps no state.
package backoff

import (
	"math"
	"time"
)

// Policy says how the delay grows with the number of failures.
type Policy struct {
	Initial time.Duration // delay after the first failure
	Max     time.Duration // maximum delay before jitter is applied; 0: no limit
	Factor  float64       // factor between one delay and the next; below 1 counts as 1
	Jitter  float64       // random change of a delay, up or down: 0.1 means ±10 %; limited to 0..0.5
}

// Delay returns the delay after this number of failures in a row; less than one counts as one. random is a number in [0,1): 0
// gives the shortest delay, and 0.5 the delay without a random change.
func (p Policy) Delay(failures int, random float64) time.Duration {
	d := float64(p.Initial) * math.Pow(max(p.Factor, 1), float64(max(failures, 1)-1))
	if limit := float64(p.Max); p.Max > 0 && d > limit {
		d = limit
	}
	jitter := min(max(p.Jitter, 0), 0.5)
	d *= 1 + jitter*(2*random-1)
	// Without Max, d may be infinite, and min limits it to a value that an integer can hold.
	return time.Duration(min(d, float64(math.MaxInt64/2)))
}
