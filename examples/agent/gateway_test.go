package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/examples/agent/internal/record"
	"hinit/internal/testkit"
)

// gatewayProc is a running gateway. Its output goes to files, so that leftover processes can't
// delay the test.
type gatewayProc struct {
	t              *testing.T
	cmd            *exec.Cmd
	home           string
	stdout, stderr string
	ended          bool
}

func startGateway(t *testing.T, home string, args ...string) *gatewayProc {
	t.Helper()
	return startGatewayWith(t, home, nil, args...)
}

func startGatewayWith(t *testing.T, home string, env []string, args ...string) *gatewayProc {
	t.Helper()
	out := t.TempDir()
	g := &gatewayProc{t: t, cmd: newAgentCmd(home, env, args), home: home}
	g.stdout, g.stderr = filepath.Join(out, "stdout"), filepath.Join(out, "stderr")
	if len(args) > 1 && args[0] == "-p" {
		g.home = filepath.Join(home, "profiles", args[1])
	}
	var files []*os.File
	for _, name := range []string{g.stdout, g.stderr} {
		file, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	g.cmd.Stdout, g.cmd.Stderr = files[0], files[1]
	err := g.cmd.Start()
	for _, file := range files {
		file.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !g.ended {
			g.cmd.Process.Kill()
			g.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("stdout of %v:\n%s\nstderr:\n%s", args, readFile(t, g.stdout), readFile(t, g.stderr))
		}
	})
	return g
}

func (g *gatewayProc) pid() int { return g.cmd.Process.Pid }

func (g *gatewayProc) signal(sig syscall.Signal) {
	g.t.Helper()
	if err := g.cmd.Process.Signal(sig); err != nil {
		g.t.Fatal(err)
	}
}

// wait returns the exit code, or the negative number of the signal that ended it.
func (g *gatewayProc) wait() int {
	g.t.Helper()
	stuck := time.AfterFunc(testkit.Patience, func() { g.cmd.Process.Kill() })
	err := g.cmd.Wait()
	g.ended = true
	if !stuck.Stop() {
		g.t.Fatal("the gateway did not end and was killed")
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		g.t.Fatal(err)
	}
	status := g.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return -int(status.Signal())
	}
	return status.ExitStatus()
}

func (g *gatewayProc) path(name string) string { return filepath.Join(g.home, name) }

func (g *gatewayProc) state() map[string]any {
	var state map[string]any
	data, err := os.ReadFile(g.path("gateway_state.json"))
	if err == nil && json.Unmarshal(bytes.TrimPrefix(data, []byte("\ufeff")), &state) != nil {
		g.t.Errorf("half a state file was seen: %q", data)
	}
	return state
}

// waitState waits until exactly this process has written the state.
func (g *gatewayProc) waitState(want string) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("PID %d is %s", g.pid(), want), func() bool {
		state := g.state()
		return state["gateway_state"] == want && state["pid"] == float64(g.pid())
	})
}

func (g *gatewayProc) identity() record.Identity {
	start := startTime(g.t, g.pid())
	return record.Identity{PID: g.pid(), StartTime: &start}
}

// startTime reads field 22 of the stat line by itself, to check the agent's reading.
func startTime(t *testing.T, pid int) uint64 {
	t.Helper()
	line := readFile(t, fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	ticks, err := strconv.ParseUint(fields[22-3], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return ticks
}

func TestGatewayStartWritesItsFiles(t *testing.T) {
	home := t.TempDir()
	writeFile(t, filepath.Join(home, "gateway_state.json"), "\ufeff{\"desired_state\":\"running\",\"mine\":{\"b\":1.50,\"a\":[]},\"exit_reason\":\"old\"}")
	if err := os.Chmod(filepath.Join(home, "gateway_state.json"), 0o604); err != nil {
		t.Fatal(err)
	}
	g := startGateway(t, home, "gateway") // The command gateway without a verb runs the gateway, too.
	g.waitState("running")

	raw := readFile(t, g.path("gateway_state.json"))
	if strings.Contains(raw, "\n") || strings.Contains(raw, `": `) || strings.Contains(raw, `, "`) {
		t.Errorf("not compact: %q", raw)
	}
	for _, kept := range []string{`"desired_state":"running"`, `"mine":{"b":1.50,"a":[]}`, `"exit_reason":null`} {
		if !strings.Contains(raw, kept) {
			t.Errorf("no %s in %s", kept, raw)
		}
	}
	if got := fileMode(t, g.path("gateway_state.json")); got != 0o604 {
		t.Errorf("the mode became %o", got)
	}
	state := g.state()
	for key, want := range map[string]any{
		"kind": "hermes-gateway", "start_time": float64(startTime(t, g.pid())), "restart_requested": false, "active_agents": 0.0,
	} {
		if state[key] != want {
			t.Errorf("%s is %v, want %v", key, state[key], want)
		}
	}
	if at, err := time.Parse(time.RFC3339Nano, state["updated_at"].(string)); err != nil || time.Since(at).Abs() > testkit.Patience {
		t.Errorf("updated_at is %v", state["updated_at"])
	}
	for _, name := range []string{"gateway.pid", "gateway.lock"} {
		if got := readFile(t, g.path(name)); !strings.HasPrefix(got, fmt.Sprintf(`{"pid":%d,"kind":"hermes-gateway","argv":["`, g.pid())) {
			t.Errorf("%s holds %s", name, got)
		}
	}
	if ledger := readFile(t, g.path("state/gateway.lifecycle.json")); !strings.HasPrefix(ledger, `{"phase":"running","pid":`+strconv.Itoa(g.pid())) {
		t.Errorf("the ledger holds %s", ledger)
	}
	if out := readFile(t, g.stdout); !strings.Contains(out, "⚕ Hermes Gateway Starting") {
		t.Errorf("no banner in %q", out)
	}
	runAgent(t, home, "gateway", "status").check(t, 0, fmt.Sprintf("✓ Gateway is running (PID: %d)\n", g.pid()))
	leftovers, err := filepath.Glob(g.path(".gateway_state_*.tmp"))
	if err != nil || len(leftovers) > 0 {
		t.Errorf("temporary files are left: %v %v", leftovers, err)
	}
}

// TestGatewayEnds checks each way in which a gateway ends: the signal or event, the exit code, and
// the remaining files.
func TestGatewayEnds(t *testing.T) {
	term := func(g *gatewayProc) { g.signal(syscall.SIGTERM) }
	marker := func(m record.SignalMarker, id func(*gatewayProc) record.Identity) func(*gatewayProc) {
		return func(g *gatewayProc) {
			if err := m.Write(g.home, id(g)); err != nil {
				g.t.Fatal(err)
			}
		}
	}
	own := (*gatewayProc).identity
	recycled := func(g *gatewayProc) record.Identity {
		start := startTime(g.t, g.pid()) + 1
		return record.Identity{PID: g.pid(), StartTime: &start}
	}
	unknownStart := func(g *gatewayProc) record.Identity { return record.Identity{PID: g.pid()} }
	planned, takeover := string(record.PlannedStopMarker), string(record.TakeoverMarker)

	for _, test := range []struct {
		name  string
		steps []func(*gatewayProc)
		code  int
		state string
		left  []string // Files that must exist.
		gone  []string // Files that must not exist.
	}{
		{"TERM alone", []func(*gatewayProc){term}, 1, "running", []string{".clean_shutdown"}, nil},
		{"planned stop", []func(*gatewayProc){marker(record.PlannedStopMarker, own), term}, 0, "stopped", nil, []string{planned}},
		{"planned stop, start time unknown", []func(*gatewayProc){marker(record.PlannedStopMarker, unknownStart), term}, 0, "stopped", nil, []string{planned}},
		{"marker alone", []func(*gatewayProc){marker(record.PlannedStopMarker, own)}, 0, "stopped", nil, []string{planned}},
		{"takeover", []func(*gatewayProc){marker(record.TakeoverMarker, own), term}, 0, "stopped", nil, []string{takeover}},
		{"marker for the pid's former owner", []func(*gatewayProc){marker(record.PlannedStopMarker, recycled), term}, 1, "running", []string{planned}, nil},
		{"malformed marker", []func(*gatewayProc){func(g *gatewayProc) { writeFile(g.t, g.path(planned), "{") }, term}, 1, "running", nil, []string{planned}},
		{"stale marker", []func(*gatewayProc){func(g *gatewayProc) {
			writeFile(g.t, g.path(planned), fmt.Sprintf(`{"target_pid":%d,"target_start_time":null,"stopper_pid":1,"written_at":"%s"}`,
				g.pid(), record.Timestamp(time.Now().Add(-61*time.Second))))
		}, term}, 1, "running", nil, []string{planned}},
		{"INT", []func(*gatewayProc){func(g *gatewayProc) { g.signal(syscall.SIGINT) }}, 0, "stopped", nil, nil},
		{"USR1", []func(*gatewayProc){func(g *gatewayProc) { g.signal(syscall.SIGUSR1) }}, 75, "stopped", []string{".restart_pending.json"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			writeFile(t, filepath.Join(home, "gateway_state.json"), `{"desired_state":"running"}`)
			g := startGatewayWith(t, home, []string{"AGENT_DRAIN=1ms"}, "gateway", "run")
			g.waitState("running")
			for _, step := range test.steps {
				step(g)
			}
			if code := g.wait(); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			state := g.state()
			if state["gateway_state"] != test.state || state["desired_state"] != "running" {
				t.Errorf("it left %v, want %s", state, test.state)
			}
			if restart := test.code == 75; state["restart_requested"] != restart || (state["exit_reason"] != nil) != restart {
				t.Errorf("restart_requested and exit_reason are wrong: %v", state)
			}
			for _, name := range append(test.left, "gateway.lock") {
				if !exists(g.path(name)) {
					t.Errorf("no %s", name)
				}
			}
			for _, name := range append(test.gone, "gateway.pid") {
				if exists(g.path(name)) {
					t.Errorf("%s is still there", name)
				}
			}
			ledger := readFile(t, g.path("state/gateway.lifecycle.json"))
			if !strings.HasPrefix(ledger, `{"phase":"exited"`) || !strings.Contains(ledger, fmt.Sprintf(`"exit_code":%d,`, test.code)) {
				t.Errorf("the ledger holds %s", ledger)
			}
			runAgent(t, home, "gateway", "status").check(t, 0, "✗ Gateway is not running")
		})
	}
}

func TestGatewayDrainsUntilKilled(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			g := startGatewayWith(t, t.TempDir(), []string{"AGENT_DRAIN=1h"}, "gateway", "run")
			g.waitState("running")
			g.signal(sig)
			g.waitState("draining")
			g.signal(syscall.SIGTERM) // The gateway must ignore the second signal.
			g.signal(syscall.SIGKILL)
			if code := g.wait(); code != -9 || g.state()["gateway_state"] != "draining" {
				t.Errorf("exit code %d, state %v", code, g.state())
			}
		})
	}
}

func TestGatewayAfterKillStartsOverTheLeftovers(t *testing.T) {
	home := t.TempDir()
	g := startGateway(t, home, "gateway", "run")
	g.waitState("running")
	g.signal(syscall.SIGKILL)
	if code := g.wait(); code != -9 {
		t.Fatalf("exit code %d", code)
	}
	if g.state()["gateway_state"] != "running" || !exists(g.path("gateway.pid")) {
		t.Error("a killed gateway cleaned up")
	}
	runAgent(t, home, "gateway", "status").check(t, 0, "✗ Gateway is not running")

	again := startGateway(t, home, "gateway", "run")
	again.waitState("running")
	if ledger := readFile(t, again.path("state/gateway.lifecycle.json")); !strings.Contains(ledger, `"prior_unclean_exit":true`) {
		t.Errorf("the ledger holds %s", ledger)
	}
	if line := readFile(t, again.path("logs/gateway-exit-diag.log")); !strings.Contains(line, `"tag":"gateway.previous_unclean_exit"`) {
		t.Errorf("the diagnosis is %q", line)
	}
	if !strings.Contains(readFile(t, again.stderr), " WARNING gateway: ") {
		t.Error("no warning about the unclean end")
	}
}

func TestGatewayLateHandlersDieByTheSignal(t *testing.T) {
	home := t.TempDir()
	g := startGateway(t, home, "gateway", "run", "--late-handlers", "1h")
	g.signal(syscall.SIGTERM)
	if code := g.wait(); code != -15 {
		t.Errorf("exit code %d, want death by SIGTERM", code)
	}
	if exists(g.path("gateway_state.json")) || exists(g.path("gateway.pid")) {
		t.Error("it wrote files before it had handlers")
	}
}

func TestGatewayEndsWhileStarting(t *testing.T) {
	g := startGatewayWith(t, t.TempDir(), []string{"AGENT_STARTUP_DELAY=1h"}, "gateway", "run")
	g.waitState("starting")
	g.signal(syscall.SIGTERM)
	if code := g.wait(); code != 1 || g.state()["gateway_state"] != "running" {
		t.Errorf("exit code %d, state %v", code, g.state())
	}
}

func TestSecondGatewayIsRefused(t *testing.T) {
	home := t.TempDir()
	g := startGateway(t, home, "gateway", "run")
	g.waitState("running")
	message := fmt.Sprintf("Another gateway instance is already running (PID %d).", g.pid())
	runAgent(t, home, "gateway", "run").check(t, 1, message)
	runAgent(t, home, "gateway", "run", "--force").check(t, 1, message) // --force must not override the lock.
	if err := os.Remove(g.path("gateway.pid")); err != nil {            // A booting init removes this file.
		t.Fatal(err)
	}
	runAgent(t, home, "gateway", "run").check(t, 1, message)
	if state := g.state(); state["gateway_state"] != "running" || state["pid"] != float64(g.pid()) {
		t.Errorf("the refused one changed the state: %v", state)
	}
}

func TestReplaceTakesOver(t *testing.T) {
	for _, removePID := range []bool{false, true} {
		t.Run(fmt.Sprintf("pid file removed: %t", removePID), func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			first := startGateway(t, home, "gateway", "run")
			first.waitState("running")
			if removePID {
				os.Remove(first.path("gateway.pid"))
			}
			second := startGateway(t, home, "gateway", "run", "--replace")
			if code := first.wait(); code != 0 {
				t.Errorf("the replaced gateway exits %d", code)
			}
			second.waitState("running")
			if exists(second.path(string(record.TakeoverMarker))) {
				t.Error("the takeover marker was not consumed")
			}
			runAgent(t, home, "gateway", "status").check(t, 0, fmt.Sprintf("(PID: %d)", second.pid()))
		})
	}
}

func TestReplaceKillsTheDeaf(t *testing.T) {
	home := t.TempDir()
	deaf := startGatewayWith(t, home, []string{"AGENT_IGNORE_TERM=1"}, "gateway", "run")
	deaf.waitState("running")
	second := startGatewayWith(t, home, []string{"AGENT_TAKEOVER_GRACE=300ms"}, "gateway", "run", "--replace")
	if code := deaf.wait(); code != -9 {
		t.Errorf("the deaf gateway exits %d, want a KILL", code)
	}
	second.waitState("running")
	if exists(second.path(string(record.TakeoverMarker))) {
		t.Error("the marker of a killed target is left")
	}
}

func TestGatewayCommandsPointToHinit(t *testing.T) {
	home := t.TempDir()
	runAgent(t, home, "profile", "create", "coder").check(t, 0)
	for _, verb := range []string{"start", "stop", "restart"} {
		if got := runAgent(t, home, "-p", "coder", "gateway", verb); got.code != 1 || got.stderr != "use: hinit "+verb+" coder\n" {
			t.Errorf("gateway %s: %+v", verb, got)
		}
	}
	runAgent(t, home, "gateway", "dance").check(t, 2, "unknown verb 'dance'")
}

func TestGatewayRefusesRootInTheOfficialImage(t *testing.T) {
	install := t.TempDir()
	env := func(value string) func(string) string { return func(string) string { return value } }
	if err := refuseRoot(0, install, env("")); err != nil {
		t.Errorf("elsewhere: %v", err)
	}
	if err := os.Mkdir(filepath.Join(install, "docker"), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(install, "docker", "entrypoint.sh"), "")
	for value, refused := range map[string]bool{"": true, "0": true, "2": true, " YES ": false, "on": false, "1": false} {
		if err := refuseRoot(0, install, env(value)); (err != nil) != refused {
			t.Errorf("HERMES_ALLOW_ROOT_GATEWAY=%q: %v", value, err)
		}
	}
	if err := refuseRoot(10000, install, env("")); err != nil {
		t.Errorf("not root: %v", err)
	}
}

func TestGatewayWithoutAWritableHomeFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	writeFile(t, file, "")
	runAgent(t, filepath.Join(file, "home"), "gateway", "run").check(t, 1, "cannot make the home directory")
}
