package client

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// StatusChange is one line of a status that is followed. The first has everything, the next what has changed since the one before
// it, and nothing where nothing has.
type StatusChange struct {
	Whole    bool      `json:"whole,omitempty"` // Services has all services in order; without it the listed ones replace services of the same names
	Init     Init      `json:"init"`            // current state of hinit
	Services []Service `json:"services"`        // never null; MemoryBytes, UptimeSeconds and OOMFirst have their values at the time of the line
}

// Apply brings a status up to date.
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
	next := append([]Service(nil), st.Services...) // who holds the old list goes on reading it
	for _, s := range c.Services {
		if i, is := place[s.Name]; is {
			next[i] = s
		}
	}
	st.Services = next
}

// Watch calls fn with the whole status, then with each change of it, and returns fn's error if it has one. A line comes at most
// once a second and at least every [WatchBeat]. So a longer silence means that hinit does not answer. A line has all changes
// since the last one. A slow fn misses only a value that has changed again. Watch returns nil when hinit ends or is replaced by a
// new image of itself. The caller may then call it again. fn runs in the caller's goroutine. If hinit does not support following,
// Watch asks for the status once a second.
func (c *Client) Watch(ctx context.Context, fn func(StatusChange) error) error {
	q := question{doing: "follow the status", method: http.MethodGet, path: "/v1/status/follow"}
	err := stream(ctx, c, q, fn)
	if !errors.Is(err, ErrBadRequest) {
		return err
	}
	for {
		st, err := c.Status(ctx)
		if err == nil {
			err = fn(StatusChange{Whole: true, Init: st.Init, Services: st.Services})
		}
		if err != nil {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// WatchBeat is the longest time between two lines of a status that is followed.
const WatchBeat = 2 * time.Second
