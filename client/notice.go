package client

import (
	"context"
	"fmt"
	"net/http"
)

// Notice is an event that a client posts (POST /v1/notices).
type Notice struct {
	Key  string `json:"key"`            // 1 to 64 letters, digits and ./_-
	Data string `json:"data,omitempty"` // at most 1024 bytes
}

// Notify posts a notice: an event with its key and data. If the caller is a process of a service, the event names that service.
func (c *Client) Notify(ctx context.Context, n Notice) error {
	q := question{doing: fmt.Sprintf("post the notice %q", n.Key), method: http.MethodPost, path: "/v1/notices", body: n}
	return c.ask(ctx, q, nil)
}
