package dial

import (
	"context"
	"time"
)

// SetCutRetryTimeout sets how long the client repeats a request whose connection was cut.
func (c *Client) SetCutRetryTimeout(d time.Duration) { c.cutRetryTimeout = d }

// RequestPath requests a path, and waits for the answer until limit is over.
func (c *Client) RequestPath(ctx context.Context, path string, limit time.Duration) error {
	_, err := c.send(ctx, apiCall{method: "GET", path: path, limit: limit})
	return err
}
