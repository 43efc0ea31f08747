package dial

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"hinit/client"
)

// StartRun starts a one-shot run and returns it with its process id. If a run has this tag already, StartRun returns that run. So
// the call may be repeated.
func (c *Client) StartRun(ctx context.Context, r client.RunRequest) (client.Run, error) {
	q := question{doing: fmt.Sprintf("start a run of %q", r.Template), method: http.MethodPost, path: "/v1/runs", body: r, repeats: true}
	return ask[client.Run](ctx, c, q)
}

// Runs returns the live runs and the last ended ones, oldest first.
func (c *Client) Runs(ctx context.Context) ([]client.Run, error) {
	out, err := ask[client.RunsReply](ctx, c, question{doing: "list the runs", method: http.MethodGet, path: "/v1/runs"})
	return out.Runs, err
}

// Run returns one run. With wait it returns when no process of the run is alive, or when the time is over: then End is nil.
func (c *Client) Run(ctx context.Context, id string, wait time.Duration) (client.Run, error) {
	q := question{doing: fmt.Sprintf("get run %q", id), method: http.MethodGet, path: "/v1/runs/" + url.PathEscape(id), limit: answerTime + wait}
	if wait > 0 {
		q.query = url.Values{"wait_ms": {strconv.FormatInt(wait.Milliseconds(), 10)}}
	}
	return ask[client.Run](ctx, c, q)
}

// StopRun ends a run: TERM, then KILL for all remaining processes. It returns when hinit has begun to do so.
func (c *Client) StopRun(ctx context.Context, id string) (client.Run, error) {
	q := question{doing: fmt.Sprintf("stop run %q", id), method: http.MethodPost, path: "/v1/runs/" + url.PathEscape(id) + "/stop", repeats: true}
	return ask[client.Run](ctx, c, q)
}

// FollowRuns calls fn for every known run, and then each time that a run begins or ends. It returns nil when hinit ends or
// re-executes; the caller may then call it again. fn runs in the caller's goroutine.
func (c *Client) FollowRuns(ctx context.Context, fn func(client.Run) error) error {
	q := question{doing: "follow the runs", method: http.MethodGet, path: "/v1/runs", query: url.Values{"follow": {"1"}}}
	return stream(ctx, c, q, fn)
}

// Say shows a text beside the service in the status until its process ends. Only the service's main process may call it.
func (c *Client) Say(ctx context.Context, service, text string) error {
	q := question{doing: fmt.Sprintf("say something of %q", service), method: http.MethodPost, path: "/v1/services/" + url.PathEscape(service) + "/say", body: client.Said{Text: text}, repeats: true}
	return c.tell(ctx, q)
}
