package metrics

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/forward"
	"hinit/internal/proc"
)

// fakeSource is a hinit whose answers the test sets.
type fakeSource struct {
	status client.Status
	events []client.Event
	err    error
}

func (f *fakeSource) Status(context.Context, ...string) (client.Status, error) {
	return f.status, f.err
}

func (f *fakeSource) Events(_ context.Context, _ client.EventOptions, fn func(client.Event) error) error {
	for _, e := range f.events {
		if err := fn(e); err != nil {
			return err
		}
	}
	return f.err
}

// newCollector returns a Collector that sees no processes and no forwarder. Its time is noon.
func newCollector(f *fakeSource) *Collector {
	return &Collector{
		Source: f, ProcPath: func(client.Init) string { return "" }, ForwardCounters: neverForwarded,
		Now: func() time.Time { return noon }, Context: context.Background,
	}
}

func neverForwarded(client.Init) (forward.Positions, error) {
	return forward.Positions{}, fs.ErrNotExist
}

func metricsText(t *testing.T, c *Collector) string {
	t.Helper()
	var b strings.Builder
	if err := Write(&b, c); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func wantLines(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, line := range want {
		if !strings.Contains("\n"+got, "\n"+line+"\n") {
			t.Errorf("there is no line %s in\n%s", line, got)
		}
	}
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func TestTasksNextRunsAndTheForwardersLagHaveSeries(t *testing.T) {
	next := noon.Add(time.Hour)
	f := &fakeSource{status: client.Status{Version: 1, Services: []client.Service{
		{Name: "backup", State: client.StateDown, Task: true, Done: true, NextRun: &next},
		{Name: "gateway-coder", State: client.StateBackoff, Want: client.WantUp, NextStart: &next},
		{Name: "gateway-deaf", State: client.StateUp, Want: client.WantUp, Ready: true, Checks: []client.Check{{Name: "deaf", Type: "deaf", Failed: true}, {Name: "health", Type: "http"}}},
	}}}
	c := newCollector(f)
	c.ForwardCounters = func(client.Init) (forward.Positions, error) {
		return forward.Positions{Counts: forward.Counts{Sent: 7, RefusedRecords: 1, Gaps: 2, Failures: 3}, OldestUnsent: noon.Add(-90 * time.Second)}, nil
	}
	wantLines(t, metricsText(t, c),
		`hinit_task_done{profile="",service="backup"} 1`, `hinit_task_next_run_timestamp_seconds{profile="",service="backup"} 1.7673588e+09`,
		`hinit_service_next_start_timestamp_seconds{profile="",service="gateway-coder"} 1.7673588e+09`,
		`hinit_service_problem{kind="backoff",profile="",service="gateway-coder"} 1`,
		`hinit_service_problem{kind="deaf",profile="",service="gateway-deaf"} 1`, `hinit_service_check_failing{check="deaf",profile="",service="gateway-deaf"} 1`,
		`hinit_service_check_failing{check="health",profile="",service="gateway-deaf"} 0`,
		`hinit_forward_records_total{result="sent"} 7`, `hinit_forward_records_total{result="refused"} 1`, `hinit_forward_gaps_total 2`,
		`hinit_forward_failures_total 3`, `hinit_forward_lag_seconds 90`,
	)
	c.ForwardCounters = neverForwarded
	if got := metricsText(t, c); strings.Contains(got, "hinit_forward") {
		t.Errorf("without a forwarder:\n%s", got)
	}
}

func TestWhatHinitTells(t *testing.T) {
	code := 1
	f := &fakeSource{status: client.Status{Version: 1, Init: client.Init{
		Version: "1.2", StartedAt: noon, Generation: 3, OrphansReaped: 7, Lease: &client.Lease{State: client.LeaseHeld},
		Boot: []client.BootStep{{Name: "volume", Seconds: 0.5}, {Name: "volume", Seconds: 2}, {Name: "hook a", Error: "x"}},
	}, Services: []client.Service{{
		Name: "gateway-coder", Profile: "coder", State: client.StateBackoff, Want: client.WantUp, CrashLoop: true, ConsecutiveFailures: 6,
		ExitsByCause: map[string]int{"crash": 4, "oom": 2, "made-up": 1}, RestartsByCause: map[string]int{"crash": 3},
		LastExit: &client.Exit{Code: &code, Cause: "crash", EndedAt: noon.Add(-time.Second)},
		Output:   &client.Output{Lines: 10, Bytes: 100, FileLost: 1, ConsoleDropped: 2, Suppressed: 3, Error: "full"},
	}}}, events: []client.Event{
		{Service: "gateway-coder", FromState: client.StateUp, ToState: client.StateStopping, At: noon},
		{Service: "gateway-coder", FromState: client.StateStopping, ToState: client.StateKilling, At: noon.Add(5 * time.Second)},
		{Service: "gateway-coder", FromState: client.StateKilling, ToState: client.StateDown, At: noon.Add(6 * time.Second)},
	}}
	c := newCollector(f)
	const of = `profile="coder",service="gateway-coder"`
	got := metricsText(t, c)
	wantLines(
		t, got, "hinit_up 1", `hinit_info{version="1.2"} 1`, "hinit_reexecutions_total 2", "hinit_orphans_reaped_total 7", "hinit_lease_held 1",
		`hinit_boot_step_duration_seconds{step="volume"} 0.5`, `hinit_boot_step_failed{step="hook a"} 1`,
		"hinit_service_up{"+of+"} 0", "hinit_service_wanted{"+of+"} 1", `hinit_service_state{`+of+`,state="backoff"} 1`, "hinit_service_crash_loop{"+of+"} 1",
		`hinit_service_exits_total{cause="crash",`+of+`} 3`, // the last exit does not count yet, because its cause may still change
		`hinit_service_exits_total{cause="oom",`+of+`} 2`, `hinit_service_exits_total{cause="other",`+of+`} 1`,
		`hinit_service_restarts_total{cause="crash",`+of+`} 3`, "hinit_service_last_stop_duration_seconds{"+of+"} 6",
		"hinit_service_log_lines_total{"+of+"} 10", "hinit_service_log_bytes_total{"+of+"} 100",
		`hinit_service_log_gap_lines_total{`+of+`,where="file"} 1`, `hinit_service_log_gap_lines_total{`+of+`,where="rate"} 3`, "hinit_service_log_fault{"+of+"} 1",
	)
	c.Now = func() time.Time { return noon.Add(time.Minute) }
	wantLines(t, metricsText(t, c), `hinit_service_exits_total{cause="crash",`+of+`} 4`)
	// A counter of exits must never go down, because Prometheus would take it for a new counter. The cause of a clean exit may
	// become "replaced" up to a minute later, so the last exit is not counted yet.
	s := &f.status.Services[0]
	s.ExitsByCause["clean"], s.LastExit.Cause = 5, "clean"
	wantLines(t, metricsText(t, c), `hinit_service_exits_total{cause="clean",`+of+`} 4`)
	s.State = client.StateUp
	wantLines(t, metricsText(t, c), `hinit_service_exits_total{cause="clean",`+of+`} 5`)
	if strings.Contains(got, "hinit_service_cpu") {
		t.Error("processor time of a process that nobody has seen")
	}
}

func TestAHinitThatDoesNotAnswerOrLies(t *testing.T) {
	for name, f := range map[string]*fakeSource{
		"down":            {err: errors.New("no")},
		"another program": {status: client.Status{Version: 99}},
	} {
		if got := metricsText(t, newCollector(f)); !strings.Contains(got, "\nhinit_up 0\n") || strings.Count(got, "# HELP") != 1 {
			t.Errorf("%s: %s", name, got)
		}
	}
	hostile := "\xff\"}\n{x=\"" + strings.Repeat("long", 1000)
	f := &fakeSource{status: client.Status{Version: 1}}
	for i := range 5000 {
		f.status.Services = append(f.status.Services, client.Service{
			Name: fmt.Sprintf("s%d%s", i%4000, hostile), Profile: hostile, State: fmt.Sprint("state", i),
			ExitsByCause: map[string]int{fmt.Sprint("cause", i): -1, hostile: 1}, PID: -i,
		})
	}
	c := newCollector(f)
	c.ProcPath = func(client.Init) string { return "/proc" }
	got := metricsText(t, c)
	if n := strings.Count(got, "\nhinit_service_up{"); n != MaxServices {
		t.Errorf("%d services have metrics, the limit is %d", n, MaxServices)
	}
	wantLines(t, got, "hinit_services 5000", "hinit_services_omitted 4000")
	for line := range strings.Lines(got) {
		if !strings.HasPrefix(line, "hinit_") && !strings.HasPrefix(line, "# ") || len(line) > 1000 {
			t.Fatalf("a name has made the line %q", line)
		}
	}
}

func TestTheProcessesOfAServiceCountTogether(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "sleep 1000 & a=$!; setsid sleep 1000 & b=$!; echo ready; read x; kill $a $b")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	seen := readProcesses("/proc", proc.ServiceRoots{Mains: map[int]string{cmd.Process.Pid: "shell"}})
	u := seen.usageOf(seen.pidsByService["shell"]...)
	if u.processes != 3 || u.threads != 3 || u.memory == 0 || u.fds < 9 {
		t.Errorf("a shell with two children is %+v", u)
	}
	if p := seen.usageOf(os.Getpid()); p.processes != 1 || p.fds < 3 || p.memory == 0 {
		t.Errorf("this process is %+v", p)
	}
	if p := seen.usageOf(1 << 30); p.processes != 0 {
		t.Errorf("a process that is not there is %+v", p)
	}
}

func TestOpenMetricsForThoseWhoTakeIt(t *testing.T) {
	h, err := Handler(newCollector(&fakeSource{status: client.Status{Version: 1}}))
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if !strings.HasSuffix(w.Body.String(), "# EOF\n") || !strings.Contains(w.Header().Get("Content-Type"), "openmetrics") {
		t.Errorf("%s: %s", w.Header().Get("Content-Type"), w.Body)
	}
}

func TestOnlyCountersEndWithTotal(t *testing.T) {
	for _, f := range Families {
		if (f.kind == counter) != strings.HasSuffix(f.Name, "_total") {
			t.Errorf("%s: only counters end with _total", f.Name)
		}
	}
}
