package controller

import "time"

// observations records, for one pool, since when each observed value is unchanged. It uses the monotonic clock of this controller,
// because the clocks of nodes, of the API server and of other controllers may be wrong. It must not be used concurrently: a pool
// has only one reconciliation at a time.
type observations struct {
	previous, current map[string]observation
}

type observation struct {
	value string
	since time.Time // when this controller saw the value for the first time
	moved bool      // the value appeared after the first round of this controller
}

// begin starts a round. A round that fails before [observations.end] changes nothing.
func (s *observations) begin() { s.current = map[string]observation{} }

// end completes a round. A key that the round has not seen is forgotten.
func (s *observations) end() { s.previous = s.current }

// observe records that a key has this value at the time now. The result tells since when the key has had the value.
func (s *observations) observe(key, value string, now time.Time) observation {
	one, known := s.previous[key]
	if !known || one.value != value {
		one = observation{value: value, since: now, moved: s.previous != nil}
	}
	s.current[key] = one
	return one
}
