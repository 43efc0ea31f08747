package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestGatewayRun is "gateway run" as the container's command: the gateway is supervised, with no process that only keeps
// the container alive (contract, section 3.1).
func TestGatewayRun(t *testing.T) {
	parallel(t)
	tests := []struct {
		name    string
		options []string
		cmd     []string
		profile string
	}{
		{name: "gateway run", cmd: []string{"gateway", "run"}, profile: "default"},
		{name: "gateway", cmd: []string{"gateway"}, profile: "default"},
		{name: "agent's name and replace", cmd: []string{"hermes", "gateway", "run", "--replace"}, profile: "default"},
		{name: "another profile", cmd: []string{"-p", "coder", "gateway", "run"}, profile: "coder"},
		{name: "tini", options: []string{"--entrypoint", "/usr/bin/tini"}, cmd: []string{"-g", "--", "gateway", "run"}, profile: "default"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			parallel(t)
			c := start(t, setup{options: tt.options, files: profile("coder", "")}, tt.cmd...)
			c.awaitUp("gateway-" + tt.profile)
			c.awaitStderr("s6 supervision", "--no-supervise", "HERMES_GATEWAY_NO_SUPERVISE=1")
			eventually(t, settle, func() error { // Docker's health check may be another one, for a moment
				all := c.matching(".")
				if len(all) != 3 || len(c.matching("^sleep infinity$")) != 1 || // the one that upstream's tests look for
					len(c.matching("^/opt/hermes/.venv/bin/hermes .*gateway run --replace$")) != 1 {
					return fmt.Errorf("processes %+v, want the init, one gateway, and sleep infinity", all)
				}
				return nil
			})
			// The words that agents look for in the command line of process 1 (contract, section 3.2).
			if len(tt.options) == 0 {
				if argv := c.must("sh", "-c", "tr '\\0' ' ' </proc/1/cmdline"); argv != "/init /opt/hermes/docker/main-wrapper.sh "+strings.Join(tt.cmd, " ") {
					t.Errorf("/proc/1/cmdline: %q", argv)
				}
			}
		})
	}
}

// TestNoSupervise declines: the gateway is the container's command, as it was before there was a supervisor.
func TestNoSupervise(t *testing.T) {
	parallel(t)
	tests := []struct {
		name    string
		options []string
		cmd     []string
	}{
		{"flag", nil, []string{"gateway", "run", "--no-supervise"}},
		{"variable", []string{"-e", "HERMES_GATEWAY_NO_SUPERVISE=Yes"}, []string{"gateway", "run"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			parallel(t)
			c := start(t, setup{options: tt.options, files: profile("coder", "running")}, tt.cmd...)
			c.awaitLog("gateway of profile default is running")
			c.awaitUp("gateway-coder")
			if s, _ := c.status().find("gateway-default"); s.Want != "down" || s.State != "down" {
				t.Errorf("the slot of the foreground gateway is %+v", s)
			}
			if _, stderr := c.logs(); strings.Contains(stderr, "s6 supervision") {
				t.Error("declined, and told about supervision")
			}
			found := c.matching("/hermes gateway run|^hermes gateway run")
			if len(found) != 1 {
				t.Fatalf("gateways %+v, want one", found)
			}
			c.must("kill", "-INT", fmt.Sprint(found[0].pid)) // a planned stop
			if code := c.exitCode(); code != 0 {
				t.Errorf("the gateway ended well, the container with code %d", code)
			}
		})
	}
	t.Run("exit code", func(t *testing.T) {
		parallel(t)
		if r := runOnce(t, []string{"-e", "AGENT_EXIT_NOW=33"}, "gateway", "run", "--no-supervise"); r.code != 33 {
			t.Errorf("want the gateway's code 33: %v", r)
		}
	})
}

// TestExitCodes is what a gateway says with its exit code: 78 parks until its inputs change, 75 starts again at once.
func TestExitCodes(t *testing.T) {
	parallel(t)
	c := start(t, setup{files: together(
		profile("broken", "running", "exit_now=78"),
		profile("update", "running", "exit_now=75", "crash_times=3"),
	)}, "sleep", "100000")
	parked := c.await("gateway-broken", "parked, with its last lines", func(s service) bool { // which are read after the exit
		return s.State == "parked" && s.LastExit != nil && len(s.LastExit.Tail) > 0
	})
	if x := parked.LastExit; x == nil || x.Cause != "config" || x.Code == nil || *x.Code != 78 {
		t.Errorf("last exit %+v, want code 78 and cause config", parked.LastExit)
	}
	c.await("gateway-update", "up after 3 restarts", func(s service) bool { return s.Ready && s.Restarts == 3 && !s.CrashLoop })

	// The inputs of a gateway are noted a little after its start, one gateway after the other.
	c.must("hinit", "restart", "update")
	c.awaitUp("gateway-update")
	c.put(map[string]string{"/opt/data/profiles/broken/agent.conf": ""}) // which hinit knows nothing of
	c.put(map[string]string{"/opt/data/profiles/broken/config.yaml": "fixed: yes\n"})
	c.awaitUp("gateway-broken")
}

// TestKillLoop kills each of three gateways twenty times.
func TestKillLoop(t *testing.T) {
	parallel(t)
	const kills = 10
	leak := "leak_child=doublefork-setsid-cleanenv"
	files := together(profile("default", "running", leak), profile("coder", "running", leak), profile("writer", "running", leak))
	files["/etc/hinit/hinit.yaml"] = "restart: {initial: 10ms, max: 20ms}\n"
	c := start(t, setup{files: files}, "sleep", "100000")
	names := []string{"gateway-default", "gateway-coder", "gateway-writer"}
	c.awaitUp(names...)
	for i := range kills {
		for _, name := range names {
			s := c.await(name, fmt.Sprintf("ready after %d restarts", i), func(s service) bool { return s.Ready && s.Restarts == i })
			c.must("kill", "-9", fmt.Sprint(s.PID))
		}
	}
	for _, name := range names {
		s := c.await(name, "back", func(s service) bool { return s.Ready && s.Restarts == kills })
		if !s.CrashLoop {
			t.Errorf("%d fast exits are no crash loop: %+v", kills, s)
		}
	}
	eventually(t, settle, func() error { // each has its one helper, and nothing is left of those before
		if helpers, gateways := c.matching("agent-helper"), c.matching("gateway run"); len(helpers) != 3 || len(gateways) != 3 {
			return fmt.Errorf("processes left: %+v", c.processes())
		}
		return nil
	})
	c.must("hinit", "stop", "--all")
	if left := c.matching("agent-helper|gateway run"); len(left) > 0 {
		t.Errorf("stopped, and left %+v", left)
	}
}

// TestEscapedHelper stops gateways whose helper is in another session, has no parent and, in one case, no environment.
func TestEscapedHelper(t *testing.T) {
	parallel(t)
	modes := []string{"plain", "setsid", "doublefork", "doublefork-setsid-cleanenv"}
	var sets []map[string]string
	for _, mode := range modes {
		sets = append(sets, profile(mode, "running", "leak_child="+mode, "ignore_term=0"))
	}
	c := start(t, setup{files: together(sets...)}, "sleep", "100000")
	for _, mode := range modes {
		file := "/opt/data/profiles/" + mode + "/leaked.pid"
		pid := ""
		eventually(t, settle, func() error {
			r := c.exec("cat", file)
			if pid = strings.TrimSpace(r.out); r.code != 0 || pid == "" {
				return fmt.Errorf("%v", r)
			}
			return nil
		})
		if !c.alive(pid) {
			t.Errorf("%s: the helper %s does not live: %+v", mode, pid, c.processes())
		}
		c.must("hinit", "stop", mode)
		if c.alive(pid) {
			t.Errorf("%s: stop has returned, and the helper %s lives", mode, pid)
		}
	}
	if left := c.matching("agent-helper|gateway run"); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}
