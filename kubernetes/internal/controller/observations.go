package controller

import "time"

// observations records how long each observed value of a pool has been unchanged. It uses this
// controller's monotonic clock, because the clocks of nodes and other controllers may be wrong.
// Only one goroutine may use it.
type observations struct {
	previous, current map[string]observation
}

type observation struct {
	value   string
	since   time.Time // Time at which this controller first saw the value.
	changed bool      // Whether the value changed after the first round of this controller.
}

// begin starts a round. The observations of a round that fails before [observations.end] are lost.
func (s *observations) begin() { s.current = map[string]observation{} }

// end completes a round. It forgets keys that the round has not observed.
func (s *observations) end() { s.previous = s.current }

// observe records the value of a key at the time now. The result says since when the key has this value.
func (s *observations) observe(key, value string, now time.Time) observation {
	one, known := s.previous[key]
	if !known || one.value != value {
		one = observation{value: value, since: now, changed: s.previous != nil}
	}
	s.current[key] = one
	return one
}
