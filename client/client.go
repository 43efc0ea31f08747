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
	// answerTime is the limit of an answer that needs no waiting.
	answerTime = 10 * time.Second
	// workTime is the limit of an answer that reads many files.
	workTime = time.Minute
	// longestWait is the longest default of the server for a command that waits.
	longestWait = 40 * time.Second
	// maxReply limits an answer, because anything may listen on the socket.
	maxReply = 64 << 20
)

// Client asks one hinit. Its methods block until hinit has answered, ctx ends, or the limit is over. The limit is 10 seconds, and
// a minute for Rescan, Reload and Examine. Commands that wait have 10 seconds more than their timeout.
type Client struct {
	socket  string
	opened  atomic.Pointer[opened] // by Dial, for the first question
	cutTime time.Duration
	found   bool // by Dial among candidates, so that who listens has to be trusted
}

// New returns a client of the hinit that listens on socket, a path or an abstract "@name". It does not connect.
func New(socket string) *Client { return &Client{socket: socket, cutTime: cutTime} }

// Socket returns the path of the control socket.
func (c *Client) Socket() string { return c.socket }

// Status returns the state of hinit and of the named services, or of all. A name is a service's (dashboard, gateway-coder) or
// a profile (coder). The error is ErrUnknown for an unknown name.
func (c *Client) Status(ctx context.Context, names ...string) (Status, error) {
	var s Status
	q := question{doing: "get the status", method: http.MethodGet, path: "/v1/status", query: url.Values{"name": names}}
	return s, c.ask(ctx, q, &s)
}

// Look is the look of the status table. The zero value is for a file.
type Look struct {
	Width   int  // columns of the terminal; 0 for no limit
	Colour  bool // the states in colours
	Verbose bool // how long the boot took, with what
}

// StatusTable returns the status as the table of `hinit status`, and how many of its services are not up. An older hinit ignores
// look.
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

// Service returns the state of one service, by its name or its profile's.
func (c *Client) Service(ctx context.Context, name string) (Service, error) {
	var s Service
	q := question{doing: fmt.Sprintf("get the status of %q", name), method: http.MethodGet}
	return s, c.askService(ctx, q, name, "", &s)
}

// Wait says how long a command waits for its effect. The zero value does not wait.
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

// Start starts a service. With wait it succeeds when one run of the service has been up for a second; the error says how it ended
// instead. Without, it succeeds when the supervisor has taken the command in.
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

// RunOnce runs a task. With wait it returns when the run has ended: Done says whether well, and LastExit how. Of an answer that got lost
// it is not known whether the task has run.
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

// SteerChecks pauses the checks of a service for a time, or has them asked now where that is 0.
func (c *Client) SteerChecks(ctx context.Context, name string, pause time.Duration) (Service, error) {
	var s Service
	q := question{doing: fmt.Sprintf("steer the checks of %q", name), method: http.MethodPost, limit: answerTime, body: ChecksRequest{pause.Milliseconds()}}
	return s, c.askService(ctx, q, name, "/checks", &s)
}

// Signal sends a signal to the main process of a service. It is an error when none runs.
func (c *Client) Signal(ctx context.Context, name string, signal syscall.Signal) (Service, error) {
	var s Service
	q := question{doing: fmt.Sprintf("signal %q", name), method: http.MethodPost, limit: answerTime, body: SignalRequest{int(signal)}}
	return s, c.askService(ctx, q, name, "/signal", &s)
}

// EventOptions choose events. The zero value is the whole history.
type EventOptions struct {
	Since  uint64 // only events after this Seq
	Last   int    // at most this many of the past; 0 is no limit, less is none
	Follow bool   // go on with what happens from now
}

// Events calls fn for each event, oldest first, and returns fn's error if it has one. Without Follow it returns after the last
// event; with Follow it returns nil when hinit ends. fn runs in the caller's goroutine; a slow one loses events, see Lost in
// [Event].
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

// stream calls fn for each JSON document of an answer, until the answer ends or fn returns an error, which it returns.
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

// Rescan makes hinit read the profiles on disk, and returns after that.
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

// Topology changes how many gateways serve the profiles, or tells how it is.
func (c *Client) Topology(ctx context.Context, how Topology) (TopologyReply, error) {
	var r TopologyReply
	return r, c.ask(ctx, question{doing: "change the topology", method: http.MethodPost, path: "/v1/topology", limit: answerTime + longestWait, body: how}, &r)
}

// reexecPoll is the pause between Reexec's questions.
const reexecPoll = 10 * time.Millisecond

// Reexec makes hinit replace its own image by the file binary, or, when it is empty, by the file of the running image. Its services
// go on. It returns hinit's description once the new image answers.
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

// Health reports whether hinit works. A hinit that does not may answer too: see Health.OK.
func (c *Client) Health(ctx context.Context) (Health, error) { return c.Probe(ctx, "") }

// Probe is Health for a probe of a pod: one of the Probe constants.
func (c *Client) Probe(ctx context.Context, probe string) (Health, error) {
	path := "/v1/health"
	if probe != "" {
		path += "?probe=" + url.QueryEscape(probe)
	}
	var h Health
	return h, c.ask(ctx, question{doing: "get the health", method: http.MethodGet, path: path}, &h)
}

// askService asks about one service. It rejects names that a path cannot hold; no service has them.
func (c *Client) askService(ctx context.Context, q question, name, suffix string, answer *Service) error {
	switch name {
	case "", ".", "..":
		message := fmt.Sprintf("no such profile or service %q; `hinit status` lists them", name)
		return explain(ctx, q, &Error{Kind: KindUnknown, Message: message})
	}
	q.path = "/v1/services/" + url.PathEscape(name) + suffix
	return c.ask(ctx, q, answer)
}

// ask sends a question and decodes the answer unless answer is nil.
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
