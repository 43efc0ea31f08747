package e2e

import (
	"fmt"
	"strings"
	"testing"
)

const (
	// rootPath is the PATH of docker exec, agentPath the PATH of processes that hinit and the shim start as the agent.
	rootPath  = "/opt/hermes/bin:/opt/hermes/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/data/.local/bin"
	agentPath = "/opt/hermes/bin:/opt/hermes/.venv/bin:/opt/data/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// TestRootRunsNothingOfTheAgents has the agent put programs with the names of the system's where its own come first.
func TestRootRunsNothingOfTheAgents(t *testing.T) {
	parallel(t)
	c := create(t, setup{files: profile("default", "running")}, "gateway", "run")
	fakes := []entry{{name: "/opt/data/.local/", owner: 10000}, {name: "/opt/data/.local/bin/", owner: 10000}}
	for _, name := range []string{"sh", "ls", "id", "cat", "env", "only-the-agents"} {
		fakes = append(fakes, entry{name: "/opt/data/.local/bin/" + name, content: "#!/bin/sh\n/bin/id -u >>/opt/data/ran\necho agents\n", mode: 0o755, owner: 10000})
	}
	c.lay(fakes...)
	c.lay(
		entry{name: "/etc/cont-init.d/"},
		script("/etc/cont-init.d/10-plain", `ls / >/dev/null; echo "plain HOME=$HOME in $(pwd) PATH=$PATH home=$HERMES_HOME."`),
		entry{name: "/etc/cont-init.d/20-contenv", content: "#!/command/with-contenv sh\nls / >/dev/null; echo \"contenv HOME=$HOME PATH=$PATH home=$HERMES_HOME.\"\n", mode: 0o755},
	)
	c.start()
	c.awaitUp("gateway-default")
	root := strings.TrimSuffix(rootPath, ":/opt/data/.local/bin")
	c.awaitLines(
		"plain HOME=/root in / PATH=/command:"+root+" home=.",
		"contenv HOME=/root PATH=/command:"+root+" home=/opt/data.",
	)
	for _, cmd := range [][]string{{"sh", "-c", "ls /"}, {"ls", "/"}, {"id"}, {"env"}, {"/command/with-contenv", "sh", "-c", "ls /"}} {
		if r := c.exec(cmd...); r.code != 0 || strings.Contains(r.out, "agents") {
			t.Errorf("docker exec %s has run the agent's: %v", cmd, r)
		}
	}
	if r := c.exec("test", "-e", "/opt/data/ran"); r.code == 0 {
		t.Errorf("the agent's programs ran as uid %s", c.must("cat", "/opt/data/ran"))
	}
	if path := c.must("sh", "-c", "echo $PATH"); path != rootPath {
		t.Errorf("PATH of root's commands: %s", path)
	}

	// The agent's own shells, gateways and commands find them as before.
	gateway := c.await("gateway-default", "up", func(s service) bool { return s.State == "up" })
	if env := c.environ(gateway.PID); !strings.Contains(env, "\nPATH=/command:"+agentPath+"\n") {
		t.Errorf("the gateway has%s", env)
	}
	if r := c.exec("hermes", "agent-info"); !strings.Contains(r.out, `"PATH":"`+agentPath+`"`) {
		t.Errorf("the shim's command has %v", r)
	}
	if r := runOnce(t, nil, "sh", "-c", "echo $PATH"); r.last() != "/command:"+agentPath {
		t.Errorf("the CMD has %v", r)
	}
}

// TestAConfigurationOnTheVolumeMakesNobodyRoot has the agent write the file that HINIT_CONFIG names.
func TestAConfigurationOnTheVolumeMakesNobodyRoot(t *testing.T) {
	parallel(t)
	text := func(more string) string {
		return fmt.Sprintf("services: {one: {command: [sleep, \"1001\"]%s}}\n", more)
	}
	c := create(t, setup{
		options: []string{"-e", "HINIT_CONFIG=/opt/data/hinit.yaml"}, files: map[string]string{"/opt/data/hinit.yaml": text("")},
	}, "gateway", "run")
	c.start()
	c.awaitUp("one")
	c.awaitStderr("others than root can change /opt/data/hinit.yaml, so it may not set what is root's to decide: /opt/data belongs to uid 10000")
	for _, user := range []string{"root", "0", `"0:0"`, "nobody"} {
		c.put(map[string]string{"/opt/data/hinit.yaml": text(", user: " + user)})
		r := c.execAs([]string{"-u", "hermes"}, "hinit", "reload")
		if r.code != 1 || !strings.Contains(r.err, "cannot set services.one.user here: it is root's to decide, and /opt/data belongs to uid 10000") {
			t.Errorf("user %s: %v", user, r)
		}
	}
	c.must("hinit", "restart", "one")
	one := c.await("one", "up", func(s service) bool { return s.State == "up" })
	if owner := c.must("stat", "-c", "%u", fmt.Sprintf("/proc/%d", one.PID)); owner != "10000" {
		t.Errorf("it runs as uid %s", owner)
	}
	c.stop()
	if r := c.attach(); r.code != 2 || !strings.Contains(r.err, "/opt/data/hinit.yaml:1: cannot set services.one.user here") {
		t.Errorf("a new boot: %v", r)
	}
}
