package control

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/supervisor"
)

// pingTime is the time limit for the supervisor's loop to answer. A loop that takes longer is reported as stuck.
const pingTime = 3 * time.Second

// getHealth answers the command healthcheck, without an option or with --startup, --ready or --live. The status code is
// always 200. The result is the field ok of the body.
func getHealth(s *Server, r *request) (reply, error) {
	probe := r.query.Get("probe")
	probes := []string{"", client.ProbeStartup, client.ProbeReady, client.ProbeLive}
	if !slices.Contains(probes, probe) {
		return reply{}, refuse(client.KindBadRequest, "unknown probe %q; there are %q", probe, probes[1:])
	}
	live, ready := probe == client.ProbeLive, probe == client.ProbeReady
	h := client.Health{OK: true, Troubled: []string{}}
	unless := func(reason string) {
		if h.OK && reason != "" {
			h.OK, h.Reason = false, reason
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), pingTime)
	defer cancel()
	if err := s.core.Sweep(ctx); err != nil {
		unless(fmt.Sprintf("the supervisor does not answer: %v", err))
	}
	snap := s.core.Snapshot()
	if snap.Stopping && !live {
		unless("the container is stopping")
	}
	if booting, hook := s.core.Booting(); booting && h.OK && !live {
		unless("the container is booting" + show.Hook(hook))
		h.Booting = true
	}
	info := s.core.Init()
	if l := info.Lease; l != nil && l.State == client.LeaseWaiting {
		h.Waiting = l.Detail
		if ready || probe == "" && l.Holder != nil && l.Holder.PID != 0 {
			unless(cmp.Or(l.Detail, "another hinit serves the volume"))
		}
	}
	snap, _ = s.snapshotWith(r.Context(), nil)
	unserved, idle := s.countWanted(snap, &h)
	if probe == "" {
		unless(unserved)
	}
	if ready {
		if h.OK && info.Plain == "" && (idle != "" || h.Up == 0) {
			found := s.core.Examine(ctx)
			if i := slices.IndexFunc(found, func(f client.Finding) bool { return f.Result == client.ResultFailed }); i >= 0 {
				unless(found[i].Detail)
			}
		}
		unless(idle)
	}
	if len(h.Troubled) > batch {
		return s.inTurn(r, func() (reply, error) { return answer(h) })
	}
	return answer(h)
}

// countWanted counts the services that are wanted up, and names the services in trouble. unserved is a sentence about a profile
// that no gateway serves. idle is the reason why the container is not ready: no wanted service works, or one has not been started
// yet. idle considers only gateways. In a container without gateways it considers services, and without services the CMD.
func (s *Server) countWanted(snap *supervisor.Snapshot, h *client.Health) (unserved, idle string) {
	rank := []supervisor.Kind{supervisor.KindCmd, supervisor.KindService, supervisor.KindGateway}
	best, wanted, up, down, coming := 0, 0, 0, "", 0
	for _, v := range snap.Services {
		if !inStatus(v) && v.Kind != supervisor.KindCmd {
			continue
		}
		if unserved == "" && s.core.ServedBy(v) == client.ServedByNone {
			unserved = fmt.Sprintf("profile %q is wanted, and no gateway serves it: hinit start %s", v.Profile, v.Profile)
		}
		verdict := s.judge(v)
		if verdict.Troubled() {
			h.Troubled = append(h.Troubled, v.Name)
		}
		if v.Want != supervisor.WantUp {
			continue
		}
		h.Wanted++
		if v.State == supervisor.Up {
			h.Up++
		}
		if v.LastExit == nil && (v.State == supervisor.Waiting || v.State == supervisor.Starting) {
			coming++
		}
		r := slices.Index(rank, v.Kind)
		if r > best {
			best, wanted, up, down = r, 0, 0, ""
		}
		switch {
		case r < best || v.Done:
		case verdict.Works:
			wanted, up = wanted+1, up+1
		default:
			wanted++
			down = cmp.Or(down, v.Name+": "+cmp.Or(s.problem(v, true), verdict.Word, v.Reason))
		}
	}
	switch {
	case wanted > 0 && up == 0:
		idle = fmt.Sprintf("none of the %d wanted services works; %s", wanted, show.Line(down))
	case coming > 0:
		idle = fmt.Sprintf("%d of the %d wanted services have not been started yet", coming, h.Wanted)
	}
	return unserved, idle
}

// checks returns the results of a service's checks. The answer from a check may quote the service's output, so checks removes the
// answers for a caller who may not see the output.
func (s *Server) checks(v *supervisor.Service, who peer) []client.Check {
	out := s.core.Checks.Checks(v.Name)
	for i := range out {
		c := &out[i]
		c.Since = wireTime(c.Since)
		if c.At != nil {
			c.At = new(wireTime(*c.At))
		}
		if s.policy.classOf(who) == otherClass {
			c.Answer = ""
		}
	}
	return out
}

// judge returns the verdict on a service, from the same facts that the status shows.
func (s *Server) judge(v *supervisor.Service) show.Verdict {
	out := client.Service{
		State: string(v.State), Want: string(v.Want), Ready: v.Ready, CrashLoop: v.CrashLoop, Paused: paused(v, readStat(v.PID)), Problem: s.problem(v, true), ServedBy: s.core.ServedBy(v),
		Checks: s.core.Checks.Checks(v.Name),
	}
	return show.Judge(&out)
}

// longestPause is the maximum time for which checks may be paused.
const longestPause = 24 * time.Hour

// postChecks pauses the checks of a service, or runs the checks now.
func postChecks(s *Server, r *request, ask client.ChecksRequest) (reply, error) {
	if ask.PauseMS < 0 || ask.PauseMS > longestPause.Milliseconds() {
		return reply{}, refuse(client.KindBadRequest, "pause_ms is %d; it goes from 0 to %d", ask.PauseMS, longestPause.Milliseconds())
	}
	v, err := s.lookup(r.Context(), r, readLimit)
	if err != nil {
		return reply{}, err
	}
	if ask.PauseMS > 0 && v.Kind != supervisor.KindGateway && s.policy.check(r.who, mayReplace) != nil {
		return reply{}, refuse(client.KindNotAllowed, "uid %d may not pause the checks of %s, which is no gateway; root may", r.who.uid, v.Name)
	}
	until, text := time.Time{}, "checks are asked now"
	if pause := time.Duration(ask.PauseMS) * time.Millisecond; pause > 0 {
		until, text = s.now().Add(pause), "checks are paused for "+show.Duration(pause)
	}
	if err := s.core.Checks.PauseChecksUntil(v.Name, until); err != nil {
		return reply{}, err
	}
	return answerLater(http.StatusOK, s.view(v, r.who, nil), s.core.Do(r.Context(), supervisor.Remark{Service: v.Name, Text: text}))
}
