package control

import (
	"context"
	"encoding/json"
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
	"hinit/internal/config"
	"hinit/internal/testkit"
	"hinit/supervisor"
)

func testTime(n float64) time.Time {
	return time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(n * float64(time.Second)))
}

func newGoldenBackend() *fakeBackend {
	policyExit := &supervisor.Exit{
		Run: 3, PID: 120, Code: 1, Cause: supervisor.CauseCrash, At: testTime(90), Uptime: 1500 * time.Millisecond,
		Tail: []string{"<b>Traceback</b>", "KeyError: 'x'"},
	}
	core := newFakeBackend(
		&supervisor.Service{
			Name: "gateway-coder", Profile: "coder", Kind: supervisor.KindGateway, Log: "/opt/data/logs/gateways/coder/current",
			Command: []string{"hermes", "-p", "coder"}, State: supervisor.Up, Want: supervisor.WantUp, Reason: "started",
			Since: testTime(91), PID: 4 << 20, Run: 4, Ready: true, Restarts: 1, Failures: 1, LastExit: policyExit,
		},
		&supervisor.Service{
			Name: "gateway-default", Profile: "default", Kind: supervisor.KindGateway, State: supervisor.Backoff,
			Want: supervisor.WantUp, Reason: "ended by signal 9", Since: testTime(99.5), Run: 9, Restarts: 5, Failures: 6,
			CrashLoop: true, NextStart: testTime(130),
			LastExit: &supervisor.Exit{Run: 9, PID: 130, Code: -1, Signal: 9, Cause: supervisor.CauseOOM, At: testTime(99.5), Tail: []string{}},
		},
		&supervisor.Service{
			Name: "dashboard", Kind: supervisor.KindService, State: supervisor.Waiting, Want: supervisor.WantUp,
			Reason: "waits for boot", Since: testTime(0), Needs: []string{"boot"},
			LastExit: &supervisor.Exit{Run: 2, Code: -1, Cause: supervisor.CauseSpawn, Error: `cannot start "x"`, At: testTime(1)},
		},
		&supervisor.Service{
			Name: "cmd", Kind: supervisor.KindCmd, Command: []string{"sleep", "infinity"}, State: supervisor.Up,
			Want: supervisor.WantUp, Since: testTime(2), PID: 4<<20 + 1, Run: 1, Ready: true,
		},
	)
	core.initStatus = client.Init{PID: 1, Version: "1.2.3", StartedAt: testTime(0), Home: "/opt/data"}
	return core
}

// TestAServiceWasUpForADayAfterTheClockWasSet checks that a status shows how long ago a service started although somebody has
// set the wall clock since. A machine without a battery for its clock boots in 1970, and sets its clock when it reaches the
// network: every service would be up for decades. The times of hinit's start and of the exit must not change, because clients
// recognise both by them. Otherwise hinit-actions would report every parked service again, and hinit-web forward would send
// every event again.
func TestAServiceWasUpForADayAfterTheClockWasSet(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{24 * time.Hour, -24 * time.Hour, 0} {
		started := testkit.AfterClockStep(time.Now().Add(-time.Minute), step)
		core := newFakeBackend(&supervisor.Service{
			Name: "web", Kind: supervisor.KindService, State: supervisor.Backoff, Since: started, NextStart: testkit.AfterClockStep(time.Now().Add(time.Minute), step),
			LastExit: &supervisor.Exit{At: started, Tail: []string{}},
		})
		core.initStatus = client.Init{StartedAt: started, Lease: &client.Lease{Since: started}}
		s := serve(t, core, readableByAll)
		var got client.Status
		if code, body := s.curlAs(t, -1, "/v1/status"); code != 200 || json.Unmarshal([]byte(body), &got) != nil {
			t.Fatal(code, body)
		}
		web := got.Services[0]
		for what, at := range map[string]time.Time{"the lock": got.Init.Lease.Since, "the service": web.Since, "its next start": web.NextStart.Add(-2 * time.Minute)} {
			if age := time.Since(at.Round(0)); (age - time.Minute).Abs() > 10*time.Second {
				t.Errorf("the clock was set by %v: %s began a minute ago, and the status says %v", step, what, age)
			}
		}
		if wall := started.UTC().Truncate(time.Millisecond); !got.Init.StartedAt.Equal(wall) || !web.LastExit.EndedAt.Equal(wall) {
			t.Errorf("the clock was set by %v: hinit started at %v and the service ended at %v, want %v as before", step, got.Init.StartedAt, web.LastExit.EndedAt, wall)
		}
	}
}

func TestStatusHasTheShapeThatWasPromised(t *testing.T) {
	s := serve(t, newGoldenBackend(), readableByAll, func(s *Server) { s.now = func() time.Time { return testTime(100) } })
	code, body := s.curlAs(t, -1, "/v1/status")
	if code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	const golden = "testdata/status.json"
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if body != string(want) {
		t.Errorf("got\n%s\nwant\n%s", body, want)
	}
}

func TestMemoryIsThatOfTheMainProcess(t *testing.T) {
	s := serve(t, newFakeBackend(newGateway("me", supervisor.Up, func(v *supervisor.Service) { v.PID = os.Getpid() })), readableByAll)
	v, err := s.client().Service(t.Context(), "me")
	if err != nil || v.MemoryBytes < 1<<20 || v.MemoryBytes > 1<<40 {
		t.Errorf("%d bytes, %v", v.MemoryBytes, err)
	}
}

func TestNamesAreServicesThenProfiles(t *testing.T) {
	odd := &supervisor.Service{Name: "coder", Kind: supervisor.KindService, State: supervisor.Up}
	for _, tt := range []struct {
		core *fakeBackend
		name string
		want string
	}{
		{newGoldenBackend(), "coder", "gateway-coder"},
		{newGoldenBackend(), "gateway-coder", "gateway-coder"},
		{newGoldenBackend(), "dashboard", "dashboard"},
		{newGoldenBackend(), "cmd", "cmd"},
		{newFakeBackend(newGateway("coder", supervisor.Up), odd), "coder", "coder"},
		{newFakeBackend(odd, newGateway("coder", supervisor.Up)), "gateway-coder", "gateway-coder"},
	} {
		s := serve(t, tt.core, readableByAll)
		v, err := s.client().Service(t.Context(), tt.name)
		if err != nil || v.Name != tt.want {
			t.Errorf("%s: got %q, %v", tt.name, v.Name, err)
		}
	}
	s := serve(t, newGoldenBackend(), readableByAll)
	st, err := s.client().Status(t.Context(), "dashboard", "gateway-coder", "coder")
	if err != nil || len(st.Services) != 2 || st.Services[0].Name != "dashboard" || st.Services[1].Name != "gateway-coder" {
		t.Errorf("got %+v, %v", st.Services, err)
	}
	if _, err := s.client().Status(t.Context(), "coder", "nobody"); !errors.Is(err, client.ErrUnknown) {
		t.Errorf("an unknown name among others: %v", err)
	}
}

func TestAnswersInWords(t *testing.T) {
	core := newGoldenBackend()
	s := serve(t, core, readableByAll)
	for _, tt := range []struct {
		method, path, body string
		code               int
		words, kind        string
	}{
		{"GET", "/v1/services/x", "", 404, "no such profile or service \"x\"; `hinit status` lists them", "unknown"},
		{"POST", "/v1/services/x/start", "", 404, "no such profile or service \"x\"; `hinit status` lists them", "unknown"},
		{"POST", "/v1/services/coder/start", `{"wait":1}`, 400, "the body cannot be understood: ", "bad-request"},
		{"POST", "/v1/services/coder/start", `{"wait":false}`, 202, "gateway-coder is up (pid 4194304)\n", ""},
		{"POST", "/v1/services/dashboard/stop", `{"wait":false}`, 202, "dashboard is waiting\n", ""},
		{"GET", "/v1/status?as=table&name=coder", "", 200, "hinit 1.2.3, pid 1, up ", ""},
	} {
		request, err := http.NewRequestWithContext(t.Context(), tt.method, "http://hinit"+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept", "text/plain")
		transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", s.socket)
		}}
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err = errors.Join(err, response.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != tt.code || !strings.HasPrefix(string(body), tt.words) || response.Header.Get(client.ErrorHeader) != tt.kind ||
			response.Header.Get("Content-Type") != "text/plain; charset=utf-8" || (tt.method == "GET" && tt.kind == "") != (response.Header.Get(client.ServicesDownHeader) == "0") {
			t.Errorf("%s %s: %d %q, %v", tt.method, tt.path, response.StatusCode, body, response.Header)
		}
	}
}

func TestWrongRequestsAreRefusedAndSaySoInJSON(t *testing.T) {
	s := serve(t, newGoldenBackend(), readableByAll)
	for _, tt := range []struct {
		args string
		code int
		body string // the beginning of the expected body
	}{
		{"/v1/services/x", 404, `{"error":{"kind":"unknown","message":"no such profile or service \"x\"; ` + "`hinit status`" + ` lists them"}}`},
		{"-X POST /v1/services/x/start", 404, `{"error":{"kind":"unknown",`},
		{"/v1/services/a%2Fb", 404, `{"error":{"kind":"unknown","message":"no such profile or service \"a/b\"`},
		{"/v1/status?name=", 404, `{"error":{"kind":"unknown",`},
		{"/v1/status?nmae=x", 400, `{"error":{"kind":"bad-request","message":"unknown parameter \"nmae\"; /v1/status takes name, as, width, colour, verbose"}}`},
		{"/v1/status?as=yaml", 400, `{"error":{"kind":"bad-request","message":"cannot answer as [\"yaml\"]; as takes table"}}`},
		{"/v1/status?name=%zz", 400, `{"error":{"kind":"bad-request",`},
		{"/v1/health?x=1", 400, `{"error":{"kind":"bad-request","message":"unknown parameter \"x\"; /v1/health takes probe"}}`},
		{"/v1/nothing", 404, `{"error":{"kind":"bad-request","message":"no such endpoint \"/v1/nothing\""}}`},
		{"/", 404, `{"error":{"kind":"bad-request","message":"no such endpoint \"/\""}}`},
		{"-X DELETE /v1/status", 405, `{"error":{"kind":"bad-request","message":"\"/v1/status\" takes GET, not DELETE"}}`},
		{"/v1/rescan", 405, `{"error":{"kind":"bad-request","message":"\"/v1/rescan\" takes POST, not GET"}}`},
		{"-d {} -X PUT /v1/services/coder/stop", 405, `{"error":`},
		{"-d {\"wiat\":true} /v1/services/coder/stop", 400, `{"error":{"kind":"bad-request","message":"the body cannot be understood: json: unknown field \"wiat\""}}`},
		{"-d {\"wait\":1} /v1/services/coder/stop", 400, `{"error":{"kind":"bad-request",`},
		{"-d [] /v1/services/coder/stop", 400, `{"error":{"kind":"bad-request",`},
		{"-d {}{} /v1/services/coder/stop", 400, `{"error":{"kind":"bad-request","message":"the body continues`},
		{"-d {\"timeout_ms\":-1} /v1/services/coder/stop", 400, `{"error":{"kind":"bad-request","message":"timeout_ms is -1;`},
		{"-d {\"timeout_ms\":3600001} /v1/services/coder/stop", 400, `{"error":{"kind":"bad-request",`},
		{"-d {\"timeout_ms\":1e99} /v1/services/coder/stop", 400, `{"error":{"kind":"bad-request",`},
		{"-d {\"wait\":true} -X POST /v1/rescan", 400, `{"error":{"kind":"bad-request",`},
		{"-d x -X POST /v1/reload", 400, `{"error":{"kind":"bad-request",`},
		{"/v1/events?since=-1", 400, `{"error":{"kind":"bad-request","message":"since is \"-1\"; it is a whole number"}}`},
		{"/v1/events?since=5", 400, `{"error":{"kind":"bad-request","message":"event 5 has not happened, the newest is 0;`},
		{"/v1/events?follow=yes", 400, `{"error":{"kind":"bad-request",`},
	} {
		code, body := s.curlAs(t, -1, strings.Split(tt.args, " ")...)
		if code != tt.code || !strings.HasPrefix(body, tt.body) || !strings.HasSuffix(body, "}}\n") {
			t.Errorf("%s: %d %s", tt.args, code, body)
		}
	}
	if got := s.backend.Loop.(*fakeBackend).receivedCommands(); got != "" {
		t.Errorf("a refused request had an effect: %s", got)
	}
	big := "{\"wait\":" + strings.Repeat(" ", maxBodyBytes) + "true}"
	if code, body := s.curlAs(t, -1, "-d", big, "/v1/services/coder/stop"); code != 400 || !strings.Contains(body, "longer than 65536") {
		t.Errorf("a big body: %d %s", code, body)
	}
}

func TestCommandsReachTheCore(t *testing.T) {
	core := newGoldenBackend()
	s := serve(t, core, readableByAll)
	for _, args := range []string{
		"-X POST /v1/services/coder/start", // gateway-coder is already up, so the answer is 200
		"-d {\"wait\":false} /v1/services/coder/stop",
		"-d {\"wait\":false,\"timeout_ms\":0} /v1/services/dashboard/restart",
	} {
		code, body := s.curlAs(t, -1, strings.Split(args, " ")...)
		want := 202
		if strings.HasSuffix(args, "start") && !strings.Contains(args, "false") {
			want = 200
		}
		if code != want || !strings.HasPrefix(body, `{"name":`) {
			t.Errorf("%s: %d %s", args, code, body)
		}
	}
	if got := core.receivedCommands(); got != "start gateway-coder, stop gateway-coder, restart dashboard" {
		t.Errorf("the core was asked: %s", got)
	}
}

func TestErrorsOfTheCoreKeepTheirMeaning(t *testing.T) {
	core := newGoldenBackend()
	s := serve(t, core, readableByAll)
	for _, tt := range []struct {
		err  error
		code int
		kind string
	}{
		{supervisor.ErrUnknown, 404, "unknown"},
		{supervisor.ErrStopping, 503, "stopping"},
		{supervisor.ErrIsCMD, 409, "failed"},
		{fmt.Errorf("cannot reach it: %w", context.DeadlineExceeded), 504, "timeout"},
		{errors.New("cannot write \"gateway_state.json\": no space left on device"), 409, "failed"},
	} {
		core.update(func() { core.afterCommand = func(string, string) error { return tt.err } })
		code, body := s.curlAs(t, -1, "-X", "POST", "/v1/services/coder/stop")
		if code != tt.code || !strings.Contains(body, `"kind":"`+tt.kind+`"`) {
			t.Errorf("%v: %d %s", tt.err, code, body)
		}
	}
}

func TestManagement(t *testing.T) {
	core := newGoldenBackend()
	core.config = []client.ConfigEntry{{Key: "home", Value: "/opt/data", Origin: "env HERMES_HOME"}}
	s := serve(t, core, readableByAll)
	if code, body := s.curlAs(t, -1, "/v1/config"); code != 200 || body != `{"entries":[{"key":"home","value":"/opt/data","origin":"env HERMES_HOME"}]}`+"\n" {
		t.Errorf("config: %d %s", code, body)
	}
	if code, body := s.curlAs(t, -1, "-X", "POST", "/v1/rescan"); code != 204 || body != "" {
		t.Errorf("rescan: %d %q", code, body)
	}
	if code, body := s.curlAs(t, -1, "-X", "POST", "/v1/reload"); code != 200 || body != `{"changes":[],"plan":[],"settings":[],"dry_run":false}`+"\n" {
		t.Errorf("reload: %d %s", code, body)
	}
	core.update(func() {
		core.reload = func() ([]string, error) { return nil, errors.New("hinit.yaml:3: unknown key \"x\"") }
	})
	if code, body := s.curlAs(t, -1, "-d", "{}", "/v1/reload"); code != 409 || !strings.Contains(body, `hinit.yaml:3`) {
		t.Errorf("a bad reload: %d %s", code, body)
	}
	want := `{"ok":true,"reason":"","wanted":4,"up":2,"troubled":["gateway-default"]}` + "\n"
	if code, body := s.curlAs(t, -1, "/v1/health"); code != 200 || body != want {
		t.Errorf("health: %d %s", code, body)
	}
	core.update(func() { core.onReap = func(context.Context) error { return context.DeadlineExceeded } })
	if _, body := s.curlAs(t, -1, "/v1/health"); !strings.HasPrefix(body, `{"ok":false,"reason":"the supervisor does not answer`) {
		t.Errorf("health of a stuck one: %s", body)
	}
}

func TestAProfileMadeJustNowIsFound(t *testing.T) {
	core := newFakeBackend()
	core.find = func(f *fakeBackend, name string) error {
		f.setServices(newGateway("new", supervisor.Up))
		return nil
	}
	s := serve(t, core, readableByAll)
	if _, err := s.client().Service(t.Context(), "new"); !errors.Is(err, client.ErrUnknown) {
		t.Errorf("a question must not read the disk: %v", err)
	}
	if v, err := s.client().Start(t.Context(), "new", client.WaitOptions{Wait: true}); err != nil || v.Name != "gateway-new" {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestWhoMayDoWhat(t *testing.T) {
	testkit.NeedRoot(t)
	reads := []string{"/v1/status", "/v1/services/coder", "/v1/events", "/v1/health", "/v1/slots", "/v1/slots/wait?dir=/run/service/coder&until=u"}
	controls := []string{
		"-X POST /v1/services/coder/start", "-d {\"wait\":false} /v1/services/coder/stop",
		"-d {\"wait\":false} /v1/services/coder/restart", "-X POST /v1/rescan", "-X POST /v1/reload", "-X POST /v1/examine", "/v1/config", "-d {} /v1/topology",
		"-d {\"dir\":\"/run/service/coder\",\"flags\":\"u\"} /v1/slots/control", "-d {\"flags\":\"an\"} /v1/slots/scan",
		"-d {\"tag\":\"a\"} /v1/runs", "/v1/runs", "/v1/runs/x-1", "-X POST /v1/runs/x-1/stop", "-d {\"text\":\"a\"} /v1/services/kanban/say",
		"-d {\"signal\":1} /v1/services/coder/signal", "-d {\"pause_ms\":1} /v1/services/coder/checks", "-d {\"wait\":false} /v1/services/report/run-once", "-d {\"key\":\"k\"} /v1/notices",
	}
	// reexec and follow have their own tests: handover_test.go, and follow_test.go with its endless answer.
	if n := len(reads) + len(controls) + 2; n != len(routes()) {
		t.Fatalf("%d of %d routes are tried", n, len(routes()))
	}
	for _, tt := range []struct {
		others         string
		uid            int
		mayR, mayWrite bool
	}{
		{config.OthersMayReadStatus, 0, true, true},
		{config.OthersMayReadStatus, 10000, true, true},
		{config.OthersMayReadStatus, 65534, true, false},
		{config.OthersMayDoNothing, 0, true, true},
		{config.OthersMayDoNothing, 10000, true, true},
		{config.OthersMayDoNothing, 65534, false, false},
		{"nonsense", 65534, false, false},
	} {
		core := newGoldenBackend()
		core.snap.Services = append(core.snap.Services, &supervisor.Service{Name: "report", Kind: supervisor.KindService, State: supervisor.Down, Task: true})
		core.slots = map[string]client.Slot{"/run/service/coder": {Name: "coder", Up: true}}
		s := serve(t, core, Options{AgentUID: 10000, OtherUsers: tt.others})
		try := func(args string, may bool, verb string) {
			code, body := s.curlAs(t, tt.uid, strings.Split(args, " ")...)
			if may && strings.HasSuffix(args, "/say") && strings.Contains(body, "not the main process") {
				return
			}
			if may && (code < 200 || code > 299) {
				t.Errorf("others %s, uid %d: %s: %d %s", tt.others, tt.uid, args, code, body)
			}
			want := fmt.Sprintf(`{"error":{"kind":"not-allowed","message":"uid %d may not %s; root and the agent's user (uid 10000) may"}}`, tt.uid, verb)
			if !may && (code != 403 || strings.TrimSpace(body) != want) {
				t.Errorf("others %s, uid %d: %s: %d %s", tt.others, tt.uid, args, code, body)
			}
		}
		if !tt.mayR {
			try("/v1/status/follow", false, "read the status of hinit")
		}
		for _, args := range reads {
			try(args, tt.mayR, "read the status of hinit")
		}
		for _, args := range controls {
			try(args, tt.mayWrite, "control hinit")
		}
		if asked := core.receivedCommands(); tt.mayWrite == (asked == "") {
			t.Errorf("others %s, uid %d: the core was asked %q", tt.others, tt.uid, asked)
		}
	}
}

func TestLogLinesAreNotForStrangers(t *testing.T) {
	testkit.NeedRoot(t)
	s := serve(t, newGoldenBackend(), readableByAll)
	for uid, want := range map[int]bool{10000: true, 65534: false} {
		for _, path := range []string{"/v1/status", "/v1/services/coder"} {
			_, body := s.curlAs(t, uid, path)
			if got := strings.Contains(body, "Traceback"); got != want {
				t.Errorf("uid %d: %s", uid, body)
			}
		}
	}
}

func TestAPanicIsAnAnswerAndIsReported(t *testing.T) {
	core := newGoldenBackend()
	core.afterCommand = func(string, string) error { panic("ouch") }
	reports := make(chan string, 1)
	s := serve(t, core, Options{Log: func(m string) { reports <- m }})
	code, body := s.curlAs(t, -1, "-X", "POST", "/v1/services/coder/stop")
	if code != 500 || !strings.Contains(body, `"kind":"internal"`) || strings.Contains(body, "ouch") {
		t.Errorf("%d %s", code, body)
	}
	if m := <-reports; !strings.Contains(m, "POST /v1/services/coder/stop: ouch") {
		t.Errorf("reported: %s", m)
	}
	if code, _ := s.curlAs(t, -1, "/v1/health"); code != 200 {
		t.Errorf("afterwards: %d", code)
	}
}

func TestAFailedStartReportsItsCause(t *testing.T) {
	core := newLoopBackend(t)
	core.procs.update(func() {
		core.procs.tail = []string{"reading config.yaml", "error: model: \"\" is not a model"}
		// the process dies within the second after which a start counts as successful
		core.procs.onSpawn = func(run uint64) { core.procs.endProcess(run, 78, 0) }
	})
	s := serve(t, core, readableByAll)
	core.addService(t, "coder", supervisor.WantDown)
	code, body := s.curlAs(t, -1, "-d", `{"wait":true,"timeout_ms":20000}`, "/v1/services/coder/start")
	want := `{"error":{"kind":"failed","message":"gateway-coder is parked: exited with code 78 (config); ` +
		`last lines: \"reading config.yaml\", \"error: model: \\\"\\\" is not a model\""}}` + "\n"
	if code != 409 || body != want {
		t.Errorf("%d %s", code, body)
	}
	code, body = s.curlAs(t, -1, "-X", "POST", "/v1/services/gateway-coder/stop")
	if code != 200 || !strings.Contains(body, `"state":"down","want":"down","pid":0`) {
		t.Errorf("stop: %d %s", code, body)
	}
}

func TestStatusComesAsATableToo(t *testing.T) {
	s := serve(t, newGoldenBackend(), readableByAll)
	code, body := s.curlAs(t, -1, "-i", "/v1/status?as=table")
	if code != 200 || !strings.Contains(body, "Content-Type: text/plain") || !strings.Contains(body, "\nNAME ") {
		t.Errorf("%d %s", code, body)
	}
	for name, down := range map[string]string{"coder": "Hinit-Down: 0\r\n", "dashboard": "Hinit-Down: 1\r\n"} {
		if _, body := s.curlAs(t, -1, "-i", "/v1/status?as=table&name="+name); !strings.Contains(body, down) {
			t.Errorf("%s: want %q in %s", name, down, body)
		}
	}
}
