package control

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/supervisor"
)

// request is an API request with its route and client. Its context ends at the time limit of the route.
type request struct {
	*http.Request
	route  route
	client peer
	body   []byte
	query  url.Values
}

// waitMode says whether a request waits for the end of the boot. All services are known only after the boot.
type waitMode int

const (
	neverWaits    waitMode = iota // the request never waits for the boot
	waitsForNames                 // the request waits if it names a service that the boot has not registered yet
	waitsForBoot                  // the request waits for the end of the boot
)

type route struct {
	pattern   string
	access    access
	waitMode  waitMode
	timeLimit time.Duration // time limit of the route; 0 if the client sets the limit, or the answer is endless
	handle    func(s *Server, r *request) (reply, error)
}

const (
	readTimeLimit = 5 * time.Second  // time limit for answers from memory
	slotTimeLimit = 9 * time.Second  // time limit for requests about the scan directory of s6 and the volume; less than the 10 s that their clients wait
	workTimeLimit = 30 * time.Second // time limit for work that reads many files

	topologyTimeLimit = 3 * time.Minute // time limit for a change of topology; longer than all gateways need to stop
)

// routes returns the table of the API: pattern, required access, whether the request waits for the boot, time limit, handler.
// Each handler answers within its limit even if a disk hangs, because the functions of [Backend] return when the context ends.
func routes() []route {
	return []route{
		{"GET /v1/status", mayRead, neverWaits, readTimeLimit, getStatus},
		{"GET /v1/status/follow", mayRead, neverWaits, 0, getFollow},
		{"GET /v1/services/{name}", mayRead, neverWaits, readTimeLimit, getService},
		{"POST /v1/services/{name}/start", mayControl, waitsForNames, 0, commandHandler(client.VerbStart, false)},
		{"POST /v1/services/{name}/stop", mayControl, waitsForNames, 0, commandHandler(client.VerbStop, false)},
		{"POST /v1/services/{name}/restart", mayControl, waitsForNames, 0, commandHandler(client.VerbRestart, false)},
		{"POST /v1/services/{name}/run-once", mayControl, waitsForNames, 0, commandHandler(client.VerbStart, true)},
		{"POST /v1/services/{name}/checks", mayControl, neverWaits, readTimeLimit, withBody(postChecks)},
		{"POST /v1/services/{name}/signal", mayControl, neverWaits, readTimeLimit, withBody(postSignal)},
		{"POST /v1/services/{name}/say", mayControl, neverWaits, readTimeLimit, withBody(postStatusText)},
		{"POST /v1/runs", mayControl, waitsForBoot, workTimeLimit, withBody(postRun)},
		{"GET /v1/runs", mayControl, neverWaits, 0, getRuns},
		{"GET /v1/runs/{id}", mayControl, neverWaits, 0, getRun},
		{"POST /v1/runs/{id}/stop", mayControl, neverWaits, readTimeLimit, withBody(postRunStop)},
		{"POST /v1/notices", mayControl, neverWaits, readTimeLimit, withBody(postNotice)},
		{"GET /v1/events", mayRead, neverWaits, 0, getEvents},
		{"POST /v1/rescan", mayControl, waitsForBoot, workTimeLimit, withBody(postRescan)},
		{"POST /v1/reload", mayControl, waitsForBoot, workTimeLimit, withBody(postReload)},
		{"POST /v1/topology", mayControl, waitsForBoot, topologyTimeLimit, withBody(postTopology)},
		{"POST /v1/examine", mayControl, neverWaits, slotTimeLimit, withBody(postExamine)},
		{"POST /v1/reexec", mayReexec, neverWaits, readTimeLimit, withBody(postReexec)},
		// The answer shows paths and settings, so mayRead is not enough.
		{"GET /v1/config", mayControl, neverWaits, readTimeLimit, getConfig},
		{"GET /v1/health", mayRead, neverWaits, readTimeLimit, getHealth},
		{"GET /v1/slots", mayRead, neverWaits, slotTimeLimit, getSlots},
		{"GET /v1/slots/wait", mayRead, neverWaits, 0, getSlotWait},
		{"POST /v1/slots/control", mayControl, neverWaits, slotTimeLimit, withBody(postSlotControl)},
		{"POST /v1/slots/scan", mayControl, neverWaits, slotTimeLimit, withBody(postSlotScan)},
	}
}

// parseQuery parses the parameters of a request. An unknown parameter is an error, since it may be a typing mistake.
func (r *request) parseQuery() (err error) {
	if r.query, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		return newError(client.KindBadRequest, "the parameters cannot be understood: %v", err)
	}
	known := strings.Fields(map[string]string{
		"GET /v1/status": "name as width colour verbose", "GET /v1/health": "probe", "GET /v1/events": "since last follow", "GET /v1/runs": "follow",
		"GET /v1/runs/{id}": "wait_ms", "GET /v1/slots": "dir", "GET /v1/slots/wait": "dir until",
	}[r.route.pattern])
	for key := range r.query {
		if !slices.Contains(known, key) {
			takes := "takes none"
			if len(known) > 0 {
				takes = "takes " + strings.Join(known, ", ")
			}
			return newError(client.KindBadRequest, "unknown parameter %q; %s %s", key, r.URL.Path, takes)
		}
	}
	return nil
}

type timeLimitError time.Duration

func (l timeLimitError) Error() string { return fmt.Sprintf("no answer within %s", time.Duration(l)) }

func (timeLimitError) Unwrap() error { return context.DeadlineExceeded }

// Handlers about hinit as a whole.

func postRescan(s *Server, r *request, _ struct{}) (reply, error) {
	return reply{status: http.StatusNoContent}, s.backend.Rescan(r.Context())
}

func postReload(s *Server, r *request, how client.Reload) (reply, error) {
	if how.Force && s.policy.check(r.client, mayReexec) != nil { // without the file, the reload would drop the limits and the isolation
		return reply{}, newError(client.KindNotAllowed, "uid %d may not reload without a configuration file; root may", r.client.uid)
	}
	out, err := s.backend.Reload(r.Context(), how)
	out.Changes, out.Plan, out.Settings = nonNil(out.Changes), nonNil(out.Plan), nonNil(out.Settings)
	return deferredReply(http.StatusOK, out, err)
}

func postTopology(s *Server, r *request, how client.Topology) (reply, error) {
	if how.Mode != "" && !slices.Contains(client.TopologyModes, how.Mode) {
		return reply{}, newError(client.KindBadRequest, "mode is %q; it is one of %s, in a container with profiles", how.Mode, strings.Join(client.TopologyModes, ", "))
	}
	out, err := s.backend.Topology(r.Context(), how.Mode, how.DryRun)
	return deferredReply(http.StatusOK, out, err)
}

func postExamine(s *Server, r *request, _ struct{}) (reply, error) {
	return deferredReply(http.StatusOK, client.ExamineReply{Findings: nonNil(s.backend.Examine(r.Context()))}, nil)
}

func postReexec(s *Server, r *request, body client.Reexec) (reply, error) {
	image, err := s.backend.Reexec(r.Context(), body.Binary)
	return deferredReply(http.StatusAccepted, client.ReexecReply{Generation: image}, err)
}

func getConfig(s *Server, r *request) (reply, error) {
	return s.makeAnswerLimited(r, func() (reply, error) { return okReply(client.ConfigReply{Entries: nonNil(s.backend.Config())}) })
}

// loopTimeout is how long the supervisor's loop may take to answer before it counts as stuck.
const loopTimeout = 3 * time.Second

// getHealth answers hinit healthcheck, with or without --startup, --ready or --live. The status is always 200; the field ok has
// the result.
func getHealth(s *Server, r *request) (reply, error) {
	probe := r.query.Get("probe")
	probes := []string{"", client.ProbeStartup, client.ProbeReady, client.ProbeLive}
	if !slices.Contains(probes, probe) {
		return reply{}, newError(client.KindBadRequest, "unknown probe %q; there are %q", probe, probes[1:])
	}
	live, ready := probe == client.ProbeLive, probe == client.ProbeReady
	h := client.Health{OK: true, Troubled: []string{}}
	unless := func(reason string) {
		if h.OK && reason != "" {
			h.OK, h.Reason = false, reason
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), loopTimeout)
	defer cancel()
	if err := s.backend.ReapNow(ctx); err != nil {
		unless(fmt.Sprintf("the supervisor does not answer: %v", err))
	}
	snap := s.backend.Snapshot()
	if snap.Stopping && !live {
		unless("the container is stopping")
	}
	if booting, hook := s.backend.BootProgress(); booting && h.OK && !live {
		unless("the container is booting" + show.HookText(hook))
		h.Booting = true
	}
	info := s.backend.Init()
	if l := info.Lease; l != nil && l.State == client.LeaseWaiting {
		h.WaitingReason = l.Detail
		if ready || probe == "" && l.Holder != nil && l.Holder.PID != 0 {
			unless(cmp.Or(l.Detail, "another hinit serves the volume"))
		}
	}
	snap, _ = s.snapshotWithExpected(r.Context(), nil)
	unserved, idle := s.countServices(ctx, snap, &h)
	if probe == "" {
		unless(unserved)
	}
	if ready {
		if h.OK && info.ServicesFile == "" && (idle != "" || h.Up == 0) {
			found := s.backend.Examine(ctx)
			if i := slices.IndexFunc(found, func(f client.Finding) bool { return f.Result == client.ResultFailed }); i >= 0 {
				unless(found[i].Detail)
			}
		}
		unless(idle)
	}
	if len(h.Troubled) > maxEventBatch {
		return s.makeAnswerLimited(r, func() (reply, error) { return okReply(h) })
	}
	return okReply(h)
}

// countServices counts in h the services that should be up, and names the services in trouble. unserved is a sentence about a
// profile without a gateway. idle says why the container isn't ready: none of the wanted services works, or one was not started
// yet. The first reason considers only gateways if any gateway is wanted, otherwise the other services, and without them the
// CMD.
func (s *Server) countServices(ctx context.Context, snap *supervisor.Snapshot, h *client.Health) (unserved, idle string) {
	rank := []supervisor.Kind{supervisor.KindCmd, supervisor.KindService, supervisor.KindGateway}
	best, wanted, up, down, coming := 0, 0, 0, "", 0
	for _, v := range snap.Services {
		if !isListed(v) && v.Kind != supervisor.KindCmd {
			continue
		}
		v := s.serviceStatus(ctx, v, peer{}, nil)
		if unserved == "" && v.ServedBy == client.ServedByNone {
			unserved = fmt.Sprintf("profile %q is wanted, and no gateway serves it: hinit start %s", v.Profile, v.Profile)
		}
		verdict := show.VerdictOf(&v)
		if verdict.NeedsAttention() {
			h.Troubled = append(h.Troubled, v.Name)
		}
		if v.Want != client.WantUp {
			continue
		}
		h.WantedUp++
		if v.State == client.StateUp {
			h.Up++
		}
		if v.LastExit == nil && (v.State == client.StateWaiting || v.State == client.StateStarting) {
			coming++
		}
		r := slices.Index(rank, supervisor.Kind(v.Kind))
		if r > best {
			best, wanted, up, down = r, 0, 0, ""
		}
		switch {
		case r < best || v.Done:
		case verdict.IsWorking:
			wanted, up = wanted+1, up+1
		default:
			wanted++
			down = cmp.Or(down, v.Name+": "+cmp.Or(v.Problem, verdict.StateRemark, v.Reason))
		}
	}
	switch {
	case wanted > 0 && up == 0:
		idle = fmt.Sprintf("none of the %d wanted services works; %s", wanted, show.EscapeLine(down))
	case coming > 0:
		idle = fmt.Sprintf("%d of the %d wanted services have not been started yet", coming, h.WantedUp)
	}
	return unserved, idle
}

// checks returns the results of a service's checks. A client that may not see the output of the service gets no texts, because
// a text may quote the output.
func (s *Server) checks(v *supervisor.Service, caller peer) []client.Check {
	out := s.backend.Checks.Checks(v)
	for i := range out {
		c := &out[i]
		c.Since = adjustedTime(c.Since)
		if c.AnsweredAt != nil {
			c.AnsweredAt = new(adjustedTime(*c.AnsweredAt))
		}
		if s.policy.classOf(caller) == otherClass {
			c.Answer = ""
		}
	}
	return out
}

// maxCheckPause is the longest time for which checks may be paused.
const maxCheckPause = 24 * time.Hour

// postChecks pauses the checks of a service, or runs them now.
func postChecks(s *Server, r *request, ask client.ChecksRequest) (reply, error) {
	if ask.PauseMS < 0 || ask.PauseMS > maxCheckPause.Milliseconds() {
		return reply{}, newError(client.KindBadRequest, "pause_ms is %d; it goes from 0 to %d", ask.PauseMS, maxCheckPause.Milliseconds())
	}
	v, err := s.findOrAwaitService(r.Context(), r, readTimeLimit)
	if err != nil {
		return reply{}, err
	}
	if ask.PauseMS > 0 && v.Kind != supervisor.KindGateway && s.policy.check(r.client, mayReexec) != nil {
		return reply{}, newError(client.KindNotAllowed, "uid %d may not pause the checks of %s, which is no gateway; root may", r.client.uid, v.Name)
	}
	until, text := time.Time{}, "checks are asked now"
	if pause := time.Duration(ask.PauseMS) * time.Millisecond; pause > 0 {
		until, text = s.now().Add(pause), "checks are paused for "+show.FormatDuration(pause)
	}
	if err := s.backend.Checks.PauseChecksUntil(v.Name, until); err != nil {
		return reply{}, err
	}
	return deferredReply(http.StatusOK, s.serviceStatus(r.Context(), v, r.client, nil), s.backend.Do(r.Context(), supervisor.Remark{Service: v.Name, Text: text}))
}
