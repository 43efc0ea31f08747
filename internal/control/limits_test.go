package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/testkit"
	"hinit/supervisor"
)

// hangingBackend is a Backend whose disks don't answer. Its calls return when their context ends.
type hangingBackend struct{ *fakeBackend }

func awaitCancel(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("the disk does not answer: %w", context.Cause(ctx))
}

func (c hangingBackend) Command(ctx context.Context, _ client.Verb, _ string) error {
	return awaitCancel(ctx)
}

func (c hangingBackend) Rescan(ctx context.Context) error { return awaitCancel(ctx) }

func (c hangingBackend) Find(ctx context.Context, _ string) error { return awaitCancel(ctx) }

func (c hangingBackend) Reload(ctx context.Context, _ client.Reload) (client.ReloadReply, error) {
	return client.ReloadReply{}, awaitCancel(ctx)
}

func (c hangingBackend) Examine(ctx context.Context) client.Findings {
	return client.Findings{{Check: "home", Result: client.ResultFailed, Detail: awaitCancel(ctx).Error()}}
}

func (c hangingBackend) Topology(ctx context.Context, _ string, _ bool) (client.TopologyReply, error) {
	return client.TopologyReply{}, awaitCancel(ctx)
}

func (c hangingBackend) Do(ctx context.Context, e supervisor.Event) error {
	if _, notice := e.(supervisor.Remark); notice {
		return nil
	}
	return awaitCancel(ctx)
}

func (c hangingBackend) ReapNow(ctx context.Context, _ ...int) error { return awaitCancel(ctx) }

func (c hangingBackend) Reexec(ctx context.Context, _ string) (int, error) {
	return 0, awaitCancel(ctx)
}
func (c hangingBackend) S6() Slots                               { return c }
func (c hangingBackend) Slots(ctx context.Context) []client.Slot { _ = awaitCancel(ctx); return nil }

func (c hangingBackend) Slot(ctx context.Context, _ string) (client.Slot, error) {
	return client.Slot{}, awaitCancel(ctx)
}

func (c hangingBackend) SlotControl(ctx context.Context, _, _ string) error { return awaitCancel(ctx) }

func (c hangingBackend) ControlScanner(ctx context.Context, _ string) error { return awaitCancel(ctx) }

func (c hangingBackend) StartRun(ctx context.Context, _ client.RunRequest, _ bool, _ string) (client.Run, error) {
	return client.Run{}, awaitCancel(ctx)
}

func (c hangingBackend) StopRun(ctx context.Context, _ string) (client.Run, error) {
	return client.Run{}, awaitCancel(ctx)
}

func (c hangingBackend) FindRun(string) (client.Run, error) { return client.Run{ID: "x-1"}, nil }

func (c hangingBackend) AwaitBoot(ctx context.Context, _ int) error {
	return c.currentHooks().awaitBoot(ctx, 0)
}

// Every route must answer within its limit when the volume hangs, both after and during the boot. Each route needs a row here.
func TestEveryRouteAnswersWithinItsLimitOnAVolumeThatHangs(t *testing.T) {
	const dir = "?dir=/run/service/gateway-coder"
	rows := map[string]struct {
		path   string
		body   string
		answer string // part of the expected answer
		boot   string // expected answer during the boot; "" for the same answer
	}{
		"GET /v1/status":                    {"/v1/status", "", `"name":"gateway-coder"`, ""},
		"GET /v1/status/follow":             {"/v1/status/follow", "", "", ""}, // the request ends only when the client ends it
		"GET /v1/services/{name}":           {"/v1/services/coder", "", `"name":"gateway-coder"`, ""},
		"POST /v1/services/{name}/start":    {"/v1/services/coder/start", `{"timeout_ms":50}`, "the disk does not answer: no answer within 50ms; gateway-coder is up", ""},
		"POST /v1/services/{name}/stop":     {"/v1/services/coder/stop", `{"timeout_ms":50,"wait":false}`, "the disk does not answer: no answer within 50ms; gateway-coder is up", ""},
		"POST /v1/services/{name}/restart":  {"/v1/services/other/restart", `{"timeout_ms":50}`, "the data volume has not answered within 50ms whether there is one", "still booting after 50ms"},
		"POST /v1/services/{name}/run-once": {"/v1/services/other/run-once", `{"timeout_ms":50}`, "the data volume has not answered within 50ms whether there is one", "still booting after 50ms"},
		"POST /v1/services/{name}/checks":   {"/v1/services/kanban/checks", `{}`, `"name":"kanban"`, ""},
		"POST /v1/services/{name}/signal":   {"/v1/services/kanban/signal", `{"signal":1}`, "the disk does not answer: no answer within", ""},
		"POST /v1/services/{name}/say":      {"/v1/services/kanban/say", `{"text":"x"}`, "the disk does not answer: no answer within", ""},
		"POST /v1/notices":                  {"/v1/notices", `{"key":"k"}`, "", ""}, // the answer does not depend on the volume
		"POST /v1/runs":                     {"/v1/runs", `{"template":"t","tag":"a"}`, "the disk does not answer: no answer within", "still booting after"},
		"GET /v1/runs":                      {"/v1/runs", "", `"runs":[]`, ""},
		"GET /v1/runs/{id}":                 {"/v1/runs/x-1?wait_ms=40", "", `"id":"x-1"`, ""},
		"POST /v1/runs/{id}/stop":           {"/v1/runs/x-1/stop", "", "the disk does not answer: no answer within", ""},
		"GET /v1/events":                    {"/v1/events", "", "", ""},
		"POST /v1/rescan":                   {"/v1/rescan", "", "the disk does not answer: no answer within", "still booting after"},
		"POST /v1/reload":                   {"/v1/reload", "", "the disk does not answer: no answer within", "still booting after"},
		"POST /v1/topology":                 {"/v1/topology", `{"mode":"auto"}`, "the disk does not answer: no answer within", "still booting after"},
		"POST /v1/examine":                  {"/v1/examine", "", "the disk does not answer: no answer within", ""},
		"POST /v1/reexec":                   {"/v1/reexec", "", "the disk does not answer: no answer within", ""},
		"GET /v1/config":                    {"/v1/config", "", `"entries"`, ""},
		"GET /v1/health":                    {"/v1/health", "", "the supervisor does not answer: the disk does not answer", ""},
		"GET /v1/slots":                     {"/v1/slots" + dir, "", "the disk does not answer: no answer within", ""},
		"GET /v1/slots/wait":                {"/v1/slots/wait" + dir + "&until=u", "", "", ""}, // the request ends only when the client ends it
		"POST /v1/slots/control":            {"/v1/slots/control", `{"dir":"/run/service/gateway-coder","flags":"d"}`, "the disk does not answer: no answer within", ""},
		"POST /v1/slots/scan":               {"/v1/slots/scan", `{"flags":"a"}`, "the disk does not answer: no answer within", ""},
	}
	for _, booting := range []bool{false, true} {
		core := hangingBackend{newFakeBackend(newGateway("coder", supervisor.Up), &supervisor.Service{Name: "kanban", State: supervisor.Up, PID: os.Getpid()})}
		if booting {
			core.awaitBoot = func(ctx context.Context, _ int) error { return awaitCancel(ctx) }
		}
		want := func(pattern string) string {
			if row := rows[pattern]; !booting || row.boot == "" {
				return row.answer
			}
			return rows[pattern].boot
		}
		s := serve(t, core, readableByAll, func(s *Server) {
			s.routeTimeLimit = func(rt route) time.Duration {
				if strings.HasPrefix(want(rt.pattern), `"`) { // the answer is not an error, so it may take long on a busy machine
					return rt.timeLimit
				}
				return min(rt.timeLimit, 40*time.Millisecond)
			}
		})
		for _, rt := range routes() {
			row, known := rows[rt.pattern]
			if !known {
				t.Errorf("%s has no row here", rt.pattern)
				continue
			}
			if rt.pattern == "GET /v1/slots/wait" || rt.pattern == "GET /v1/status/follow" {
				continue
			}
			method, _, _ := strings.Cut(rt.pattern, " ")
			body, err := s.sendRequest(t, method, row.path, row.body)
			if err != nil || !strings.Contains(body, want(rt.pattern)) {
				t.Errorf("%s, booting %v: %v\n%s\nwithout %q", rt.pattern, booting, err, body, want(rt.pattern))
			}
		}
	}
	for _, rt := range routes() {
		_, endless := map[string]bool{"GET /v1/events": true, "GET /v1/status/follow": true, "GET /v1/slots/wait": true, "GET /v1/runs": true, "GET /v1/runs/{id}": true}[rt.pattern]
		if rt.timeLimit == 0 && !endless && rt.waitMode != waitsForNames { // the request sets the time limit of a command in its body
			t.Errorf("%s has no limit", rt.pattern)
		}
	}
}

func (s *testServer) sendRequest(t *testing.T, method, path, body string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://hinit"+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	transport := &http.Transport{DialContext: s.dial, DisableKeepAlives: true}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(answer.Body)
	return string(text), errors.Join(err, answer.Body.Close())
}

func (s *testServer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", s.socket)
}
