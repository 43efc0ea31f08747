package client

import (
	"time"
)

// StatusChange is one line of the stream that follows the status. The first line has all services. Each further line has the
// services that have changed since the line before, which may be none.
type StatusChange struct {
	Whole    bool      `json:"whole,omitempty"` // Services has all services in order; if false, it has only the changed ones
	Init     Init      `json:"init"`            // current state of hinit
	Services []Service `json:"services"`        // never null; MemoryBytes, UptimeSeconds and OOMFirst have their values at the time of the line
}

// Apply updates st with the changes of this line.
func (c StatusChange) Apply(st *Status) {
	oom := st.Init.OOMFirst
	st.Version, st.Init = StatusVersion, c.Init
	if c.Whole {
		st.Services = c.Services
		return
	}
	st.Init.OOMFirst = oom
	if len(c.Services) == 0 {
		return
	}
	place := make(map[string]int, len(st.Services))
	for i := range st.Services {
		place[st.Services[i].Name] = i
	}
	next := append([]Service(nil), st.Services...) // a caller may still be reading the old list
	for _, s := range c.Services {
		if i, is := place[s.Name]; is {
			next[i] = s
		}
	}
	st.Services = next
}

// WatchBeat is the longest time between two lines of the stream that follows the status.
const WatchBeat = 2 * time.Second
