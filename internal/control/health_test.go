package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/cli"
	"hinit/internal/control/show"
	"hinit/supervisor"
)

// faultyVolumeBackend is a Backend that reports a volume which the agent can't write.
type faultyVolumeBackend struct{ *fakeBackend }

func (faultyVolumeBackend) Examine(context.Context) (found client.Findings) {
	found.OK("space", "there is some")
	found.Failed("home", "the agent's user cannot write in %q: permission denied", "/opt/data")
	return found
}

// A pod whose wanted gateways can't run must not be Ready, and a standby must not be restarted.
func TestAPodIsReadyOnlyWhenWhatIsWantedIsServed(t *testing.T) {
	up := func(v *supervisor.Service) { v.Ready = true }
	broken := func(v *supervisor.Service) { v.PID, v.CrashLoop, v.LastExit = 0, true, &supervisor.Exit{Code: 1} }
	cmd := newGateway("cmd", supervisor.Up, up)
	cmd.Name, cmd.Profile, cmd.Kind = "cmd", "", supervisor.KindCmd
	standby := client.Init{Lease: &client.Lease{State: client.LeaseWaiting, Since: time.Now(), Detail: `the lock of "/opt/data" is held by another hinit`}}
	plain := client.Init{ServicesFile: "/etc/hinit/hinit.yaml"}
	for _, tt := range []struct {
		name     string
		info     client.Init
		booting  bool
		services []*supervisor.Service
		startup  string // expected failure of each probe; "" if it passes
		ready    string
	}{
		{"one of two is in trouble", plain, false, []*supervisor.Service{newGateway("a", supervisor.Up, up), newGateway("b", supervisor.Backoff, broken)}, "", ""},
		{"all are in trouble, and the CMD runs", plain, false, []*supervisor.Service{cmd, newGateway("b", supervisor.Backoff, broken)}, "", "none of the 1 wanted services works; gateway-b: "},
		{"the same, and the volume is to blame", client.Init{}, false, []*supervisor.Service{cmd, newGateway("b", supervisor.Backoff, broken)}, "", `cannot write in "/opt/data"`},
		{"nothing is wanted on a volume that can't be written", client.Init{}, false, nil, "", `cannot write in "/opt/data"`},
		{"one has not been started", plain, false, []*supervisor.Service{newGateway("a", supervisor.Up, up), newGateway("b", supervisor.Waiting)}, "", "1 of the 2 wanted services have not been started yet"},
		{"a CMD alone", plain, false, []*supervisor.Service{cmd}, "", ""},
		{"a standby", standby, false, []*supervisor.Service{cmd}, "", "is held by another hinit"},
		{"the boot", plain, true, nil, "the container is booting", "the container is booting"},
	} {
		core := newFakeBackend(tt.services...)
		core.initStatus, core.booting = tt.info, tt.booting
		c := serve(t, faultyVolumeBackend{core}, readableByAll).client()
		for probe, want := range map[string]string{client.ProbeStartup: tt.startup, client.ProbeReady: tt.ready, client.ProbeLive: ""} {
			h, err := c.Probe(t.Context(), probe)
			if err != nil || h.OK != (want == "") || !strings.Contains(h.Reason, want) {
				t.Errorf("%s, %s: %+v, %v", tt.name, probe, h, err)
			}
		}
	}
	core := newFakeBackend()
	core.update(func() { core.onReap = func(context.Context) error { return context.DeadlineExceeded } })
	if h, err := serve(t, core, readableByAll).client().Probe(t.Context(), client.ProbeLive); err != nil || h.OK {
		t.Errorf("a supervisor that does not answer is live: %+v, %v", h, err)
	}
	if _, err := serve(t, core, readableByAll).client().Probe(t.Context(), "well"); err == nil {
		t.Error("an unknown probe was answered")
	}
}

func TestTheAgentPausesTheChecksOfGatewaysOnly(t *testing.T) {
	web := newGateway("web", supervisor.Up)
	web.Name, web.Profile, web.Kind = "web", "", supervisor.KindService
	s := serve(t, newFakeBackend(web, newGateway("a", supervisor.Up)), readableByAll)
	for _, tt := range []struct {
		uid     uint32
		service string
		allowed bool
	}{{0, "web", true}, {10000, "web", false}, {10000, "gateway-a", true}} {
		r := httptest.NewRequest(http.MethodPost, "/v1/services/"+tt.service+"/checks", nil)
		r.SetPathValue("name", tt.service)
		_, err := postChecks(s.Server, &request{Request: r, client: peer{uid: tt.uid}}, client.ChecksRequest{PauseMS: 1000})
		if refused := err != nil && strings.Contains(err.Error(), "may not pause"); refused == tt.allowed {
			t.Errorf("uid %d, %s: %v", tt.uid, tt.service, err)
		}
	}
}

// combinationBackend is a Backend with one service for each combination of state and faults. The name of a service encodes its
// combination.
type combinationBackend struct{ *fakeBackend }

const (
	notReady = 1 << iota
	notWanted
	crashLoops
	isPaused
	isDeaf
	checkFails
	hasNote
	isUnserved
	combinations
)

func combinationOf(name string) (bits int) {
	_, _ = fmt.Sscanf(name[strings.LastIndexByte(name, '-')+1:], "%d", &bits)
	return bits
}

func (combinationBackend) Checks(v *supervisor.Service) (out []client.Check) {
	name := v.Name
	if combinationOf(name)&isDeaf != 0 {
		out = append(out, client.Check{Name: "deaf", Type: "deaf", Failed: true})
	}
	if combinationOf(name)&checkFails != 0 {
		out = append(out, client.Check{Name: "health", Type: "http", Failed: true})
	}
	return out
}

func (combinationBackend) Note(v *supervisor.Service) string {
	return map[bool]string{true: "a remark"}[combinationOf(v.Name)&hasNote != 0]
}

func (combinationBackend) ServedBy(v *supervisor.Service) string {
	return map[bool]string{true: client.ServedByNone}[combinationOf(v.Name)&isUnserved != 0]
}

func combinationServices() (all []*supervisor.Service) {
	for _, state := range []supervisor.State{
		supervisor.Down, supervisor.Waiting, supervisor.Starting, supervisor.Up, supervisor.Stopping, supervisor.Killing,
		supervisor.Finishing, supervisor.Backoff, supervisor.Parked, supervisor.Failed,
	} {
		for bits := range combinations {
			v := newGateway(fmt.Sprintf("%s-%d", state, bits), state)
			v.Ready, v.CrashLoop, v.Paused, v.LastExit = bits&notReady == 0, bits&crashLoops != 0, bits&isPaused != 0, &supervisor.Exit{Code: 1}
			if bits&notWanted != 0 {
				setUnwanted(v)
			}
			all = append(all, v)
		}
	}
	return all
}

// hinit healthcheck must agree with hinit status about every service. A deaf or paused gateway, which status shows as faulty,
// must not count as ready. A service that is not wanted up can be faulty too.
func TestTheHealthcheckSaysTheSameOfEveryServiceAsStatus(t *testing.T) {
	t.Parallel()
	core := combinationBackend{newFakeBackend()}
	core.initStatus = client.Init{ServicesFile: "/etc/hinit/hinit.yaml"}
	s := serve(t, core, readableByAll)
	healthcheck := func(flags ...string) (code int, out, errs string) {
		var output, failed strings.Builder
		terminal := &cli.Terminal{Out: &output, Err: &failed, Env: func(name string) (string, bool) {
			return filepath.Dir(s.socket), name == "HINIT_RUNTIME_DIR"
		}}
		code = cli.HealthcheckVerb.Run(terminal, cli.NewCall(cli.HealthcheckVerb, flags))
		return code, output.String(), failed.String()
	}

	// First, the core has all services except those that would make the container unhealthy.
	core.setServices(slices.DeleteFunc(combinationServices(), func(v *supervisor.Service) bool { return combinationOf(v.Name)&isUnserved != 0 })...)
	st, err := s.client().Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	up, wanted := 0, 0
	for i := range st.Services {
		if v := &st.Services[i]; v.Want == client.WantUp {
			wanted++
			if v.State == client.StateUp {
				up++
			}
		}
	}
	fmt.Fprintf(&want, "healthy, %d of %d wanted services are up\n", up, wanted)
	troubled := 0
	for _, v := range core.Snapshot().Services {
		if v := st.Find(v.Name); show.VerdictOf(v).NeedsAttention() {
			troubled++
			fmt.Fprintln(&want, "in trouble:", v.Name)
		}
	}
	if code, out, errs := healthcheck(); code != 0 || out != want.String() || troubled < 100 {
		t.Errorf("exit code %d, %s\nit prints\n%s\nstatus has\n%s", code, errs, out, want.String())
	}

	// The container has a single service. It is ready if status calls the service well, or if the service has only a remark or
	// a failing check. The handlers are called without HTTP, which would take most of the time of 13,000 requests.
	answer := func(handle func(*Server, *request) (reply, error), query url.Values, into any) {
		out, err := handle(s.Server, &request{Request: httptest.NewRequest(http.MethodGet, "/", nil), query: query})
		if err == nil && out.onSent != nil {
			out.onSent()
		}
		if err := errors.Join(err, json.Unmarshal(out.body, into)); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range combinationServices() {
		core.setServices(v)
		var st client.Status
		answer(getStatus, nil, &st)
		verdict := show.VerdictOf(&st.Services[0])
		ready := v.Want != supervisor.WantUp || v.State == supervisor.Up && combinationOf(v.Name)&isUnserved == 0 && slices.Contains([]string{"", "check fails", "ailing"}, verdict.StateRemark)
		for probe, want := range map[string]bool{"": combinationOf(v.Name)&isUnserved == 0, client.ProbeStartup: true, client.ProbeLive: true, client.ProbeReady: ready} {
			var h client.Health
			answer(getHealth, url.Values{"probe": {probe}}, &h)
			if h.OK != want || slices.Contains(h.Troubled, v.Name) != verdict.NeedsAttention() {
				t.Fatalf("%s %q: %+v; status says %+v", v.Name, probe, h, verdict)
			}
		}
		if v.Want == supervisor.WantUp && !ready && v.State == supervisor.Up && combinationOf(v.Name)&(hasNote|crashLoops|isUnserved) == 0 {
			if code, out, errs := healthcheck("--ready"); code == 0 || out != "" || !strings.HasSuffix(errs, v.Name+": "+verdict.StateRemark+"\n") {
				t.Fatalf("%s, which is %q: exit code %d, %s%s", v.Name, verdict.StateRemark, code, out, errs)
			}
		}
	}
}
