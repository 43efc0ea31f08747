package dial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"hinit/client"
)

// Status returns the state of hinit and of the named services, or of all services if there are no names. A name is the name of a
// service (dashboard, gateway-coder) or of a profile (coder). The error is ErrUnknown for an unknown name.
func (c *Client) Status(ctx context.Context, names ...string) (client.Status, error) {
	return ask[client.Status](ctx, c, get("get the status", "/v1/status", url.Values{"name": names}))
}

// StatusTable returns the status as the table of `hinit status`, and the number of listed services that are not up.
func (c *Client) StatusTable(ctx context.Context, look client.TableFormat, names ...string) (table []byte, down int, err error) {
	q := get("get the status", "/v1/status", url.Values{
		"name": names, "as": {client.AsTable}, "colour": on(look.Colour), "verbose": on(look.Verbose), "width": unlessZero(max(look.Width, 0)),
	})
	r, err := c.send(ctx, q)
	if err != nil {
		return nil, 0, err
	}
	defer r.close()
	if table, err = io.ReadAll(io.LimitReader(r, maxReply)); err == nil {
		down, err = strconv.Atoi(r.header.Get(client.DownHeader))
	}
	if err != nil {
		return nil, 0, withAction(ctx, q, c.exchangeError(err))
	}
	return table, down, nil
}

// Service returns the state of one service. The parameter name names the service or its profile.
func (c *Client) Service(ctx context.Context, name string) (client.Service, error) {
	return c.askService(ctx, get(fmt.Sprintf("get the status of %q", name), "", nil), name)
}

// Start starts a service. If wait.Wait is set, Start returns when a run of the service has been up for a second. If the run ends
// earlier, the error says how. If wait.Wait is not set, Start returns when hinit has accepted the command.
func (c *Client) Start(ctx context.Context, name string, wait client.Wait) (client.Service, error) {
	return c.Order(ctx, client.VerbStart, name, wait)
}

// Stop stops a service. If wait.Wait is set, Stop returns when none of the service's processes is alive.
func (c *Client) Stop(ctx context.Context, name string, wait client.Wait) (client.Service, error) {
	return c.Order(ctx, client.VerbStop, name, wait)
}

// Restart restarts a service, or starts one that is not running. If wait.Wait is set, Restart returns when a new run has been up
// for a second.
func (c *Client) Restart(ctx context.Context, name string, wait client.Wait) (client.Service, error) {
	return c.Order(ctx, client.VerbRestart, name, wait)
}

// Order gives an order to a service, as Start, Stop and Restart do. [client.VerbRunOnce] runs a task, a service that ends by
// itself. If wait.Wait is set, Order then returns when the run has ended: Done reports success, and LastExit says how the run
// ended. If the answer is lost, the caller can't know whether the task has run.
func (c *Client) Order(ctx context.Context, verb client.Verb, name string, wait client.Wait) (client.Service, error) {
	milliseconds := int64((wait.Timeout + time.Millisecond - 1) / time.Millisecond)
	q := post(fmt.Sprintf("%s %q", verb, name), "/"+string(verb), client.Command{Wait: &wait.Wait, TimeoutMS: milliseconds, Force: wait.Force})
	q.limit, q.repeats = answerTime, verb != client.VerbRestart && verb != client.VerbRunOnce
	if wait.Wait {
		q.limit += longestWait
		// The timeout of a start or restart begins when the service leaves the queue of pending starts.
		if wait.Timeout > 0 && verb != client.VerbStart && verb != client.VerbRestart {
			q.limit = answerTime + wait.Timeout
		}
	}
	return c.askService(ctx, q, name)
}

// SteerChecks pauses the checks of a service for the given time. If pause is 0, it ends a pause and runs the checks now.
func (c *Client) SteerChecks(ctx context.Context, name string, pause time.Duration) (client.Service, error) {
	return c.askService(ctx, post(fmt.Sprintf("steer the checks of %q", name), "/checks", client.ChecksRequest{PauseMS: pause.Milliseconds()}), name)
}

// Signal sends a signal to the main process of a service. It returns an error if the service has no process.
func (c *Client) Signal(ctx context.Context, name string, signal syscall.Signal) (client.Service, error) {
	return c.askService(ctx, post(fmt.Sprintf("signal %q", name), "/signal", client.SignalRequest{Signal: int(signal)}), name)
}

// Events calls fn for each event, oldest first, and returns an error from fn. If o.Follow is false, Events returns after the last
// event. Otherwise it returns nil when hinit ends. fn runs in the caller's goroutine. A slow fn loses events, see
// [client.Event].Lost.
func (c *Client) Events(ctx context.Context, o client.EventOptions, fn func(client.Event) error) error {
	query := url.Values{"since": unlessZero(o.Since), "follow": on(o.Follow)}
	if o.Last != 0 {
		query.Set("last", strconv.Itoa(max(o.Last, 0)))
	}
	return stream(ctx, c, get("read the events", "/v1/events", query), fn)
}

// Rescan makes hinit read the profiles on disk. It returns when hinit has read them.
func (c *Client) Rescan(ctx context.Context) error {
	return c.askNothing(ctx, post("look for profiles", "/v1/rescan", nil).within(workTime))
}

// Reload makes hinit read its configuration again and returns the changes.
func (c *Client) Reload(ctx context.Context, how client.Reload) (client.ReloadReply, error) {
	q := post("reload", "/v1/reload", nil).within(workTime)
	if how != (client.Reload{}) {
		q.body = how
	}
	return ask[client.ReloadReply](ctx, c, q)
}

// Topology changes how many gateways serve the profiles. If the parameter how is the zero value, Topology only returns the
// current topology.
func (c *Client) Topology(ctx context.Context, how client.Topology) (client.TopologyReply, error) {
	return ask[client.TopologyReply](ctx, c, post("change the topology", "/v1/topology", how).within(answerTime+longestWait))
}

// reexecPoll is the interval at which Reexec asks whether the new program answers.
const reexecPoll = 10 * time.Millisecond

// Reexec makes hinit replace its running program with the program in the file binary. If binary is empty, it uses the file of the
// running program. The services keep running. Reexec returns hinit's description once the new program answers.
func (c *Client) Reexec(ctx context.Context, binary string) (client.Init, error) {
	ctx, cancel := context.WithTimeout(ctx, workTime)
	defer cancel()
	q := post("re-execute hinit", "/v1/reexec", client.Reexec{Binary: binary})
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
			return s.Init, withAction(ctx, q, &client.Error{Kind: client.KindFailed, Message: s.Init.ReexecError})
		case err != nil && ctx.Err() != nil:
			return client.Init{}, err
		}
		select {
		case <-ctx.Done():
			return client.Init{}, withAction(ctx, q, &client.Error{Kind: client.KindTimeout, Message: "it has not come about in time"})
		case <-time.After(reexecPoll):
		}
	}
}

// Examine makes hinit examine the data volume, and returns the findings within 8 seconds. A volume that does not answer is a
// finding.
func (c *Client) Examine(ctx context.Context) (client.Findings, error) {
	r, err := ask[client.ExamineReply](ctx, c, post("examine the data volume", "/v1/examine", nil).within(workTime))
	return r.Findings, err
}

// Config returns the effective configuration of the running hinit: all values with their origins.
func (c *Client) Config(ctx context.Context) ([]client.ConfigEntry, error) {
	r, err := ask[client.ConfigReply](ctx, c, get("get the configuration", "/v1/config", nil))
	return r.Entries, err
}

// Health reports whether hinit works. A hinit that does not work may still answer: read Health.OK.
func (c *Client) Health(ctx context.Context) (client.Health, error) { return c.Probe(ctx, "") }

// Probe answers one probe of a Kubernetes pod, in the form that Health returns. The parameter probe is one of the Probe
// constants. A hinit counts as live if it refuses connections because too many are open. Otherwise an agent could have its
// container restarted by opening many connections.
func (c *Client) Probe(ctx context.Context, probe string) (client.Health, error) {
	q := get("get the health", "/v1/health", url.Values{"probe": unlessZero(probe)})
	q.mayBeBusy = probe == client.ProbeLive
	h, err := ask[client.Health](ctx, c, q)
	if e := (*client.Error)(nil); q.mayBeBusy && errors.As(err, &e) && e.Kind == client.KindBusy {
		return client.Health{OK: true, Waiting: e.Message, Troubled: []string{}}, nil
	}
	return h, err
}

// StartRun starts a one-shot run and returns it with its process id. If a run has this tag already, StartRun returns that run, so
// the call may be repeated.
func (c *Client) StartRun(ctx context.Context, r client.RunRequest) (client.Run, error) {
	q := post(fmt.Sprintf("start a run of %q", r.Template), "/v1/runs", r)
	q.repeats = true
	return ask[client.Run](ctx, c, q)
}

// Runs returns the live runs and the last ended runs, oldest first.
func (c *Client) Runs(ctx context.Context) ([]client.Run, error) {
	out, err := ask[client.RunsReply](ctx, c, get("list the runs", "/v1/runs", nil))
	return out.Runs, err
}

// Run returns one run. If wait is positive, it returns when no process of the run is alive, or when the time wait is over. If the
// time is over first, Run.End is nil.
func (c *Client) Run(ctx context.Context, id string, wait time.Duration) (client.Run, error) {
	query := url.Values{"wait_ms": unlessZero(max(wait.Milliseconds(), 0))}
	return ask[client.Run](ctx, c, get(fmt.Sprintf("get run %q", id), "/v1/runs/"+url.PathEscape(id), query).within(answerTime+wait))
}

// StopRun ends a run: TERM, then KILL for all remaining processes. It returns when hinit has accepted the request.
func (c *Client) StopRun(ctx context.Context, id string) (client.Run, error) {
	q := post(fmt.Sprintf("stop run %q", id), "/v1/runs/"+url.PathEscape(id)+"/stop", nil)
	q.repeats = true
	return ask[client.Run](ctx, c, q)
}

// FollowRuns calls fn for every known run, and then each time that a run begins or ends. It returns nil when hinit ends or
// re-executes; the caller may then call it again. fn runs in the caller's goroutine.
func (c *Client) FollowRuns(ctx context.Context, fn func(client.Run) error) error {
	return stream(ctx, c, get("follow the runs", "/v1/runs", url.Values{"follow": {"1"}}), fn)
}

// Say makes the status show a text as the problem of the service until the service's process ends. Only the service's main
// process may call it.
func (c *Client) Say(ctx context.Context, service, text string) error {
	q := post(fmt.Sprintf("say something of %q", service), "/v1/services/"+url.PathEscape(service)+"/say", client.StatusTextRequest{Text: text})
	q.repeats = true
	return c.askNothing(ctx, q)
}

// Slots returns all slots sorted by name. A slot is a service as the tools of s6 see it. The list is empty if hinit does not
// emulate s6.
func (c *Client) Slots(ctx context.Context) ([]client.Slot, error) {
	r, err := ask[client.SlotsReply](ctx, c, get("list the slots", "/v1/slots", nil))
	return r.Slots, err
}

// Slot returns the slot of the service directory dir, an absolute path. The directory of a logger ends in /log. The error is
// ErrUnknown if hinit does not supervise the directory.
func (c *Client) Slot(ctx context.Context, dir string) (client.Slot, error) {
	return c.oneSlot(ctx, get(fmt.Sprintf("get the state of %q", dir), "/v1/slots", url.Values{"dir": {dir}}))
}

// SlotControl gives a slot the commands of s6-svc in flags ("du"), in order. It returns when hinit has accepted them. For an
// unknown letter the error is ErrBadRequest, and hinit carries out none of the commands.
func (c *Client) SlotControl(ctx context.Context, dir, flags string) error {
	return c.askNothing(ctx, post(fmt.Sprintf("control %q", dir), "/v1/slots/control", client.SlotControl{Dir: dir, Flags: flags}))
}

// SlotWait waits until the slot of dir is in the state that the parameter until names. It returns immediately if the slot is
// already in that state. The states are named after the options of s6-svwait: u is up, U is up and ready, d is down, D is down
// with all its processes ended. r is a new run, and R is a new run that is ready. The number of an old run may follow d, D, r and
// R ("r12", see [client.Slot].Run). The wait then also ends if the slot left that run before this call.
//
// The error has the kind permanent when the slot will not reach the state by itself. Only ctx limits the wait.
func (c *Client) SlotWait(ctx context.Context, dir, until string) (client.Slot, error) {
	return c.oneSlot(ctx, get(fmt.Sprintf("wait for %q", dir), "/v1/slots/wait", url.Values{"dir": {dir}, "until": {until}}).within(slotWaitTime))
}

// slotWaitTime is practically unlimited: only the caller's context ends the wait.
const slotWaitTime = 100 * 365 * 24 * time.Hour

// ControlScanner gives the scanner the commands of s6-svscanctl in flags ("an"), in order. When it returns, a scan is complete: hinit
// supervises the new directories and has told the services of removed directories to end.
func (c *Client) ControlScanner(ctx context.Context, flags string) error {
	return c.askNothing(ctx, post("scan the service directories", "/v1/slots/scan", client.SlotScan{Flags: flags}))
}

func (c *Client) oneSlot(ctx context.Context, q apiCall) (client.Slot, error) {
	r, err := ask[client.SlotsReply](ctx, c, q)
	switch {
	case err != nil:
		return client.Slot{}, err
	case len(r.Slots) != 1:
		return client.Slot{}, withAction(ctx, q, &client.Error{Kind: client.KindInternal, Message: fmt.Sprintf("hinit answers with %d slots", len(r.Slots))})
	}
	return r.Slots[0], nil
}

// Watch calls fn with the whole status, then with each change, and returns an error from fn. It calls fn at most once a second
// and at least every [client.WatchInterval]. So a longer silence means that hinit does not answer. Each call gets all changes
// since the previous call. If fn is slow, fn may miss a value that has changed twice, but never the last value. Watch returns nil
// when hinit ends or re-executes. The caller may then call it again. fn runs in the caller's goroutine.
func (c *Client) Watch(ctx context.Context, fn func(client.StatusChange) error) error {
	return stream(ctx, c, get("follow the status", "/v1/status/follow", nil), fn)
}

// Notify posts a notice: an event with its key and data. If the caller is a process of a service, the event names that service.
func (c *Client) Notify(ctx context.Context, n client.Notice) error {
	return c.askNothing(ctx, post(fmt.Sprintf("post the notice %q", n.Key), "/v1/notices", n))
}
