package dial

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"hinit/client"
)

// Watch calls fn with the whole status, then with each change, and returns fn's error if it has one. It calls fn at most once a
// second and at least every [WatchBeat]. So a longer silence means that hinit does not answer. Each call has all changes since the
// one before. A slow fn misses only a value that has changed again. Watch returns nil when hinit ends or is replaced by a new image
// of itself. The caller may then call it again. fn runs in the caller's goroutine. If hinit does not support following, Watch asks
// for the status once a second.
func (c *Client) Watch(ctx context.Context, fn func(client.StatusChange) error) error {
	q := question{doing: "follow the status", method: http.MethodGet, path: "/v1/status/follow"}
	err := stream(ctx, c, q, fn)
	if !errors.Is(err, client.ErrBadRequest) {
		return err
	}
	for {
		st, err := c.Status(ctx)
		if err == nil {
			err = fn(client.StatusChange{Whole: true, Init: st.Init, Services: st.Services})
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

// Notify posts a notice: an event with its key and data. If the caller is a process of a service, the event names that service.
func (c *Client) Notify(ctx context.Context, n client.Notice) error {
	q := question{doing: fmt.Sprintf("post the notice %q", n.Key), method: http.MethodPost, path: "/v1/notices", body: n}
	return c.tell(ctx, q)
}
