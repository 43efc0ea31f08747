package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// three is a volume with three profiles of which two were running.
func three() map[string]string {
	return together(profile("default", "running"), profile("coder", "running"), profile("writer", "stopped"))
}

// TestDockerExec drives the container as root and as the agent's user: create, start, status, logs, restart, stop, delete.
func TestDockerExec(t *testing.T) {
	parallel(t)
	c := start(t, setup{}, "gateway", "run")
	c.awaitUp("gateway-default")
	for _, who := range []string{"root", "hermes", "10000:10000"} {
		t.Run(who, func(t *testing.T) {
			name := "p" + strings.ReplaceAll(who, ":", "-")
			do := func(code int, cmd ...string) result {
				t.Helper()
				r := c.execAs([]string{"-u", who}, cmd...)
				if r.code != code {
					t.Fatalf("want exit code %d: %v", code, r)
				}
				return r
			}
			do(6, "hinit", "start", name)
			do(6, "hinit", "status", name)
			do(0, "hinit", "profile", "create", name)
			do(1, "hinit", "profile", "create", name)
			do(3, "hinit", "status", name)
			do(0, "hinit", "start", name)
			if r := do(0, "hinit", "status", name); !strings.Contains(r.out, "gateway-"+name) || strings.Contains(r.out, "gateway-default") {
				t.Errorf("status of one: %s", r.out)
			}
			eventually(t, settle, func() error { // it is up, and may not have come to that
				return has(do(0, "hinit", "logs", name).out, "Hermes Gateway Starting (example agent, profile "+name)
			})
			before, _ := c.status().find("gateway-" + name)
			do(0, "hinit", "restart", name)
			after, _ := c.status().find("gateway-" + name)
			if before.PID == after.PID || after.State != "up" {
				t.Errorf("restarted from %+v to %+v", before, after)
			}
			if r := do(0, "hinit", "profile", "list", "--json"); !json.Valid([]byte(r.out)) || !strings.Contains(r.out, `"`+name+`"`) {
				t.Errorf("profile list: %s", r.out)
			}
			do(0, "hinit", "stop", name)
			if s, _ := c.status().find("gateway-" + name); s.State != "down" || s.Want != "down" || s.PID != 0 {
				t.Errorf("stopped, and is %+v", s)
			}
			if found := c.matching("-p " + name + " gateway"); len(found) > 0 {
				t.Errorf("stopped, and left %+v", found)
			}
			do(0, "hinit", "start", name)
			do(2, "hinit", "profile", "delete", name) // no --yes, and no terminal to ask
			do(0, "hinit", "profile", "delete", "--yes", name)
			do(6, "hinit", "status", name)
			if found := c.matching("-p " + name + " gateway"); len(found) > 0 {
				t.Errorf("deleted, and left %+v", found)
			}
			if r := c.exec("test", "-e", "/opt/data/profiles/"+name); r.code == 0 {
				t.Error("deleted, and the home is still there")
			}
			if r := c.exec("test", "-s", "/opt/data/logs/gateways/"+name+"/current"); r.code != 0 {
				t.Error("the log has gone with the profile")
			}
		})
	}
	c.awaitOwned("hermes", "/opt/data")
	if out := c.execAs([]string{"-u", "nobody"}, "hinit", "stop", "default"); out.code != 5 {
		t.Errorf("nobody may stop a gateway: %v", out)
	}
	if out := c.execAs([]string{"-u", "nobody"}, "hinit", "status"); out.code != 0 {
		t.Errorf("nobody may not see the status: %v", out)
	}
}

// TestAgentCommands makes and removes a profile with the agent's own commands, which know nothing of hinit.
func TestAgentCommands(t *testing.T) {
	parallel(t)
	c := start(t, setup{}, "sleep", "1000")
	c.awaitStates(map[string]string{"gateway-default": "down"})
	c.must("hermes", "profile", "create", "coder")
	c.awaitStates(map[string]string{"gateway-default": "down", "gateway-coder": "down"})
	c.must("hinit", "start", "coder")
	c.awaitUp("gateway-coder") // the agent's command looks for its pid file
	c.must("hermes", "profile", "delete", "coder", "--yes")
	c.awaitStates(map[string]string{"gateway-default": "down"})
	if found := c.matching("gateway run"); len(found) > 0 {
		t.Errorf("deleted, and left %+v", found)
	}
}

// TestRestore runs three profiles through every way a container ends and comes back: the same gateways are wanted up.
func TestRestore(t *testing.T) {
	parallel(t)
	c := start(t, setup{files: three()}, "sleep", "100000")
	want := map[string]string{"gateway-default": "up", "gateway-coder": "up", "gateway-writer": "down"}
	c.awaitStates(want)
	c.awaitUp("gateway-default", "gateway-coder")

	// The running and the stopped gateways change places from here on, by the operator's command only.
	c.must("hinit", "stop", "coder")
	c.must("hinit", "start", "writer")
	want = map[string]string{"gateway-default": "up", "gateway-coder": "down", "gateway-writer": "up"}
	boots := 1
	c.awaitBoots(boots, 3)

	for _, way := range []struct {
		name string
		do   func()
	}{
		{"docker restart", func() { mustDocker(t, "restart", c.id) }},
		{"docker stop and start", func() {
			took := c.stop()
			t.Logf("docker stop with two gateways took %v", took.Round(10*time.Millisecond))
			if took > stopTime {
				t.Errorf("docker stop took %v", took)
			}
			c.start()
		}},
		{"docker kill and start", func() {
			mustDocker(t, "kill", c.id)
			c.start()
		}},
		{"docker kill again", func() {
			mustDocker(t, "kill", c.id)
			c.start()
		}},
	} {
		boots++
		way.do()
		c.awaitStates(want)
		c.awaitUp("gateway-default", "gateway-writer")
		boot := c.awaitBoots(boots, 3)
		if err := has(boot, "profile=default prior_state=running action=started", "profile=coder prior_state=stopped action=registered", "profile=writer prior_state=running action=started"); err != nil {
			t.Errorf("%s: the boot log: %v", way.name, err)
		}
		if found := c.matching("gateway run"); len(found) != 2 {
			t.Errorf("%s: gateways %+v, want 2", way.name, found)
		}
	}
}

// TestCrashedGatewayComesBack kills a gateway, and then the container while the gateway's state file says nothing good.
func TestCrashedGatewayComesBack(t *testing.T) {
	parallel(t)
	c := start(t, setup{files: profile("coder", "")}, "sleep", "100000")
	c.awaitStates(map[string]string{"gateway-coder": "down", "gateway-default": "down"})
	c.must("hinit", "start", "coder")
	first := c.await("gateway-coder", "up", func(s service) bool { return s.Ready })
	c.must("kill", "-9", fmt.Sprint(first.PID))
	second := c.await("gateway-coder", "up again", func(s service) bool { return s.Ready && s.PID != first.PID })
	if x := second.LastExit; second.Restarts != 1 || x == nil || x.Signal == nil || *x.Signal != 9 || x.Code != nil {
		t.Errorf("%+v, last exit %+v", second, second.LastExit)
	}
	// A live gateway comes back after a real restart, without a state written by hand.
	mustDocker(t, "restart", c.id)
	c.awaitUp("gateway-coder")
	c.awaitFile("/opt/data/logs/container-boot.log", "profile=coder prior_state=running action=started")
}

// TestStaleFiles puts back what a dead container leaves in a home.
func TestStaleFiles(t *testing.T) {
	parallel(t)
	homes := []string{"/opt/data/", "/opt/data/profiles/coder/", "/opt/data/profiles/writer/"}
	files := together(three(), map[string]string{"/opt/data/profiles/default/SOUL.md": "x\n", "/opt/data/profiles/Not-A-Name/SOUL.md": "x\n"})
	files["/opt/data/profiles/coder/gateway_state.json"] = "\xef\xbb\xbf{\"gateway_state\":\"draining\"}" // killed half way
	files["/opt/data/profiles/nomarker/config.yaml"] = "x\n"
	for _, home := range homes {
		files[home+"gateway.pid"] = `{"pid":1,"kind":"hermes-gateway","argv":[],"start_time":1}`
		files[home+"processes.json"] = `{"stale":true}`
	}
	c := start(t, setup{files: files}, "sleep", "1000")
	c.awaitStates(map[string]string{"gateway-default": "up", "gateway-coder": "up", "gateway-writer": "down"})
	for _, home := range homes {
		if r := c.exec("grep", "-s", `"pid":1,\|stale`, home+"gateway.pid", home+"processes.json"); r.code == 0 {
			t.Errorf("still there: %s", r.out)
		}
	}
	c.awaitStderr(`profile directory "Not-A-Name"`, `profile directory "default"`)
}

// stubborn is a gateway that ignores SIGTERM and has a helper that does too, beside one that does as told.
func stubborn() map[string]string {
	return together(
		profile("default", "running", "ignore_term=1", "leak_child=doublefork-setsid-cleanenv"), profile("coder", "running"),
	)
}

// TestStubbornGateway stops a container in which one gateway does not do as told: it gets the budget, and no more.
func TestStubbornGateway(t *testing.T) {
	parallel(t)
	c := start(t, setup{files: stubborn(), options: []string{"-e", "HINIT_STOP_TIMEOUT=2s"}}, "gateway", "run")
	c.awaitUp("gateway-default", "gateway-coder")
	begin := time.Now()
	mustDocker(t, "stop", "--time", "60", c.id)
	took := time.Since(begin)
	t.Logf("docker stop with a gateway that ignores SIGTERM and a budget of 2s took %v", took.Round(10*time.Millisecond))
	if took < 1500*time.Millisecond || took > 30*time.Second {
		t.Errorf("docker stop took %v with a budget of 2s", took)
	}
	c.start() // the one that was killed is still wanted
	c.awaitUp("gateway-default", "gateway-coder")
}

// TestSecondTerm has an impatient operator: the second SIGTERM does not wait for the budget.
func TestSecondTerm(t *testing.T) {
	parallel(t)
	c := start(t, setup{files: stubborn(), options: []string{"-e", "HINIT_STOP_TIMEOUT=60s"}}, "gateway", "run")
	c.awaitUp("gateway-default", "gateway-coder")
	mustDocker(t, "kill", "--signal", "TERM", c.id)
	c.await("gateway-default", "stopping", func(s service) bool { return s.State == "stopping" })
	begin := time.Now()
	mustDocker(t, "kill", "--signal", "TERM", c.id)
	code := c.exitCode()
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("the container lived on for %v", took)
	}
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestStopCommand stops a container whose command handles SIGTERM: its exit code is the container's. Other signals are
// passed on.
func TestStopCommand(t *testing.T) {
	parallel(t)
	c := start(t, setup{files: profile("coder", "running")}, "sh", "-c",
		"trap 'echo got usr1' USR1; trap 'echo got hup' HUP; trap 'exit 5' TERM; echo the CMD listens; while :; do sleep 0.05; done")
	c.awaitLog("the CMD listens\n")
	c.awaitUp("gateway-coder")
	mustDocker(t, "kill", "--signal", "USR1", c.id)
	c.awaitLog("got usr1")
	mustDocker(t, "kill", "--signal", "HUP", c.id)
	c.awaitLog("got hup")
	if took := c.stop(); took > stopTime {
		t.Errorf("docker stop took %v", took)
	}
	if code := c.exitCode(); code != 5 {
		t.Errorf("exit code %d, want the command's 5", code)
	}
}

// TestCommandEndsContainer has a gateway that runs when the command ends: it is stopped, and still wanted at the next start.
func TestCommandEndsContainer(t *testing.T) {
	parallel(t)
	c := start(t, setup{files: profile("coder", "running")}, "sh", "-c", "until hinit status coder; do usleep 50000; done; exit 9")
	if code := c.exitCode(); code != 9 {
		t.Errorf("exit code %d, want 9", code)
	}
	c.start()
	if code := c.exitCode(); code != 9 { // it came up again, or there would be no end
		t.Errorf("exit code %d, want 9", code)
	}
}
