package e2e

import (
	"encoding/json"
	"strings"
	"testing"
)

// threeProfiles returns the files of three profiles, two of which were running.
func threeProfiles() map[string]string {
	return mergeProfiles(profile("default", "running"), profile("coder", "running"), profile("writer", "stopped"))
}

// checkDockerExec controls the container with docker exec, as root and as the agent's user.
func checkDockerExec(t *testing.T, c *container) {
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
			eventually(t, settle, func() error { // PID 1 runs, but may not have started the gateway yet.
				return checkContains(do(0, "hinit", "logs", name).out, "Hermes Gateway Starting (example agent, profile "+name)
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
			do(2, "hinit", "profile", "delete", name) // Refused without --yes, because no terminal can ask.
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

// checkAgentCommands creates and removes a profile with the agent's own commands.
func checkAgentCommands(t *testing.T, c *container) {
	c.mustExec("hermes", "profile", "create", "native")
	c.awaitStates(map[string]string{"gateway-default": "down", "gateway-coder": "down", "gateway-native": "down"})
	c.mustExec("hinit", "start", "native")
	c.awaitUp("gateway-native") // The agent's command reads the gateway's pid file.
	c.mustExec("hermes", "profile", "delete", "native", "--yes")
	c.awaitStates(map[string]string{"gateway-default": "down", "gateway-coder": "down"})
	if found := c.matching("gateway run"); len(found) > 0 {
		t.Errorf("deleted, and left %+v", found)
	}
}

func TestRestore(t *testing.T) {
	parallel(t)
	c := start(t, setup{files: threeProfiles()}, "sleep", "100000")
	want := map[string]string{"gateway-default": "up", "gateway-coder": "up", "gateway-writer": "down"}
	c.awaitStates(want)
	c.awaitUp("gateway-default", "gateway-coder")

	// The operator's commands now reverse the states of two gateways.
	c.mustExec("hinit", "stop", "coder")
	c.mustExec("hinit", "start", "writer")
	want = map[string]string{"gateway-default": "up", "gateway-coder": "down", "gateway-writer": "up"}
	boots := 1
	c.awaitBoots(boots, 3)

	for _, way := range []struct {
		name string
		do   func()
	}{
		{"docker restart", func() { mustDocker(t, "restart", c.id) }},
		{"docker kill and start", func() {
			mustDocker(t, "kill", c.id)
			c.start()
		}},
	} {
		boots++
		way.do()
		c.awaitStates(want)
		c.awaitUp("gateway-default", "gateway-writer")
		boot := c.awaitBoots(boots, 3)
		if err := checkContains(boot, "profile=default prior_state=running action=started", "profile=coder prior_state=stopped action=registered", "profile=writer prior_state=running action=started"); err != nil {
			t.Errorf("%s: the boot log: %v", way.name, err)
		}
		if found := c.matching("gateway run"); len(found) != 2 {
			t.Errorf("%s: gateways %+v, want 2", way.name, found)
		}
	}
}
