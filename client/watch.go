package client

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// StatusChange is one line of the stream that follows the status. The first line has all services. Each further line has the
// services that have changed since the line before, which may be none.
type StatusChange struct {
	Whole    bool      `json:"whole,omitempty"` // Services has all services in order; without it the listed ones replace services of the same names
	Init     Init      `json:"init"`            // current state of hinit
	Services []Service `json:"services"`        // never null; MemoryBytes, UptimeSeconds and OOMFirst have their values at the time of the line
}

// Apply changes st to the status after this line.
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

// Watch calls fn with the whole status, then with each change, and returns fn's error if it has one. It calls fn at most once a
// second and at least every [WatchBeat]. So a longer silence means that hinit does not answer. Each call has all changes since the
// one before. A slow fn misses only a value that has changed again. Watch returns nil when hinit ends or is replaced by a new image
// of itself. The caller may then call it again. fn runs in the caller's goroutine. If hinit does not support following, Watch asks
// for the status once a second.
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

// WatchBeat is the longest time between two lines of the stream that follows the status.
const WatchBeat = 2 * time.Second
