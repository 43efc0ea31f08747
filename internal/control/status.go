package control

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/supervisor"
)

// getStatus answers with hinit and all services but the CMD, or with those that are named, each once, in that order; as JSON
// or as a table.
func getStatus(s *Server, r *request) (reply, error) {
	query, err := queryOf(r, "name", "as")
	if err != nil {
		return reply{}, err
	}
	st, err := s.status(query["name"], r.who)
	if err != nil {
		return reply{}, err
	}
	switch as := query["as"]; {
	case len(as) == 0:
		return done(st)
	case len(as) == 1 && as[0] == client.AsTable:
		return table(st), nil
	}
	return reply{}, refuse(client.KindBadRequest, "cannot answer as %q; as takes %s", query["as"], client.AsTable)
}

// table is the status for people.
func table(st client.Status) reply {
	down := 0
	for i := range st.Services {
		if st.Services[i].State != string(supervisor.Up) {
			down++
		}
	}
	return text(http.StatusOK, http.Header{client.DownHeader: {strconv.Itoa(down)}}, show.Status(st))
}

func (s *Server) status(names []string, who peer) (client.Status, error) {
	snap := s.core.Snapshot()
	out := client.Status{Version: client.StatusVersion, Init: s.initView(snap), Services: []client.Service{}}
	if len(names) == 0 {
		out.Services = make([]client.Service, 0, len(snap.Services))
		for _, v := range snap.Services {
			if v.Kind != supervisor.KindCmd {
				out.Services = append(out.Services, s.view(v, who))
			}
		}
		return out, nil
	}
	var seen []*supervisor.Service
	for _, name := range names {
		v, err := resolve(snap, name)
		if err != nil {
			return client.Status{}, err
		}
		if !slices.Contains(seen, v) {
			seen = append(seen, v)
			out.Services = append(out.Services, s.view(v, who))
		}
	}
	return out, nil
}

func getService(s *Server, r *request) (reply, error) {
	if _, err := queryOf(r); err != nil {
		return reply{}, err
	}
	v, err := resolve(s.core.Snapshot(), r.PathValue("name"))
	if err != nil {
		return reply{}, err
	}
	return done(s.view(v, r.who))
}

// resolve finds the service that a name means: the service of that name, else the gateway of the profile of that name.
func resolve(snap *supervisor.Snapshot, name string) (*supervisor.Service, error) {
	if v := snap.Find(name); v != nil {
		return v, nil
	}
	for _, v := range snap.Services {
		if v.Kind == supervisor.KindGateway && v.Profile == name && name != "" {
			return v, nil
		}
	}
	return nil, refuse(client.KindUnknown, "no such profile or service %q; `hinit status` lists them", name)
}

// queryOf returns the parameters of a request and refuses those that are not known, so that a typing error does not
// silently mean something else.
func queryOf(r *request, known ...string) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, refuse(client.KindBadRequest, "the parameters cannot be understood: %v", err)
	}
	for key := range query {
		if !slices.Contains(known, key) {
			takes := "takes none"
			if len(known) > 0 {
				takes = "takes " + strings.Join(known, ", ")
			}
			return nil, refuse(client.KindBadRequest, "unknown parameter %q; %s %s", key, r.URL.Path, takes)
		}
	}
	return query, nil
}

// initView completes what the core says of hinit itself.
func (s *Server) initView(snap *supervisor.Snapshot) client.Init {
	i := s.core.Init()
	i.Stopping, i.Orphans = snap.Stopping, s.core.Orphans()
	i.UptimeSeconds = seconds(s.now().Sub(i.StartedAt))
	i.StartedAt = wireTime(i.StartedAt)
	i.Warnings, i.Boot, i.Cmd = list(i.Warnings), list(i.Boot), nil
	for _, v := range snap.Services {
		if v.Kind == supervisor.KindCmd {
			i.Cmd = &client.Cmd{Argv: list(v.Command), PID: v.PID, Since: wireTime(v.Since)}
		}
	}
	return i
}

// view is a service as the given caller may see it.
func (s *Server) view(v *supervisor.Service, who peer) client.Service {
	out := client.Service{
		Name: v.Name, Profile: v.Profile, Kind: string(v.Kind), State: string(v.State), Want: string(v.Want),
		PID: v.PID, Since: wireTime(v.Since), Restarts: v.Restarts, ConsecutiveFailures: v.Failures, CrashLoop: v.CrashLoop,
		Ready: v.Ready, Log: v.Log, Reason: v.Reason, MemoryBytes: residentMemory(v.PID), Command: list(v.Command),
		Needs: list(v.Needs), Run: v.Run, Paused: v.Paused,
	}
	if v.State == supervisor.Up {
		out.UptimeSeconds = seconds(s.now().Sub(v.Since))
	}
	if !v.NextStart.IsZero() {
		at := wireTime(v.NextStart)
		out.NextStart = &at
	}
	if v.LastExit != nil {
		out.LastExit = exitView(v.LastExit)
		if s.policy.classOf(who) == otherClass { // logs hold what users wrote; a stranger may not read the files either
			out.LastExit.Tail = []string{}
		}
	}
	return out
}

func exitView(x *supervisor.Exit) *client.Exit {
	out := &client.Exit{
		Cause: string(x.Cause), At: wireTime(x.At), Tail: list(x.Tail), Error: x.Error,
		UptimeSeconds: seconds(x.Uptime), PID: x.PID,
	}
	switch {
	case x.Signal != 0:
		out.Signal = &x.Signal
	case x.Code >= 0:
		out.Code = &x.Code
	}
	return out
}

// list makes sure that a list is not null on the wire.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

func wireTime(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

func seconds(d time.Duration) float64 { return max(d, 0).Round(time.Millisecond).Seconds() }
