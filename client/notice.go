package client

import (
	"context"
	"fmt"
	"net/http"
)

// Notice is an event that somebody posts (POST /v1/notices).
type Notice struct {
	Key  string `json:"key"`            // 1 to 64 letters, digits and ./_-
	Data string `json:"data,omitempty"` // at most 1024 bytes
}

// Notify posts a notice: an event with its key and data. Its service is the one that the caller's process is of, if it is of one.
func (c *Client) Notify(ctx context.Context, n Notice) error {
	q := question{doing: fmt.Sprintf("post the notice %q", n.Key), method: http.MethodPost, path: "/v1/notices", body: n}
	return c.ask(ctx, q, nil)
}
