package controller

import "time"

// sightings records since when the rounds of one pool have seen something unchanged. It measures on the monotonic clock of this
// controller, because the clocks of a node, of the API server and of another controller may be wrong. It belongs to one
// reconciliation at a time.
type sightings struct {
	last, now map[string]sighting
}

type sighting struct {
	value string
	since time.Time // when this controller saw the value for the first time
	moved bool      // it was set while this controller looked on
}

// begin starts a round. A round that does not reach end leaves no trace.
func (s *sightings) begin() { s.now = map[string]sighting{} }

// end completes a round. A key that the round has not seen is forgotten.
func (s *sightings) end() { s.last = s.now }

// see records that key has a value at the time now. It returns what is known about that value.
func (s *sightings) see(key, value string, now time.Time) sighting {
	one, known := s.last[key]
	if !known || one.value != value {
		one = sighting{value: value, since: now, moved: s.last != nil}
	}
	s.now[key] = one
	return one
}
