package controller

import "time"

// sightings records, for one pool, since when each observed value is unchanged. It uses the monotonic clock of this controller,
// because the clocks of nodes, of the API server and of other controllers may be wrong. It must not be used concurrently: a pool
// has only one reconciliation at a time.
type sightings struct {
	last, now map[string]sighting
}

type sighting struct {
	value string
	since time.Time // when this controller saw the value for the first time
	moved bool      // the value appeared after the first round of this controller
}

// begin starts a round. A round that fails before [sightings.end] changes nothing.
func (s *sightings) begin() { s.now = map[string]sighting{} }

// end completes a round. A key that the round has not seen is forgotten.
func (s *sightings) end() { s.last = s.now }

// observe records that a key has this value at the time now. The result tells since when the key has had the value.
func (s *sightings) observe(key, value string, now time.Time) sighting {
	one, known := s.last[key]
	if !known || one.value != value {
		one = sighting{value: value, since: now, moved: s.last != nil}
	}
	s.now[key] = one
	return one
}
