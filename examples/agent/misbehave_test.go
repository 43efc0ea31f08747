package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/examples/agent/internal/helper"
	"hinit/internal/testkit"
)

func TestGatewayEndsOnDemand(t *testing.T) {
	for _, test := range []struct {
		knobs string
		code  int
		state string
	}{
		{"crash_after=1ms", 1, "running"},
		{"crash_after=1ms\ncrash_code=42", 42, "running"},
		{"signal_after=1ms", -int(syscall.SIGSEGV), "running"},
		{"signal_after=1ms\nsignal=kill", -int(syscall.SIGKILL), "running"},
		{"signal_after=1ms\nsignal=SIGABRT", -int(syscall.SIGABRT), "running"},
		{"exit_now=78", 78, "startup_failed"},
		{"exit_now=1", 1, "startup_failed"},
		{"exit_now=75", 75, "stopped"},
		{"exit_now=0", 0, "stopped"},
		{"# not a knob\ncrash_after = soon", 78, ""},
		{"crash_atfer=1s", 78, ""},
		{"nonsense", 78, ""},
	} {
		t.Run(test.knobs, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			writeFile(t, filepath.Join(home, "agent.conf"), test.knobs+"\n")
			g := startGateway(t, home, "gateway", "run")
			if code := g.wait(); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if state, _ := g.state()["gateway_state"].(string); state != test.state {
				t.Errorf("it left %q, want %q", state, test.state)
			}
			// A gateway that crashes leaves its pid file, and one that exits by itself removes it.
			if left, crashed := exists(g.path("gateway.pid")), test.state == "running"; left != crashed {
				t.Errorf("gateway.pid there: %t, want %t", left, crashed)
			}
		})
	}
}

func TestKnobFileWinsOverEnvironment(t *testing.T) {
	home := t.TempDir()
	writeFile(t, filepath.Join(home, "agent.conf"), "exit_now=75\n")
	runAgentWith(t, home, []string{"AGENT_EXIT_NOW=3"}, "", "gateway", "run").check(t, 75)
	if err := os.Remove(filepath.Join(home, "agent.conf")); err != nil {
		t.Fatal(err)
	}
	runAgentWith(t, home, []string{"AGENT_EXIT_NOW=3"}, "", "gateway", "run").check(t, 3)
	runAgentWith(t, home, []string{"AGENT_DRAIN=-1s"}, "", "gateway", "run").check(t, 78, "cannot use AGENT_DRAIN")
}

func TestCrashTimesLetsLaterStartsLive(t *testing.T) {
	home := t.TempDir()
	env := []string{"AGENT_EXIT_NOW=9", "AGENT_CRASH_TIMES=2"}
	for range 2 {
		runAgentWith(t, home, env, "", "gateway", "run").check(t, 9)
	}
	g := startGatewayWith(t, home, env, "gateway", "run")
	g.waitState("running")
	if got := readFile(t, g.path("agent.crashes")); got != "2\n" {
		t.Errorf("agent.crashes holds %q", got)
	}
}

func TestIgnoreTermNeedsAKill(t *testing.T) {
	g := startGatewayWith(t, t.TempDir(), []string{"AGENT_IGNORE_TERM=1"}, "gateway", "run")
	g.waitState("running")
	for n := 1; n <= 2; n++ {
		g.signal(syscall.SIGTERM)
		eventually(t, "it says that it ignores the signal", func() bool {
			return strings.Count(readFile(t, g.stderr), "SIGTERM ignored") == n
		})
	}
	if state := g.state()["gateway_state"]; state != "running" {
		t.Errorf("state %v", state)
	}
	g.signal(syscall.SIGKILL)
	if code := g.wait(); code != -9 {
		t.Errorf("exit code %d", code)
	}
}

func TestOutputKnobs(t *testing.T) {
	g := startGatewayWith(t, t.TempDir(), []string{
		"AGENT_FLOOD=max", "AGENT_FLOOD_LINES=1000", "AGENT_FLOOD_BYTES=100",
		"AGENT_BIG_LINE=200000", "AGENT_HALF_LINE=1", "AGENT_HEARTBEAT=20ms",
	}, "gateway", "run")
	eventually(t, "all lines and a heartbeat are out", func() bool {
		out := readFile(t, g.stdout)
		return strings.Contains(out, "flood 000001000 ") && strings.Contains(out, "heartbeat of profile default\n")
	})
	g.signal(syscall.SIGTERM)
	g.wait()
	out := readFile(t, g.stdout)
	next, big := 1, false
	for line := range strings.Lines(out) {
		switch {
		case strings.HasPrefix(line, "flood "):
			if want := fmt.Sprintf("flood %09d ", next); !strings.HasPrefix(line, want) || len(line) != 100 {
				t.Fatalf("line %d of the flood is %q", next, line)
			}
			next++
		case len(line) == 200001:
			big = true
		}
	}
	if next != 1001 || !big {
		t.Errorf("%d lines of the flood, big line: %t", next-1, big)
	}
	if !strings.HasSuffix(out, "\nthis line has no end") {
		t.Errorf("the output ends with %q", out[max(0, len(out)-50):])
	}
}

func TestFloodKeepsItsRate(t *testing.T) {
	g := startGatewayWith(t, t.TempDir(), []string{"AGENT_FLOOD=50", "AGENT_FLOOD_LINES=10"}, "gateway", "run")
	eventually(t, "the last line is out", func() bool { return strings.Contains(readFile(t, g.stdout), "flood 000000010 ") })
	g.signal(syscall.SIGINT)
	if code := g.wait(); code != 0 || strings.Contains(readFile(t, g.stdout), "flood 000000011 ") {
		t.Errorf("exit code %d, or more lines than asked for", code)
	}
}

func TestCloseStdout(t *testing.T) {
	g := startGatewayWith(t, t.TempDir(), []string{"AGENT_CLOSE_STDOUT=1"}, "gateway", "run")
	g.waitState("running")
	eventually(t, "its standard output is gone", func() bool {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/1", g.pid()))
		return err != nil || target != g.stdout
	})
	g.signal(syscall.SIGINT)
	if code := g.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestLeakedChildren(t *testing.T) {
	for mode, want := range map[string]struct{ ownSession, sameParent, cleanEnv bool }{
		"plain":                      {sameParent: true},
		"setsid":                     {ownSession: true, sameParent: true},
		"doublefork":                 {},
		"doublefork-setsid-cleanenv": {ownSession: true, cleanEnv: true},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			g := startGatewayWith(t, t.TempDir(), []string{"AGENT_LEAK_CHILD=" + mode, "AGENT_LEAK_FOR=1m"}, "gateway", "run")
			eventually(t, "the child has written its pid", func() bool { return exists(g.path("leaked.pid")) })
			leaked, err := strconv.Atoi(strings.TrimSpace(readFile(t, g.path("leaked.pid"))))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { syscall.Kill(leaked, syscall.SIGKILL) })
			// The child gets its last parent a moment after its start, when the intermediate process has ended.
			eventually(t, "the child has the right parent", func() bool {
				return (statField(t, leaked, 4) == g.pid()) == want.sameParent
			})
			if session := statField(t, leaked, 6); (session == leaked) != want.ownSession {
				t.Errorf("session %d of child %d", session, leaked)
			}
			if env := readFile(t, fmt.Sprintf("/proc/%d/environ", leaked)); (env == "") != want.cleanEnv {
				t.Errorf("environment %q", env)
			}
			g.signal(syscall.SIGINT)
			g.wait()
			if err := syscall.Kill(leaked, 0); err != nil {
				t.Errorf("the child did not outlive the gateway: %v", err)
			}
		})
	}
}

// statField returns a numeric field of a process' stat line, counted from 1 as in the manual page.
func statField(t *testing.T, pid, field int) int {
	t.Helper()
	line := readFile(t, fmt.Sprintf("/proc/%d/stat", pid))
	value, err := strconv.Atoi(strings.Fields(line[strings.LastIndexByte(line, ')')+1:])[field-3])
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestSpawnDiagOutlivesTheGateway(t *testing.T) {
	g := startGatewayWith(t, t.TempDir(), []string{"AGENT_SPAWN_DIAG=1"}, "gateway", "run")
	g.waitState("running")
	g.signal(syscall.SIGTERM)
	cmdline := strings.Join([]string{agentPath(), helper.Command, "nap", "-for", "5s", ""}, "\x00")
	helpers := func() (found []int) {
		entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			data, err := os.ReadFile(entry)
			if err != nil || string(data) != cmdline {
				continue
			}
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(entry)))
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, pid)
		}
		return found
	}
	eventually(t, "there is a helper", func() bool {
		all := helpers()
		for _, pid := range all {
			syscall.Kill(pid, syscall.SIGSTOP) // A stopped helper outlives its 5 seconds, so the checks below still find it.
			t.Cleanup(func() { syscall.Kill(pid, syscall.SIGKILL) })
		}
		return len(all) > 0
	})
	if code := g.wait(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	found := helpers()
	for _, pid := range found {
		if session, err := unix.Getsid(pid); err != nil || session != pid {
			t.Errorf("the helper is in session %d: %v", session, err)
		}
	}
	if len(found) != 1 {
		t.Errorf("%d helpers are alive after the gateway, want 1", len(found))
	}
}

func TestOrphansLeaveTheGateway(t *testing.T) {
	g := startGatewayWith(t, t.TempDir(), []string{"AGENT_ORPHANS=60"}, "gateway", "run")
	eventually(t, "it has made them", func() bool { return strings.Contains(readFile(t, g.stdout), "made 60 orphans") })
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", g.pid()))
	if err != nil || len(children) == 0 {
		t.Fatalf("cannot see the children: %v", err)
	}
	for _, path := range children {
		if list := readFile(t, path); list != "" {
			t.Errorf("the gateway still has children: %s", list)
		}
	}
}

func TestOOMTouchesTheMemory(t *testing.T) {
	g := startGatewayWith(t, t.TempDir(), []string{"AGENT_OOM=64"}, "gateway", "run")
	eventually(t, "it has 64 MB resident", func() bool {
		for line := range strings.Lines(readFile(t, fmt.Sprintf("/proc/%d/status", g.pid()))) {
			if fields := strings.Fields(line); fields[0] == "VmRSS:" {
				kilobytes, err := strconv.Atoi(fields[1])
				return err == nil && kilobytes > 64<<10
			}
		}
		return false
	})
}

func TestHealthServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	home := t.TempDir()
	writeFile(t, filepath.Join(home, ".env"), "# keys\nAPI_SERVER_PORT=\""+port+"\"\n")
	env := []string{"API_SERVER_ENABLED=true", "API_SERVER_PORT=1"} // The .env of the home overrides these variables.

	// While the port is taken, the gateway is up without a health server.
	g := startGatewayWith(t, home, env, "gateway", "run")
	g.waitState("running")
	if !strings.Contains(readFile(t, g.stderr), "cannot serve health") {
		t.Error("no warning about the taken port")
	}
	listener.Close()
	g = startGatewayWith(t, home, env, "gateway", "run", "--replace")
	g.waitState("running")
	client := http.Client{Timeout: testkit.Patience, Transport: &http.Transport{DisableKeepAlives: true}}
	status, body := httpGet(t, &client, "http://127.0.0.1:"+port+"/health")
	if status != 200 || !strings.Contains(body, `"platform":"hermes-agent"`) || !strings.Contains(body, `"status":"ok"`) {
		t.Errorf("%d %s", status, body)
	}
}
