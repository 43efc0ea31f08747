package dial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"sync"
	"syscall"
	"time"

	"hinit/client"
)

// Status returns the state of hinit and of the named services. Without names, it returns the state of all services. A name is
// the name of a service (dashboard, gateway-coder) or of a profile (coder). For an unknown name the error is ErrUnknown.
func (c *Client) Status(ctx context.Context, names ...string) (client.Status, error) {
	return ask[client.Status](ctx, c, get("get the status", "/v1/status", url.Values{"name": names}))
}

// StatusTable returns the status as the table that `hinit status` prints. down is the number of services in it that are not up.
func (c *Client) StatusTable(ctx context.Context, format client.TableFormat, names ...string) (table []byte, down int, err error) {
	q := get("get the status", "/v1/status", url.Values{
		"name": names, "as": {client.FormatTable}, "colour": boolParameter(format.Colour), "verbose": boolParameter(format.Verbose), "width": optionalParameter(max(format.Width, 0)),
	})
	r, err := c.send(ctx, q)
	if err != nil {
		return nil, 0, err
	}
	defer r.close()
	if table, err = io.ReadAll(io.LimitReader(r, maxReply)); err == nil {
		down, err = strconv.Atoi(r.header.Get(client.ServicesDownHeader))
	}
	if err != nil {
		return nil, 0, withAction(ctx, q, c.exchangeError(err))
	}
	return table, down, nil
}

// Service returns the state of the service with this name, or of the gateway of the profile with this name.
func (c *Client) Service(ctx context.Context, name string) (client.Service, error) {
	return c.askService(ctx, get(fmt.Sprintf("get the status of %q", name), "", nil), name)
}

// Start starts a service. With wait.Wait it returns when the service is ready; a service that can't report readiness must have
// been up for a second. If the run ends earlier, the error describes how. Without wait.Wait, Start returns when hinit has
// accepted the order.
func (c *Client) Start(ctx context.Context, name string, wait client.WaitOptions) (client.Service, error) {
	return c.Order(ctx, client.VerbStart, name, wait)
}

// Stop stops a service. With wait.Wait it returns when all processes of the service have ended.
func (c *Client) Stop(ctx context.Context, name string, wait client.WaitOptions) (client.Service, error) {
	return c.Order(ctx, client.VerbStop, name, wait)
}

// Restart restarts a service, or starts one that isn't running. With wait.Wait it returns when a new run is ready, in the sense
// of Start.
func (c *Client) Restart(ctx context.Context, name string, wait client.WaitOptions) (client.Service, error) {
	return c.Order(ctx, client.VerbRestart, name, wait)
}

// Order gives the order of Start, Stop or Restart, or [client.VerbRunOnce], which runs a task (a service that ends by itself).
// With wait.Wait, VerbRunOnce returns after the end of the task. Done then says whether the task has succeeded, and LastExit how
// it ended. If the connection is cut, the caller can't know whether the task has run.
func (c *Client) Order(ctx context.Context, verb client.Verb, name string, wait client.WaitOptions) (client.Service, error) {
	q := post(fmt.Sprintf("%s %q", verb, name), "/"+string(verb), client.CommandRequest{Wait: &wait.Wait, TimeoutMS: milliseconds(wait.Timeout), Force: wait.Force})
	q.limit, q.mayRepeat = answerTimeout, verb != client.VerbRestart && verb != client.VerbRunOnce
	if wait.Wait {
		q.limit += maxEffectWait
		// hinit counts the timeout of a start or restart only from the moment at which the service's turn to start comes.
		if wait.Timeout > 0 && verb != client.VerbStart && verb != client.VerbRestart {
			q.limit = answerTimeout + wait.Timeout
		}
	}
	return c.askService(ctx, q, name)
}

// maxParallelOrders limits the orders that OrderAll gives at the same time. It is less than the 128 connections that hinit
// accepts from one user.
const maxParallelOrders = 100

// OrderAll gives an order to all named services at once. order gives it to one service, usually by [Client.Order]; tests replace
// it. The results are in the order of names.
func OrderAll(names []string, order func(name string) (client.Service, error)) (states []client.Service, failed []error) {
	states, failed = make([]client.Service, len(names)), make([]error, len(names))
	limit := make(chan struct{}, maxParallelOrders)
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			states[i], failed[i] = order(name)
		})
	}
	all.Wait()
	return states, failed
}

// RunOrPauseChecks pauses the checks of a service for the time pause. If pause is 0, it ends a pause and runs the checks now.
func (c *Client) RunOrPauseChecks(ctx context.Context, name string, pause time.Duration) (client.Service, error) {
	return c.askService(ctx, post(fmt.Sprintf("steer the checks of %q", name), "/checks", client.ChecksRequest{PauseMS: milliseconds(pause)}), name)
}

// milliseconds rounds a duration up to whole milliseconds, because 0 has a special meaning in requests.
func milliseconds(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// Signal sends a signal to the main process of a service. Without such a process it returns an error.
func (c *Client) Signal(ctx context.Context, name string, signal syscall.Signal) (client.Service, error) {
	return c.askService(ctx, post(fmt.Sprintf("signal %q", name), "/signal", client.SignalRequest{Signal: int(signal)}), name)
}

// Events calls fn for each event, oldest first. It returns after the last event, or with o.Follow continues with new events and
// returns nil when hinit ends. If fn returns an error, Events ends with that error. fn runs in the caller's goroutine; if it is
// too slow, events get lost, see [client.Event].Lost.
func (c *Client) Events(ctx context.Context, o client.EventOptions, fn func(client.Event) error) error {
	query := url.Values{"since": optionalParameter(o.AfterSeq), "follow": boolParameter(o.Follow)}
	if o.MaxPast != 0 {
		query.Set("last", strconv.Itoa(max(o.MaxPast, 0)))
	}
	return stream(ctx, c, get("read the events", "/v1/events", query), fn)
}

// Rescan makes hinit read the profiles on disk. It returns when hinit has read them.
func (c *Client) Rescan(ctx context.Context) error {
	return c.askWithoutResult(ctx, post("look for profiles", "/v1/rescan", nil).withLimit(slowAnswerTimeout))
}

// Reload makes hinit read its configuration again, and returns what has changed.
func (c *Client) Reload(ctx context.Context, how client.Reload) (client.ReloadReply, error) {
	q := post("reload", "/v1/reload", nil).withLimit(slowAnswerTimeout)
	if how != (client.Reload{}) {
		q.body = how
	}
	return ask[client.ReloadReply](ctx, c, q)
}

// Topology changes how many gateways serve the profiles. If how is zero, it only returns the present topology.
func (c *Client) Topology(ctx context.Context, how client.Topology) (client.TopologyReply, error) {
	return ask[client.TopologyReply](ctx, c, post("change the topology", "/v1/topology", how).withLimit(answerTimeout+maxEffectWait))
}

// reexecPollInterval is the pause between two checks of whether the new program answers.
const reexecPollInterval = 10 * time.Millisecond

// Reexec makes hinit replace its program by the file binary; "" means the file of the present program. The services keep running.
// Reexec waits until the new program answers, and returns this answer.
func (c *Client) Reexec(ctx context.Context, binary string) (client.Init, error) {
	ctx, cancel := context.WithTimeout(ctx, slowAnswerTimeout)
	defer cancel()
	q := post("re-execute hinit", "/v1/reexec", client.Reexec{Binary: binary})
	was, err := ask[client.ReexecReply](ctx, c, q)
	if err != nil {
		return client.Init{}, err
	}
	for {
		s, err := c.Status(ctx)
		switch {
		case err == nil && s.Init.Generation > was.Generation:
			return s.Init, nil
		case err == nil && s.Init.ReexecError != "":
			return s.Init, withAction(ctx, q, &client.Error{Kind: client.KindFailed, Message: s.Init.ReexecError})
		case err != nil && ctx.Err() != nil:
			return client.Init{}, err
		}
		select {
		case <-ctx.Done():
			return client.Init{}, withAction(ctx, q, &client.Error{Kind: client.KindTimeout, Message: "it has not come about in time"})
		case <-time.After(reexecPollInterval):
		}
	}
}

// Examine makes hinit examine the data volume, which takes at most 8 seconds. If the volume doesn't answer, the result is a
// finding and not an error.
func (c *Client) Examine(ctx context.Context) (client.Findings, error) {
	r, err := ask[client.ExamineReply](ctx, c, post("examine the data volume", "/v1/examine", nil).withLimit(slowAnswerTimeout))
	return r.Findings, err
}

// Config returns the configuration in force: all values, and for each value where it was set.
func (c *Client) Config(ctx context.Context) ([]client.ConfigEntry, error) {
	r, err := ask[client.ConfigReply](ctx, c, get("get the configuration", "/v1/config", nil))
	return r.Entries, err
}

// Health reports whether hinit works. A nil error only means that hinit has answered: check Health.OK.
func (c *Client) Health(ctx context.Context) (client.Health, error) { return c.Probe(ctx, "") }

// Probe answers a probe of a Kubernetes pod; probe is one of the Probe constants. For ProbeLive, a hinit that refuses the
// connection because of too many connections counts as live. Otherwise an agent could have its container restarted by opening
// many connections.
func (c *Client) Probe(ctx context.Context, probe string) (client.Health, error) {
	q := get("get the health", "/v1/health", url.Values{"probe": optionalParameter(probe)})
	q.acceptsBusy = probe == client.ProbeLive
	h, err := ask[client.Health](ctx, c, q)
	if e := (*client.Error)(nil); q.acceptsBusy && errors.As(err, &e) && e.Kind == client.KindBusy {
		return client.Health{OK: true, WaitingReason: e.Message, Troubled: []string{}}, nil
	}
	return h, err
}

// StartRun starts a one-shot run and returns it with its PID. If a run with this tag exists, it returns that run instead, so
// repeating the call is safe.
func (c *Client) StartRun(ctx context.Context, r client.RunRequest) (client.Run, error) {
	return ask[client.Run](ctx, c, post(fmt.Sprintf("start a run of %q", r.Template), "/v1/runs", r).repeatable())
}

// Runs returns all runs that are alive and the last runs that have ended, oldest first.
func (c *Client) Runs(ctx context.Context) ([]client.Run, error) {
	out, err := ask[client.RunsReply](ctx, c, get("list the runs", "/v1/runs", nil))
	return out.Runs, err
}

// Run returns one run. If wait is positive, it first waits, at most for that time, until no process of the run is alive. Run.End
// is nil while a process is alive.
func (c *Client) Run(ctx context.Context, id string, wait time.Duration) (client.Run, error) {
	query := url.Values{"wait_ms": optionalParameter(max(wait.Milliseconds(), 0))}
	return ask[client.Run](ctx, c, get(fmt.Sprintf("get run %q", id), "/v1/runs/"+url.PathEscape(id), query).withLimit(answerTimeout+wait))
}

// StopRun ends a run: by SIGTERM, and later by SIGKILL for the remaining processes. It returns when hinit has accepted the order.
func (c *Client) StopRun(ctx context.Context, id string) (client.Run, error) {
	return ask[client.Run](ctx, c, post(fmt.Sprintf("stop run %q", id), "/v1/runs/"+url.PathEscape(id)+"/stop", nil).repeatable())
}

// FollowRuns calls fn for every known run, and then each time a run begins or ends. It returns nil when hinit ends or re-executes
// itself; the caller may then call it again. fn runs in the caller's goroutine.
func (c *Client) FollowRuns(ctx context.Context, fn func(client.Run) error) error {
	return stream(ctx, c, get("follow the runs", "/v1/runs", url.Values{"follow": {"1"}}), fn)
}

// SetStatusText sets the text that the status shows for the service until its process ends. Only the main process of the
// service may call it.
func (c *Client) SetStatusText(ctx context.Context, service, text string) error {
	path := "/v1/services/" + url.PathEscape(service) + "/say"
	return c.askWithoutResult(ctx, post(fmt.Sprintf("say something of %q", service), path, client.StatusTextRequest{Text: text}).repeatable())
}

// Slots returns all slots, sorted by name. A slot is a service as the programs of s6 see it. If hinit doesn't emulate s6, the
// list is empty.
func (c *Client) Slots(ctx context.Context) ([]client.Slot, error) {
	r, err := ask[client.SlotsReply](ctx, c, get("list the slots", "/v1/slots", nil))
	return r.Slots, err
}

// Slot returns the slot with the service directory dir, an absolute path. The directory of a logger ends in /log. If hinit doesn't
// supervise the directory, the error is ErrUnknown.
func (c *Client) Slot(ctx context.Context, dir string) (client.Slot, error) {
	return c.askSlot(ctx, get(fmt.Sprintf("get the state of %q", dir), "/v1/slots", url.Values{"dir": {dir}}))
}

// SlotControl carries out commands of s6-svc. Each letter of flags, such as "du", is one command, and hinit carries them out in
// this order. SlotControl returns when hinit has accepted them. If one letter is unknown, the error is ErrBadRequest, and no
// command is carried out.
func (c *Client) SlotControl(ctx context.Context, dir, flags string) error {
	return c.askWithoutResult(ctx, post(fmt.Sprintf("control %q", dir), "/v1/slots/control", client.SlotControl{Dir: dir, Flags: flags}))
}

// SlotWait waits until a slot is in the state until, an option letter of s6-svwait. u is up, and U is up and ready. d is down,
// and D is down with all processes ended. r is a new run, and R is a new run that is ready. The number of a run may follow d, D,
// r and R ("r12", see [client.Slot].Run). Then the wait also ends if the slot has left that run before this call.
//
// If the slot won't reach the state by itself, the error has the kind permanent. Only ctx limits the wait.
func (c *Client) SlotWait(ctx context.Context, dir, until string) (client.Slot, error) {
	return c.askSlot(ctx, get(fmt.Sprintf("wait for %q", dir), "/v1/slots/wait", url.Values{"dir": {dir}, "until": {until}}).withLimit(slotWaitTimeout))
}

// slotWaitTimeout is so long that in practice only the caller's context ends the wait.
const slotWaitTimeout = 100 * 365 * 24 * time.Hour

// ControlScanner carries out commands of s6-svscanctl. Each letter of flags, such as "an", is one command, and hinit carries them
// out in this order. If they include a scan, hinit has read the scan directory when ControlScanner returns. It then supervises
// new directories, and has told the services of removed directories to end.
func (c *Client) ControlScanner(ctx context.Context, flags string) error {
	return c.askWithoutResult(ctx, post("scan the service directories", "/v1/slots/scan", client.ScannerControl{Flags: flags}))
}

func (c *Client) askSlot(ctx context.Context, q apiCall) (client.Slot, error) {
	r, err := ask[client.SlotsReply](ctx, c, q)
	switch {
	case err != nil:
		return client.Slot{}, err
	case len(r.Slots) != 1:
		return client.Slot{}, withAction(ctx, q, &client.Error{Kind: client.KindInternal, Message: fmt.Sprintf("hinit answers with %d slots", len(r.Slots))})
	}
	return r.Slots[0], nil
}

// Watch calls fn with the whole status, and then with each change: at most once a second, and at least every
// [client.WatchInterval]. So a longer silence means that hinit doesn't answer. Each call has all changes since the previous call.
// If fn is slow, it may miss a value in between, but never the last one. If fn returns an error, Watch ends with that error.
// Watch returns nil when hinit ends or re-executes itself; the caller may then call it again. fn runs in the caller's goroutine.
func (c *Client) Watch(ctx context.Context, fn func(client.StatusChange) error) error {
	return stream(ctx, c, get("follow the status", "/v1/status/follow", nil), fn)
}

// Notify posts a notice: an event with a key and data. If the caller is a process of a service, the event contains the name of
// this service.
func (c *Client) Notify(ctx context.Context, n client.Notice) error {
	return c.askWithoutResult(ctx, post(fmt.Sprintf("post the notice %q", n.Key), "/v1/notices", n))
}
