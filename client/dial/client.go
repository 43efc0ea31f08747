package dial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"hinit/client"
)

const (
	// answerTime is the default time limit for an answer.
	answerTime = 10 * time.Second
	// workTime is the time limit for requests that make hinit read many files.
	workTime = time.Minute
	// longestWait is the longest time that the server waits by default for the effect of a command.
	longestWait = 40 * time.Second
	// maxReply limits the size of an answer. Any program may listen on the socket, not only hinit.
	maxReply = 64 << 20
)

// Client sends requests to one hinit. A method blocks until hinit has answered, ctx ends, or its time limit is over. The limit is 10
// seconds, and a minute for Rescan, Reload and Examine. For a command that waits for its effect, it is the command's timeout and 10
// seconds more.
type Client struct {
	socket  string
	opened  atomic.Pointer[opened] // connection that Dial made; the first request uses it
	cutTime time.Duration
	found   bool // Dial found the socket in a list of candidates, so it must check the server's user
}

// New returns a client of the hinit that listens on socket, a path or an abstract "@name". It does not connect.
func New(socket string) *Client { return &Client{socket: socket, cutTime: cutTime} }

// Socket returns the path of the control socket.
func (c *Client) Socket() string { return c.socket }

// Status returns the state of hinit and of the named services, or of all services. A name is the name of a service (dashboard,
// gateway-coder) or of a profile (coder). The error is ErrUnknown for an unknown name.
func (c *Client) Status(ctx context.Context, names ...string) (client.Status, error) {
	q := question{doing: "get the status", method: http.MethodGet, path: "/v1/status", query: url.Values{"name": names}}
	return ask[client.Status](ctx, c, q)
}

// StatusTable returns the status as the table of `hinit status`, and the number of listed services that are not up. An older hinit
// ignores look.
func (c *Client) StatusTable(ctx context.Context, look client.Look, names ...string) (table []byte, down int, err error) {
	q := question{doing: "get the status", method: http.MethodGet, path: "/v1/status", query: url.Values{"name": names, "as": {client.AsTable}}}
	if look.Width > 0 {
		q.query.Set("width", strconv.Itoa(look.Width))
	}
	if look.Colour {
		q.query.Set("colour", "1")
	}
	if look.Verbose {
		q.query.Set("verbose", "1")
	}
	r, fault := c.send(ctx, q)
	if fault != nil && fault.Kind == client.KindBadRequest && look != (client.Look{}) {
		return c.StatusTable(ctx, client.Look{}, names...)
	}
	if fault != nil {
		return nil, 0, explain(ctx, q, fault)
	}
	defer r.close()
	if table, err = io.ReadAll(io.LimitReader(r, maxReply)); err == nil {
		down, err = strconv.Atoi(r.header.Get(client.DownHeader))
	}
	if err != nil {
		return nil, 0, explain(ctx, q, c.broken(err))
	}
	return table, down, nil
}

// Service returns the state of one service. name is the name of the service or of its profile.
func (c *Client) Service(ctx context.Context, name string) (client.Service, error) {
	q := question{doing: fmt.Sprintf("get the status of %q", name), method: http.MethodGet}
	return c.askService(ctx, q, name, "")
}

// Start starts a service. With wait it succeeds when a run of the service has been up for a second; else the error says how the run
// ended. Without wait it succeeds when the supervisor has accepted the command.
func (c *Client) Start(ctx context.Context, name string, wait client.Wait) (client.Service, error) {
	return c.Order(ctx, client.VerbStart, name, wait)
}

// Stop stops a service. With wait it succeeds when none of its processes is alive.
func (c *Client) Stop(ctx context.Context, name string, wait client.Wait) (client.Service, error) {
	return c.Order(ctx, client.VerbStop, name, wait)
}

// Restart restarts a service, or starts one that is not running. With wait it succeeds when a new run has been up for a second.
func (c *Client) Restart(ctx context.Context, name string, wait client.Wait) (client.Service, error) {
	return c.Order(ctx, client.VerbRestart, name, wait)
}

// RunOnce runs a task. With wait it returns when the run has ended: Done reports success, and LastExit says how the run ended. If
// the answer is lost, the caller can't know whether the task has run.
func (c *Client) RunOnce(ctx context.Context, name string, wait client.Wait) (client.Service, error) {
	return c.Order(ctx, client.VerbRunOnce, name, wait)
}

// Order gives an order to a service, as Start, Stop, Restart and RunOnce do.
func (c *Client) Order(ctx context.Context, verb client.Verb, name string, wait client.Wait) (client.Service, error) {
	q := question{doing: fmt.Sprintf("%s %q", verb, name), method: http.MethodPost, limit: answerTime, repeats: verb != client.VerbRestart && verb != client.VerbRunOnce}
	if wait.Wait {
		q.limit += longestWait
		if wait.Timeout > 0 && verb != client.VerbStart && verb != client.VerbRestart { // their time begins with their turn
			q.limit = answerTime + wait.Timeout
		}
	}
	q.body = client.Command{Wait: &wait.Wait, TimeoutMS: int64((wait.Timeout + time.Millisecond - 1) / time.Millisecond), Force: wait.Force}
	return c.askService(ctx, q, name, "/"+string(verb))
}

// SteerChecks pauses the checks of a service for the duration pause. If pause is 0, it ends a pause and runs the checks now.
func (c *Client) SteerChecks(ctx context.Context, name string, pause time.Duration) (client.Service, error) {
	q := question{doing: fmt.Sprintf("steer the checks of %q", name), method: http.MethodPost, limit: answerTime, body: client.ChecksRequest{PauseMS: pause.Milliseconds()}}
	return c.askService(ctx, q, name, "/checks")
}

// Signal sends a signal to the main process of a service. It returns an error if the service has no process.
func (c *Client) Signal(ctx context.Context, name string, signal syscall.Signal) (client.Service, error) {
	q := question{doing: fmt.Sprintf("signal %q", name), method: http.MethodPost, limit: answerTime, body: client.SignalRequest{Signal: int(signal)}}
	return c.askService(ctx, q, name, "/signal")
}

// Events calls fn for each event, oldest first, and returns fn's error if it has one. Without Follow it returns after the last
// event; with Follow it returns nil when hinit ends. fn runs in the caller's goroutine. A slow fn loses events, see Lost in [Event].
func (c *Client) Events(ctx context.Context, o client.EventOptions, fn func(client.Event) error) error {
	q := question{doing: "read the events", method: http.MethodGet, path: "/v1/events", query: url.Values{}}
	if o.Since > 0 {
		q.query.Set("since", strconv.FormatUint(o.Since, 10))
	}
	if o.Last != 0 {
		q.query.Set("last", strconv.Itoa(max(o.Last, 0)))
	}
	if o.Follow {
		q.query.Set("follow", "1")
	}
	return stream(ctx, c, q, fn)
}

// stream calls fn for each JSON document of an answer. It ends with the answer, or when fn returns an error, which stream returns.
func stream[T any](ctx context.Context, c *Client, q question, fn func(T) error) error {
	r, err := c.send(ctx, q)
	if err != nil {
		return explain(ctx, q, err)
	}
	defer r.close()
	r.unlimited()
	for lines := json.NewDecoder(r); ; {
		var next T
		switch err := lines.Decode(&next); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return explain(ctx, q, c.broken(err))
		}
		if err := fn(next); err != nil {
			return err
		}
	}
}

// Rescan makes hinit read the profiles on disk. It returns when hinit has read them.
func (c *Client) Rescan(ctx context.Context) error {
	return c.tell(ctx, question{doing: "look for profiles", method: http.MethodPost, path: "/v1/rescan", limit: workTime})
}

// Reload makes hinit read its configuration again and returns the changes.
func (c *Client) Reload(ctx context.Context, how client.Reload) (client.ReloadReply, error) {
	q := question{doing: "reload", method: http.MethodPost, path: "/v1/reload", limit: workTime}
	if how != (client.Reload{}) {
		q.body = how
	}
	return ask[client.ReloadReply](ctx, c, q)
}

// Topology changes how many gateways serve the profiles, or returns the present topology.
func (c *Client) Topology(ctx context.Context, how client.Topology) (client.TopologyReply, error) {
	return ask[client.TopologyReply](ctx, c, question{doing: "change the topology", method: http.MethodPost, path: "/v1/topology", limit: answerTime + longestWait, body: how})
}

// reexecPoll is the pause between the requests by which Reexec finds out whether the new image answers.
const reexecPoll = 10 * time.Millisecond

// Reexec replaces the running program of hinit by the file binary. If binary is empty, it uses the file of the running program. The
// services keep running. Reexec returns hinit's description once the new program answers.
func (c *Client) Reexec(ctx context.Context, binary string) (client.Init, error) {
	ctx, cancel := context.WithTimeout(ctx, workTime)
	defer cancel()
	q := question{doing: "re-execute hinit", method: http.MethodPost, path: "/v1/reexec", body: client.Reexec{Binary: binary}}
	was, err := ask[client.ReexecReply](ctx, c, q)
	if err != nil {
		return client.Init{}, err
	}
	for {
		s, err := c.Status(ctx)
		switch {
		case err == nil && s.Init.Image > was.Image:
			return s.Init, nil
		case err == nil && s.Init.ReexecError != "":
			return s.Init, explain(ctx, q, &client.Error{Kind: client.KindFailed, Message: s.Init.ReexecError})
		case err != nil && ctx.Err() != nil:
			return client.Init{}, err
		}
		select {
		case <-ctx.Done():
			return client.Init{}, explain(ctx, q, &client.Error{Kind: client.KindTimeout, Message: "it has not come about in time"})
		case <-time.After(reexecPoll):
		}
	}
}

// Examine makes hinit examine the data volume, and returns the findings within 8 seconds. A volume that does not answer is a
// finding.
func (c *Client) Examine(ctx context.Context) (client.Findings, error) {
	r, err := ask[client.ExamineReply](ctx, c, question{doing: "examine the data volume", method: http.MethodPost, path: "/v1/examine", limit: workTime})
	return r.Findings, err
}

// Config returns the effective configuration.
func (c *Client) Config(ctx context.Context) ([]client.ConfigEntry, error) {
	r, err := ask[client.ConfigReply](ctx, c, question{doing: "get the configuration", method: http.MethodGet, path: "/v1/config"})
	return r.Entries, err
}

// Health reports whether hinit works. A hinit that does not work may still answer: read Health.OK.
func (c *Client) Health(ctx context.Context) (client.Health, error) { return c.Probe(ctx, "") }

// Probe is like Health, for one probe of a pod. probe is one of the Probe constants.
func (c *Client) Probe(ctx context.Context, probe string) (client.Health, error) {
	path := "/v1/health"
	if probe != "" {
		path += "?probe=" + url.QueryEscape(probe)
	}
	return ask[client.Health](ctx, c, question{doing: "get the health", method: http.MethodGet, path: path})
}

// askService sends a request about one service. It rejects names that a path cannot hold; no service has such a name.
func (c *Client) askService(ctx context.Context, q question, name, suffix string) (client.Service, error) {
	switch name {
	case "", ".", "..":
		message := fmt.Sprintf("no such profile or service %q; `hinit status` lists them", name)
		return client.Service{}, explain(ctx, q, &client.Error{Kind: client.KindUnknown, Message: message})
	}
	q.path = "/v1/services/" + url.PathEscape(name) + suffix
	return ask[client.Service](ctx, c, q)
}

// ask sends a request and decodes the answer.
func ask[T any](ctx context.Context, c *Client, q question) (answer T, err error) {
	r, fault := c.send(ctx, q)
	if fault != nil {
		return answer, explain(ctx, q, fault)
	}
	defer r.close()
	if err := json.NewDecoder(io.LimitReader(r, maxReply)).Decode(&answer); err != nil {
		return answer, explain(ctx, q, c.broken(err))
	}
	return answer, nil
}

// tell sends a request whose answer has no content.
func (c *Client) tell(ctx context.Context, q question) error {
	r, fault := c.send(ctx, q)
	if fault != nil {
		return explain(ctx, q, fault)
	}
	r.close()
	return nil
}
