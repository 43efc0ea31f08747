package control

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/supervisor"
)

// faultyVolume is a Backend whose volume the agent can't write.
type faultyVolume struct{ *fakeCore }

func (faultyVolume) Examine(context.Context) (found client.Findings) {
	found.OK("space", "there is some")
	found.Failed("home", "the agent's user cannot write in %q: permission denied", "/opt/data")
	return found
}

// TestAPodIsReadyOnlyWhenWhatIsWantedIsServed: a pod was Ready although none of its gateways could run, and one check for both probes
// restarted a standby.
func TestAPodIsReadyOnlyWhenWhatIsWantedIsServed(t *testing.T) {
	up := func(v *supervisor.Service) { v.Ready = true }
	broken := func(v *supervisor.Service) { v.PID, v.CrashLoop, v.LastExit = 0, true, &supervisor.Exit{Code: 1} }
	cmd := gateway("cmd", supervisor.Up, up)
	cmd.Name, cmd.Profile, cmd.Kind = "cmd", "", supervisor.KindCmd
	standby := client.Init{Lease: &client.Lease{State: client.LeaseWaiting, Since: time.Now(), Detail: `the lock of "/opt/data" is held by another hinit`}}
	plain := client.Init{Plain: "/etc/hinit/hinit.yaml"}
	for _, tt := range []struct {
		name     string
		info     client.Init
		booting  bool
		services []*supervisor.Service
		startup  string // why it fails, "" when it does not
		ready    string
	}{
		{"one of two is in trouble", plain, false, []*supervisor.Service{gateway("a", supervisor.Up, up), gateway("b", supervisor.Backoff, broken)}, "", ""},
		{"all are in trouble, and the CMD runs", plain, false, []*supervisor.Service{cmd, gateway("b", supervisor.Backoff, broken)}, "", "none of the 1 wanted services works; gateway-b: "},
		{"the same, and the volume is to blame", client.Init{}, false, []*supervisor.Service{cmd, gateway("b", supervisor.Backoff, broken)}, "", `cannot write in "/opt/data"`},
		{"nothing is wanted on a volume that can't be written", client.Init{}, false, nil, "", `cannot write in "/opt/data"`},
		{"one has not been started", plain, false, []*supervisor.Service{gateway("a", supervisor.Up, up), gateway("b", supervisor.Waiting)}, "", "1 of the 2 wanted services have not been started yet"},
		{"a CMD alone", plain, false, []*supervisor.Service{cmd}, "", ""},
		{"a standby", standby, false, []*supervisor.Service{cmd}, "", "is held by another hinit"},
		{"the boot", plain, true, nil, "the container is booting", "the container is booting"},
	} {
		core := newFakeCore(tt.services...)
		core.info, core.booting = tt.info, tt.booting
		c := serve(t, faultyVolume{core}, everyone).client()
		for probe, want := range map[string]string{client.ProbeStartup: tt.startup, client.ProbeReady: tt.ready, client.ProbeLive: ""} {
			h, err := c.Probe(t.Context(), probe)
			if err != nil || h.OK != (want == "") || !strings.Contains(h.Reason, want) {
				t.Errorf("%s, %s: %+v, %v", tt.name, probe, h, err)
			}
		}
	}
	core := newFakeCore()
	core.change(func() { core.ping = func(context.Context) error { return context.DeadlineExceeded } })
	if h, err := serve(t, core, everyone).client().Probe(t.Context(), client.ProbeLive); err != nil || h.OK {
		t.Errorf("a supervisor that does not answer is live: %+v, %v", h, err)
	}
	if _, err := serve(t, core, everyone).client().Probe(t.Context(), "well"); err == nil {
		t.Error("an unknown probe was answered")
	}
}

// The agent could pause the checks of a service of root's, so that its death stayed unseen for a day.
func TestTheAgentPausesTheChecksOfGatewaysOnly(t *testing.T) {
	web := gateway("web", supervisor.Up)
	web.Name, web.Profile, web.Kind = "web", "", supervisor.KindService
	s := serve(t, newFakeCore(web, gateway("a", supervisor.Up)), everyone)
	for _, tt := range []struct {
		uid     uint32
		service string
		allowed bool
	}{{0, "web", true}, {10000, "web", false}, {10000, "gateway-a", true}} {
		r := httptest.NewRequest(http.MethodPost, "/v1/services/"+tt.service+"/checks", nil)
		r.SetPathValue("name", tt.service)
		_, err := postChecks(s.Server, &request{Request: r, who: peer{uid: tt.uid}}, client.ChecksRequest{PauseMS: 1000})
		if refused := err != nil && strings.Contains(err.Error(), "may not pause"); refused == tt.allowed {
			t.Errorf("uid %d, %s: %v", tt.uid, tt.service, err)
		}
	}
}
