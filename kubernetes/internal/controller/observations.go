package controller

import "time"

// observations records, for one pool, since when each observed value is unchanged. It uses the monotonic clock of this
// controller, because the clocks of nodes, of the API server and of other controllers may be wrong. Only one goroutine may use
// it: a pool has one round at a time.
type observations struct {
	previous, current map[string]observation
}

type observation struct {
	value string
	since time.Time // when this controller first saw the value
	moved bool      // the value appeared after the first round of this controller
}

// begin starts a round. If the round fails before [observations.end], nothing is recorded.
func (s *observations) begin() { s.current = map[string]observation{} }

// end completes a round. Keys that the round has not seen are forgotten.
func (s *observations) end() { s.previous = s.current }

// observe records that a key has this value at the time now, and returns since when.
func (s *observations) observe(key, value string, now time.Time) observation {
	one, known := s.previous[key]
	if !known || one.value != value {
		one = observation{value: value, since: now, moved: s.previous != nil}
	}
	s.current[key] = one
	return one
}
