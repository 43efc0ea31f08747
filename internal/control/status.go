package control

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/control/show"
	"hinit/internal/isolation"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/profiles"
	"hinit/supervisor"
)

// getStatus answers with hinit and all services except the CMD, or with the services in the request, in their order. The answer
// is JSON or a table.
func getStatus(s *Server, r *request) (reply, error) {
	// This call may wait for the boot, so it must not hold the turn of makeAnswerLimited.
	snap, added := s.snapshotWithExpected(r.Context(), r.query["name"])
	return s.makeAnswerLimited(r, func() (reply, error) {
		st, err := s.status(r.Context(), snap, added, r.query["name"], r.client)
		if err != nil {
			return reply{}, err
		}
		return formatStatus(st, r.query)
	})
}

// formatStatus returns the status as JSON, or as the table for the parameter "as".
func formatStatus(st client.Status, query url.Values) (reply, error) {
	switch as := query["as"]; {
	case len(as) == 0:
		return okReply(st)
	case len(as) == 1 && as[0] == client.FormatTable:
		layout := show.Layout{NamesGiven: len(query["name"]) > 0, Colour: query.Get("colour") == "1", Verbose: query.Get("verbose") == "1"}
		if width := query.Get("width"); width != "" {
			n, err := parseNumber(width, "width")
			if err != nil {
				return reply{}, err
			}
			layout.Width = int(min(n, 1<<15))
		}
		return statusTable(st, layout), nil
	}
	return reply{}, newError(client.KindBadRequest, "cannot answer as %q; as takes %s", query["as"], client.FormatTable)
}

// statusTable returns the status as a table. The header ServicesDownHeader has the number of services that are not up.
func statusTable(st client.Status, layout show.Layout) reply {
	down := 0
	for i := range st.Services {
		if st.Services[i].State != string(supervisor.Up) {
			down++
		}
	}
	out := textReply(http.StatusOK, http.Header{client.ServicesDownHeader: {strconv.Itoa(down)}}, nil)
	out.body = show.StatusTable(st, layout)
	return out
}

// reapTimeout limits how long one status request waits for the supervisor, in all calls of observe together.
const reapTimeout = 100 * time.Millisecond

// reapAndRead returns a service with the kernel's data about its main process. If the process is a zombie and the supervisor
// doesn't know it, for example because of a tracer, the supervisor reaps the process first.
func (s *Server) reapAndRead(ctx context.Context, v *supervisor.Service) (*supervisor.Service, procstat.Stat) {
	st := readStat(v.PID)
	if st.State != 'Z' {
		return v, st
	}
	_ = s.backend.ReapNow(ctx, v.PID) // a busy supervisor reaps the process later
	v = s.latestState(v)
	return v, readStat(v.PID)
}

// snapshotWithExpected returns a snapshot with the named services, or with all if names is empty. added has the services in the
// snapshot that the boot has not registered yet.
func (s *Server) snapshotWithExpected(ctx context.Context, names []string) (snap *supervisor.Snapshot, added map[*supervisor.Service]bool) {
	snap = s.backend.Snapshot()
	missing := func() bool {
		return slices.ContainsFunc(names, func(name string) bool { _, err := findService(snap, name); return err != nil })
	}
	if len(names) > 0 && !missing() {
		return snap, nil
	}
	with := func(list []*supervisor.Service) {
		// Take the snapshot after the list, so that a newly registered service is in one of them.
		now := s.backend.Snapshot()
		registered := make(map[string]bool, len(now.Services))
		for _, v := range now.Services {
			registered[v.Name] = true
		}
		snap, added = &supervisor.Snapshot{Services: slices.Clone(now.Services), Stopping: now.Stopping}, make(map[*supervisor.Service]bool)
		for _, v := range list {
			if !registered[v.Name] {
				snap.Services, added[v] = append(snap.Services, v), true
			}
		}
	}
	with(s.backend.ExpectedServices(ctx, false))
	if len(names) > 0 && missing() {
		shortCtx, cancel := context.WithTimeout(ctx, s.bootListTimeout)
		defer cancel()
		with(s.backend.ExpectedServices(shortCtx, true))
	}
	return snap, added
}

// status makes the status document for the client caller. It has the services in names, or all services if names is empty.
// added has the services that the boot has not registered yet.
func (s *Server) status(ctx context.Context, snap *supervisor.Snapshot, added map[*supervisor.Service]bool, names []string, caller peer) (client.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	out := client.Status{Version: client.StatusVersion, Init: s.initStatus(snap), Services: []client.Service{}}
	if len(names) == 0 {
		list := servicesInStatus(snap)
		out.Services = slices.Grow(out.Services, len(list))
		for _, v := range list {
			out.Services = append(out.Services, s.serviceStatus(ctx, v, caller, added))
		}
		out.Init.FirstOOMVictim = firstOOMVictim(snap.Services, out.Services)
	}
	for _, name := range names {
		v, err := findService(snap, name)
		if l := out.Init.Lease; err != nil && l != nil && l.State == client.LeaseWaiting {
			err = newError(client.KindUnknown, "nothing called %q is supervised here: %s", name, l.Detail)
		}
		if err != nil {
			return client.Status{}, err
		}
		if out.Find(v.Name) == nil {
			view := s.serviceStatus(ctx, v, caller, added)
			if s.policy.classOf(caller) != otherClass { // the client may read the configuration
				view.Settings = s.backend.NonDefaultSettings(v.Name)
			}
			out.Services = append(out.Services, view)
		}
	}
	shortenTails(out.Services)
	return out, nil
}

// maxTailBytes limits the total size of the last log lines in a list of services. Above the limit, each service keeps
// shortTailLines lines of at most maxShortLine bytes. Otherwise the output of services could fill the memory of PID 1.
const (
	maxTailBytes   = 1 << 20
	shortTailLines = 3
	maxShortLine   = 200
)

// shortenTails shortens the last log lines in a list above maxTailBytes.
func shortenTails(list []client.Service) {
	total := 0
	for i := range list {
		if x := list[i].LastExit; x != nil {
			for _, line := range x.Tail {
				total += len(line)
			}
		}
	}
	if total <= maxTailBytes {
		return
	}
	for i := range list {
		if x := list[i].LastExit; x != nil {
			// Copy the lines, because the snapshot shares them.
			x.Tail = slices.Clone(x.Tail[max(0, len(x.Tail)-shortTailLines):])
			for k, line := range x.Tail {
				x.Tail[k] = line[:min(len(line), maxShortLine)]
			}
		}
	}
}

// servicesInStatus returns the services of a complete status, in their order.
func servicesInStatus(snap *supervisor.Snapshot) []*supervisor.Service {
	return slices.DeleteFunc(sortGateways(snap.Services), func(v *supervisor.Service) bool { return !isListed(v) })
}

func isListed(v *supervisor.Service) bool {
	return v.Kind != supervisor.KindCmd && v.Kind != supervisor.KindPlaceholder && v.Kind != supervisor.KindRun && v.Kind != supervisor.KindCheck
}

// sortGateways returns a copy of a list with the gateways in the order of their profiles. The other services keep their places.
func sortGateways(services []*supervisor.Service) []*supervisor.Service {
	isGateway := func(v *supervisor.Service) bool { return v.Kind == supervisor.KindGateway }
	gateways := slices.DeleteFunc(slices.Clone(services), func(v *supervisor.Service) bool { return !isGateway(v) })
	slices.SortFunc(gateways, func(a, b *supervisor.Service) int {
		return cmp.Or(profiles.Compare(a.Profile, b.Profile), strings.Compare(a.Name, b.Name))
	})
	out := slices.Clone(services)
	for i, v := range out {
		if isGateway(v) {
			out[i], gateways = gateways[0], gateways[1:]
		}
	}
	return out
}

func getService(s *Server, r *request) (reply, error) {
	names := []string{r.PathValue("name")}
	snap, added := s.snapshotWithExpected(r.Context(), names)
	return s.makeAnswerLimited(r, func() (reply, error) {
		st, err := s.status(r.Context(), snap, added, names, r.client)
		if err != nil {
			return reply{}, err
		}
		return okReply(st.Services[0])
	})
}

// findService finds a service by its name, or a gateway by the name of its profile. If a service in the scan directory of s6
// has the same name, the gateway wins, because an agent can choose such names.
func findService(snap *supervisor.Snapshot, name string) (*supervisor.Service, error) {
	v := snap.Find(name)
	if v == nil || v.YieldsToProfile || v.Kind == supervisor.KindPlaceholder {
		for _, gateway := range snap.Services {
			if gateway.Kind == supervisor.KindGateway && gateway.Profile == name && name != "" {
				return gateway, nil
			}
		}
	}
	if v != nil && v.Kind != supervisor.KindPlaceholder {
		return v, nil
	}
	return nil, newError(client.KindUnknown, "no such profile or service %q; `hinit status` lists them", name)
}

func (s *Server) initStatus(snap *supervisor.Snapshot) client.Init {
	i := s.backend.Init()
	i.Stopping, i.OrphansReaped = snap.Stopping, s.backend.Orphans()
	i.UptimeSeconds, i.StartedAt = seconds(s.now().Sub(i.StartedAt)), recordedTime(i.StartedAt)
	if i.Lease != nil {
		i.Lease.Since = adjustedTime(i.Lease.Since)
	}
	i.Warnings, i.Boot, i.Cmd = nonNil(i.Warnings), nonNil(i.Boot), nil
	for _, v := range snap.Services {
		if v.Kind == supervisor.KindCmd {
			i.Cmd = &client.Cmd{Argv: nonNil(v.Command), PID: v.PID, Since: adjustedTime(v.Since), Stopped: isStopped(readStat(v.PID))}
		}
	}
	return i
}

// serviceStatus returns a service as the client caller may see it. added has the services that the boot has not registered yet.
func (s *Server) serviceStatus(ctx context.Context, v *supervisor.Service, caller peer, added map[*supervisor.Service]bool) client.Service {
	v, st := s.reapAndRead(ctx, v)
	trusted := s.policy.classOf(caller) != otherClass
	out := client.Service{
		Name: v.Name, Profile: v.Profile, Group: v.Group, Kind: string(v.Kind), State: string(v.State), Want: string(v.Want),
		PID: v.PID, Since: adjustedTime(v.Since), Restarts: v.Restarts, ConsecutiveFailures: v.Failures, CrashLoop: v.CrashLoop,
		Ready: v.Ready, ReportsReadiness: v.ReportsReadiness, Log: v.Log, Reason: v.Reason, MemoryBytes: st.Memory,
		Command: nonNil(isolation.UnwrapCommand(v.Command)), Needs: nonNil(v.Needs), RunNumber: v.Run, Paused: isServicePaused(v, st),
		Drifted: v.DefinitionChanged, ExitsByCause: countsByCause(v.Exits), RestartsByCause: countsByCause(v.RestartCauses),
		Isolation: s.backend.Isolation(v), Limits: s.backend.Limits(v), Checks: s.checks(v, caller), Output: s.backend.Output(v.Name),
		Expected: added[v], Task: v.Task, Done: v.Done, Restart: string(v.RestartPolicy), Problem: s.problemText(v, trusted),
		ServedBy: s.backend.ServedBy(v),
	}
	if v.State == supervisor.Up {
		out.UptimeSeconds = seconds(s.now().Sub(v.Since))
	}
	if !v.NextStart.IsZero() {
		out.NextStart = new(adjustedTime(v.NextStart))
	}
	if !v.NextRun.IsZero() {
		out.NextRun = new(adjustedTime(v.NextRun))
	}
	if v.LastExit != nil {
		out.LastExit = toClientExit(v.LastExit)
		if !trusted {
			out.LastExit.Tail = []string{}
		}
	}
	if trusted { // the service controls this text, so an untrusted client must not read it
		out.StatusText = v.Status
	}
	return out
}

// problemText describes the problems of a service besides its state, or returns "". It quotes output of the service only for a
// client that may read the service's log (trusted).
func (s *Server) problemText(v *supervisor.Service, trusted bool) string {
	switch {
	case v.State == supervisor.Up && v.Warning != "" && trusted:
		return v.Warning
	case v.CrashLoop && v.LastExit != nil && trusted && v.State != supervisor.Up:
		return supervisor.ReasonCrashLoop + ": " + v.LastExit.Explanation()
	case (v.State == supervisor.Backoff || v.State == supervisor.Parked) && v.LastExit != nil && len(v.LastExit.Tail) > 0 && trusted:
		return v.LastExit.Explanation()
	case v.State == supervisor.Down || v.State == supervisor.Up:
		return s.backend.Note(v)
	}
	return ""
}

func toClientExit(x *supervisor.Exit) *client.Exit {
	out := x.ToClient()
	out.EndedAt, out.Tail, out.UptimeSeconds = recordedTime(x.At), nonNil(x.Tail), seconds(x.Uptime)
	out.TailPending = x.Tail == nil && x.PID != 0
	return &out
}

func countsByCause(by []supervisor.CauseCount) map[string]int {
	if len(by) == 0 {
		return nil
	}
	out := make(map[string]int, len(by))
	for _, of := range by {
		out[string(of.Cause)] = of.Count
	}
	return out
}

func nonNil[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// adjustedTime returns a time of the status whose age clients show. If the wall clock was set since, adjustedTime returns what
// the new clock would have shown at that time. A time without a monotonic reading stays.
func adjustedTime(t time.Time) time.Time {
	if age := time.Since(t); (time.Since(t.Round(0)) - age).Abs() > time.Second {
		t = time.Now().Add(-age)
	}
	return recordedTime(t)
}

// recordedTime returns a time as the wall clock showed it then. A time by which clients recognise something must not change with
// the clock: the start of hinit, an exit, or an event. Log lines have such times too.
func recordedTime(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

func seconds(d time.Duration) float64 { return max(d, 0).Round(time.Millisecond).Seconds() }

// firstOOMVictim returns the service whose main process the kernel would kill first when memory runs out, or "". The kernel adds
// oom_score_adj, in thousandths of the limit, to the resident memory (proc_pid_oom_score(5)). views are the listed services,
// with their memory. firstOOMVictim ignores processes of checks, because they end soon and users don't know their names.
func firstOOMVictim(services []*supervisor.Service, views []client.Service) string {
	measured := make(map[string]uint64, len(views))
	for _, v := range views {
		measured[v.Name] = v.MemoryBytes
	}
	name, worst := "", 0.0
	limit, room := oomLimits()
	for _, v := range services {
		if v.Kind == supervisor.KindCheck {
			continue
		}
		memory, known := measured[v.Name]
		if !known {
			memory = readStat(v.PID).Memory
		}
		if badness := float64(memory) + float64(min(v.OOMAdj, room))*limit/1000; memory > 0 && badness > worst {
			name, worst = v.Name, badness
		}
	}
	return name
}

// limit is the memory limit of the container, or else the memory of the machine. room is the highest OOMAdj of a service.
var oomLimits = sync.OnceValues(func() (limit float64, room int) {
	limit = math.Inf(1)
	var machine unix.Sysinfo_t
	if unix.Sysinfo(&machine) == nil {
		limit = float64(machine.Totalram) * float64(machine.Unit)
	}
	blocking.Run(blocking.ShortCalls, func() {
		if n := proc.ReadContainerMemory().Limit; n > 0 {
			limit = min(limit, float64(n))
		}
		room = proc.MaxOOMScoreIncrease()
	})
	return limit, room
})

func readStat(pid int) (st procstat.Stat) {
	if pid > 0 {
		st, _ = blocking.Get(blocking.ShortCalls, func() (procstat.Stat, error) { return procstat.Read(pid) })
	}
	return st
}

func isStopped(st procstat.Stat) bool { return st.State == 'T' }

// isServicePaused reports whether a signal has stopped the main process of a service that should run.
func isServicePaused(v *supervisor.Service, st procstat.Stat) bool {
	return v.Paused || v.State == supervisor.Up && isStopped(st)
}
