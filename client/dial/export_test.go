package dial

import (
	"context"
	"time"
)

// SetCutTime changes how long a question is asked again whose connection was cut.
func (c *Client) SetCutTime(d time.Duration) { c.cutTime = d }

// Ask asks for a path, and waits so long for the answer.
func (c *Client) Ask(ctx context.Context, path string, limit time.Duration) error {
	_, err := c.send(ctx, apiCall{method: "GET", path: path, limit: limit})
	return err
}
