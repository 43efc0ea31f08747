package client

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
func (c *Client) Status(ctx context.Context, names ...string) (Status, error) {
	var s Status
	q := question{doing: "get the status", method: http.MethodGet, path: "/v1/status", query: url.Values{"name": names}}
	return s, c.ask(ctx, q, &s)
}

// Look describes the appearance of the status table. The zero value suits a file.
type Look struct {
	Width   int  // columns of the terminal; 0 for no limit
	Colour  bool // the states in colours
	Verbose bool // show the duration and the steps of the boot
}

// StatusTable returns the status as the table of `hinit status`, and the number of listed services that are not up. An older hinit
// ignores look.
func (c *Client) StatusTable(ctx context.Context, look Look, names ...string) (table []byte, down int, err error) {
	q := question{doing: "get the status", method: http.MethodGet, path: "/v1/status", query: url.Values{"name": names, "as": {AsTable}}}
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
	if fault != nil && fault.Kind == KindBadRequest && look != (Look{}) {
		return c.StatusTable(ctx, Look{}, names...)
	}
	if fault != nil {
		return nil, 0, explain(ctx, q, fault)
	}
	defer r.close()
	if table, err = io.ReadAll(io.LimitReader(r, maxReply)); err == nil {
		down, err = strconv.Atoi(r.header.Get(DownHeader))
	}
	if err != nil {
		return nil, 0, explain(ctx, q, c.broken(err))
	}
	return table, down, nil
}

// Service returns the state of one service. name is the name of the service or of its profile.
func (c *Client) Service(ctx context.Context, name string) (Service, error) {
	var s Service
	q := question{doing: fmt.Sprintf("get the status of %q", name), method: http.MethodGet}
	return s, c.askService(ctx, q, name, "", &s)
}

// Wait says how long a command waits for its effect. With the zero value it does not wait.
type Wait struct {
	Wait    bool
	Timeout time.Duration // whole milliseconds, at most an hour; 0 is 30 seconds, and 40 for Stop and Restart
	Force   bool          // run a gateway beside the one that serves its profile
}

// Verb is a command to a service. It is the last part of a request's path.
type Verb string

// The verbs.
const (
	VerbStart   Verb = "start"
	VerbStop    Verb = "stop"
	VerbRestart Verb = "restart"
	VerbRunOnce Verb = "run-once"
)

// Start starts a service. With wait it succeeds when a run of the service has been up for a second; else the error says how the run
// ended. Without wait it succeeds when the supervisor has accepted the command.
func (c *Client) Start(ctx context.Context, name string, wait Wait) (Service, error) {
	return c.Order(ctx, VerbStart, name, wait)
}

// Stop stops a service. With wait it succeeds when none of its processes is alive.
func (c *Client) Stop(ctx context.Context, name string, wait Wait) (Service, error) {
	return c.Order(ctx, VerbStop, name, wait)
}

// Restart restarts a service, or starts one that is not running. With wait it succeeds when a new run has been up for a second.
func (c *Client) Restart(ctx context.Context, name string, wait Wait) (Service, error) {
	return c.Order(ctx, VerbRestart, name, wait)
}

// RunOnce runs a task. With wait it returns when the run has ended: Done reports success, and LastExit says how the run ended. If
// the answer is lost, the caller can't know whether the task has run.
func (c *Client) RunOnce(ctx context.Context, name string, wait Wait) (Service, error) {
	return c.Order(ctx, VerbRunOnce, name, wait)
}

// Order gives an order to a service, as Start, Stop, Restart and RunOnce do.
func (c *Client) Order(ctx context.Context, verb Verb, name string, wait Wait) (Service, error) {
	q := question{doing: fmt.Sprintf("%s %q", verb, name), method: http.MethodPost, limit: answerTime, repeats: verb != VerbRestart && verb != VerbRunOnce}
	if wait.Wait {
		q.limit += longestWait
		if wait.Timeout > 0 && verb != VerbStart && verb != VerbRestart { // their time begins with their turn
			q.limit = answerTime + wait.Timeout
		}
	}
	q.body = Command{Wait: &wait.Wait, TimeoutMS: int64((wait.Timeout + time.Millisecond - 1) / time.Millisecond), Force: wait.Force}
	var s Service
	return s, c.askService(ctx, q, name, "/"+string(verb), &s)
}

// SteerChecks pauses the checks of a service for the duration pause. If pause is 0, it ends a pause and runs the checks now.
func (c *Client) SteerChecks(ctx context.Context, name string, pause time.Duration) (Service, error) {
	var s Service
	q := question{doing: fmt.Sprintf("steer the checks of %q", name), method: http.MethodPost, limit: answerTime, body: ChecksRequest{pause.Milliseconds()}}
	return s, c.askService(ctx, q, name, "/checks", &s)
}

// Signal sends a signal to the main process of a service. It returns an error if the service has no process.
func (c *Client) Signal(ctx context.Context, name string, signal syscall.Signal) (Service, error) {
	var s Service
	q := question{doing: fmt.Sprintf("signal %q", name), method: http.MethodPost, limit: answerTime, body: SignalRequest{int(signal)}}
	return s, c.askService(ctx, q, name, "/signal", &s)
}

// EventOptions choose events. The zero value is the whole history.
type EventOptions struct {
	Since  uint64 // only events after this Seq
	Last   int    // at most this many events of the past; 0 is no limit, a negative number is none
	Follow bool   // go on with new events
}

// Events calls fn for each event, oldest first, and returns fn's error if it has one. Without Follow it returns after the last
// event; with Follow it returns nil when hinit ends. fn runs in the caller's goroutine. A slow fn loses events, see Lost in [Event].
func (c *Client) Events(ctx context.Context, o EventOptions, fn func(Event) error) error {
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
	return c.ask(ctx, question{doing: "look for profiles", method: http.MethodPost, path: "/v1/rescan", limit: workTime}, nil)
}

// Reload makes hinit read its configuration again and returns the changes.
func (c *Client) Reload(ctx context.Context, how Reload) (ReloadReply, error) {
	var r ReloadReply
	q := question{doing: "reload", method: http.MethodPost, path: "/v1/reload", limit: workTime}
	if how != (Reload{}) {
		q.body = how
	}
	return r, c.ask(ctx, q, &r)
}

// Topology changes how many gateways serve the profiles, or returns the present topology.
func (c *Client) Topology(ctx context.Context, how Topology) (TopologyReply, error) {
	var r TopologyReply
	return r, c.ask(ctx, question{doing: "change the topology", method: http.MethodPost, path: "/v1/topology", limit: answerTime + longestWait, body: how}, &r)
}

// reexecPoll is the pause between the requests by which Reexec finds out whether the new image answers.
const reexecPoll = 10 * time.Millisecond

// Reexec replaces the running program of hinit by the file binary. If binary is empty, it uses the file of the running program. The
// services keep running. Reexec returns hinit's description once the new program answers.
func (c *Client) Reexec(ctx context.Context, binary string) (Init, error) {
	ctx, cancel := context.WithTimeout(ctx, workTime)
	defer cancel()
	q := question{doing: "re-execute hinit", method: http.MethodPost, path: "/v1/reexec", body: Reexec{binary}}
	var was ReexecReply
	if err := c.ask(ctx, q, &was); err != nil {
		return Init{}, err
	}
	for {
		s, err := c.Status(ctx)
		switch {
		case err == nil && s.Init.Image > was.Image:
			return s.Init, nil
		case err == nil && s.Init.ReexecError != "":
			return s.Init, explain(ctx, q, &Error{Kind: KindFailed, Message: s.Init.ReexecError})
		case err != nil && ctx.Err() != nil:
			return Init{}, err
		}
		select {
		case <-ctx.Done():
			return Init{}, explain(ctx, q, &Error{Kind: KindTimeout, Message: "it has not come about in time"})
		case <-time.After(reexecPoll):
		}
	}
}

// Examine makes hinit examine the data volume, and returns the findings within 8 seconds. A volume that does not answer is a
// finding.
func (c *Client) Examine(ctx context.Context) (Findings, error) {
	var r ExamineReply
	return r.Findings, c.ask(ctx, question{doing: "examine the data volume", method: http.MethodPost, path: "/v1/examine", limit: workTime}, &r)
}

// Config returns the effective configuration.
func (c *Client) Config(ctx context.Context) ([]ConfigEntry, error) {
	var r ConfigReply
	err := c.ask(ctx, question{doing: "get the configuration", method: http.MethodGet, path: "/v1/config"}, &r)
	return r.Entries, err
}

// Health reports whether hinit works. A hinit that does not work may still answer: read Health.OK.
func (c *Client) Health(ctx context.Context) (Health, error) { return c.Probe(ctx, "") }

// Probe is like Health, for one probe of a pod. probe is one of the Probe constants.
func (c *Client) Probe(ctx context.Context, probe string) (Health, error) {
	path := "/v1/health"
	if probe != "" {
		path += "?probe=" + url.QueryEscape(probe)
	}
	var h Health
	return h, c.ask(ctx, question{doing: "get the health", method: http.MethodGet, path: path}, &h)
}

// askService sends a request about one service. It rejects names that a path cannot hold; no service has such a name.
func (c *Client) askService(ctx context.Context, q question, name, suffix string, answer *Service) error {
	switch name {
	case "", ".", "..":
		message := fmt.Sprintf("no such profile or service %q; `hinit status` lists them", name)
		return explain(ctx, q, &Error{Kind: KindUnknown, Message: message})
	}
	q.path = "/v1/services/" + url.PathEscape(name) + suffix
	return c.ask(ctx, q, answer)
}

// ask sends a request and decodes the answer into answer, unless answer is nil.
func (c *Client) ask(ctx context.Context, q question, answer any) error {
	r, err := c.send(ctx, q)
	if err != nil {
		return explain(ctx, q, err)
	}
	defer r.close()
	if answer == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(r, maxReply)).Decode(answer); err != nil {
		return explain(ctx, q, c.broken(err))
	}
	return nil
}
