package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// RunRequest asks for a one-shot run of a configured command (POST /v1/runs), as the agent's user and in a session of its own.
type RunRequest struct {
	Template string            `json:"template"`          // name of the command in hinit.yaml (runs) or built in
	Tag      string            `json:"tag"`               // the client's name for the run; a known tag means the existing run and starts nothing
	Profile  string            `json:"profile"`           // value of {profile}; the run gets the profile's home as HERMES_HOME
	Task     string            `json:"task,omitempty"`    // value of {task}
	Options  []string          `json:"options,omitempty"` // words in the place of the word {options}
	Env      map[string]string `json:"env,omitempty"`     // set on top of the container's environment
	Dir      string            `json:"dir,omitempty"`     // working directory; "" is the agent's
	Log      string            `json:"log,omitempty"`     // file that takes its output, appended; "" is none
	// LimitMS limits the run's duration; 0 is no limit. GraceMS is the time between TERM and KILL; 0 is the template's.
	LimitMS int64 `json:"limit_ms,omitempty"`
	GraceMS int64 `json:"grace_ms,omitempty"`
}

// Reasons to end a run.
const (
	RunStopped  = "stopped"  // a client stopped it
	RunTimedOut = "timeout"  // its limit was over
	RunShutdown = "shutdown" // the container ends, or the process that started the run
)

// Run is a one-shot run.
type Run struct {
	ID         string    `json:"id"` // unique among all runs of all containers
	Seq        uint64    `json:"seq"`
	Tag        string    `json:"tag"`
	Template   string    `json:"template"`
	Profile    string    `json:"profile"`
	Service    string    `json:"service"` // name in `hinit events`
	PID        int       `json:"pid"`     // 0 when it could not be started
	StartTicks uint64    `json:"start_ticks"`
	StartedAt  time.Time `json:"started_at"`
	Log        string    `json:"log"`
	Asked      string    `json:"asked"` // reason of a request to end it, "" without a request
	End        *RunEnd   `json:"end"`   // null while a process of the run is alive
}

// RunEnd says how a run ended.
type RunEnd struct {
	Exit
	Lost       bool    `json:"lost"` // how it ended is unknown
	OOM        bool    `json:"oom"`
	CPUSeconds float64 `json:"cpu_seconds"`
	MaxRSS     int64   `json:"max_rss_bytes"`
}

// RunsReply is the answer of GET /v1/runs.
type RunsReply struct {
	Runs []Run `json:"runs"`
}

// StartRun starts a one-shot run and returns it with its process id. If a run has this tag already, StartRun returns that run. So
// the call may be repeated.
func (c *Client) StartRun(ctx context.Context, r RunRequest) (Run, error) {
	var out Run
	q := question{doing: fmt.Sprintf("start a run of %q", r.Template), method: http.MethodPost, path: "/v1/runs", body: r, repeats: true}
	return out, c.ask(ctx, q, &out)
}

// Runs returns the live runs and the last ended ones, oldest first.
func (c *Client) Runs(ctx context.Context) ([]Run, error) {
	var out RunsReply
	err := c.ask(ctx, question{doing: "list the runs", method: http.MethodGet, path: "/v1/runs"}, &out)
	return out.Runs, err
}

// Run returns one run. With wait it returns when no process of the run is alive, or when the time is over: then End is nil.
func (c *Client) Run(ctx context.Context, id string, wait time.Duration) (Run, error) {
	var out Run
	q := question{doing: fmt.Sprintf("get run %q", id), method: http.MethodGet, path: "/v1/runs/" + url.PathEscape(id), limit: answerTime + wait}
	if wait > 0 {
		q.query = url.Values{"wait_ms": {strconv.FormatInt(wait.Milliseconds(), 10)}}
	}
	return out, c.ask(ctx, q, &out)
}

// StopRun ends a run: TERM, then KILL for all remaining processes. It returns when hinit has begun to do so.
func (c *Client) StopRun(ctx context.Context, id string) (Run, error) {
	var out Run
	q := question{doing: fmt.Sprintf("stop run %q", id), method: http.MethodPost, path: "/v1/runs/" + url.PathEscape(id) + "/stop", repeats: true}
	return out, c.ask(ctx, q, &out)
}

// FollowRuns calls fn for every known run, and then each time that a run begins or ends. It returns nil when hinit ends or
// re-executes; the caller may then call it again. fn runs in the caller's goroutine.
func (c *Client) FollowRuns(ctx context.Context, fn func(Run) error) error {
	q := question{doing: "follow the runs", method: http.MethodGet, path: "/v1/runs", query: url.Values{"follow": {"1"}}}
	return stream(ctx, c, q, fn)
}

// Said is the text that a service shows in the status (POST /v1/services/{name}/say).
type Said struct {
	Text string `json:"text"`
}

// Say shows a text beside the service in the status until its process ends. Only the service's main process may call it.
func (c *Client) Say(ctx context.Context, service, text string) error {
	q := question{doing: fmt.Sprintf("say something of %q", service), method: http.MethodPost, path: "/v1/services/" + url.PathEscape(service) + "/say", body: Said{text}, repeats: true}
	return c.ask(ctx, q, nil)
}
