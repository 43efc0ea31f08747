package dial

import (
	"context"
	"time"
)

// SetCutTime sets how long the client repeats a request whose connection was cut.
func (c *Client) SetCutTime(d time.Duration) { c.repeatTimeAfterCut = d }

// Ask requests a path, and waits for the answer until limit is over.
func (c *Client) Ask(ctx context.Context, path string, limit time.Duration) error {
	_, err := c.send(ctx, apiCall{method: "GET", path: path, limit: limit})
	return err
}
