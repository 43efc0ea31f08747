package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

const (
	// rootPath is the PATH of docker exec, and agentPath the PATH of the agent's processes.
	rootPath  = "/opt/hermes/bin:/opt/hermes/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/data/.local/bin"
	agentPath = "/opt/hermes/bin:/opt/hermes/.venv/bin:/opt/data/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// TestRootRunsNothingOfTheAgents checks that root's commands ignore programs that the agent has put
// into its PATH.
func TestRootRunsNothingOfTheAgents(t *testing.T) {
	parallel(t)
	c := create(t, setup{options: []string{"-e", "SEEN=a b"}, files: profile("default", "running")}, "gateway", "run")
	fakes := []entry{{name: "/opt/data/.local/", owner: 10000}, {name: "/opt/data/.local/bin/", owner: 10000}}
	for _, name := range []string{"sh", "ls", "id", "cat", "env", "only-the-agents"} {
		fakes = append(fakes, entry{name: "/opt/data/.local/bin/" + name, content: "#!/bin/sh\n/bin/id -u >>/opt/data/ran\necho agents\n", mode: 0o755, owner: 10000})
	}
	c.writeEntries(fakes...)
	c.writeEntries(
		entry{name: "/etc/cont-init.d/"},
		scriptEntry("/etc/cont-init.d/01-hermes-setup", "echo replaced"),
		scriptEntry("/etc/cont-init.d/015-supervise-perms", "echo replaced"),
		scriptEntry("/etc/cont-init.d/02-reconcile-profiles", "echo replaced"),
		scriptEntry("/etc/cont-init.d/10-b", `echo "ten as $(id -u):$(id -g) with $# arguments, seen $SEEN; $(stat -c %U /opt/data/cron)"; exit 3`),
		scriptEntry("/etc/cont-init.d/9-last", "echo nine; (sleep 1002 >/dev/null 2>&1 &)"),
		scriptEntry("/etc/cont-init.d/10-B", "echo TEN"),
		entry{name: "/etc/cont-init.d/20-no-program", content: "#!/bin/sh\necho no program\n"},
		entry{name: "/etc/cont-init.d/30-of-the-agent", content: "#!/bin/sh\necho of the agent\n", mode: 0o755, owner: 10000},
		entry{name: "/etc/cont-init.d/40-no-such-interpreter", content: "#!/nowhere\n", mode: 0o755},
		scriptEntry("/etc/cont-init.d/10-plain", `ls / >/dev/null; echo "plain HOME=$HOME in $(pwd) PATH=$PATH home=$HERMES_HOME."`),
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
		t.Errorf("the agent's programs ran as uid %s", c.mustExec("cat", "/opt/data/ran"))
	}
	if path := c.mustExec("sh", "-c", "echo $PATH"); path != rootPath {
		t.Errorf("PATH of root's commands: %s", path)
	}
	c.ranBootScripts()

	// The agent's own processes must still find the agent's programs.
	gateway := c.await("gateway-default", "up", func(s service) bool { return s.State == "up" })
	if env := c.environ(gateway.PID); !strings.Contains(env, "\nPATH=/command:"+agentPath+"\n") {
		t.Errorf("the gateway has%s", env)
	}
	if r := c.exec("hermes", "agent-info"); !strings.Contains(r.out, `"PATH":"`+agentPath+`"`) {
		t.Errorf("the shim's command has %v", r)
	}
}

// ranBootScripts checks that the user's boot scripts ran as root in the right order before any
// start (contract, section 2).
func (c *container) ranBootScripts() {
	t := c.t
	t.Helper()
	c.awaitStderr("[hinit] boot: ")
	_, stderr := c.logs()
	if err := checkOrder(stderr, "TEN\n", "ten as 0:0 with 0 arguments, seen a b; hermes\n", "nine\n", "[stage2] Setup complete; starting user services\n"); err != nil {
		t.Error(err)
	}
	if err := checkOrder(stderr,
		"cont-init: info: running /etc/cont-init.d/10-B\n", "cont-init: info: /etc/cont-init.d/10-B exited 0\n",
		"cont-init: info: running /etc/cont-init.d/10-b\n", "cont-init: info: /etc/cont-init.d/10-b exited 3\n",
		"cont-init: info: running /etc/cont-init.d/40-no-such-interpreter\n", "cont-init: warning: /etc/cont-init.d/40-no-such-interpreter failed: ",
		"cont-init: info: running /etc/cont-init.d/9-last\n", "cont-init: info: /etc/cont-init.d/9-last exited 0\n",
	); err != nil {
		t.Error(err)
	}
	for _, text := range []string{
		"cont-init: info: skipping /etc/cont-init.d/01-hermes-setup", "cont-init: info: skipping /etc/cont-init.d/015-supervise-perms",
		"cont-init: info: skipping /etc/cont-init.d/02-reconcile-profiles",
		"cont-init: warning: skipping /etc/cont-init.d/20-no-program: it cannot be executed",
		"cont-init: warning: skipping /etc/cont-init.d/30-of-the-agent: the agent's user can write it",
	} {
		if !strings.Contains(stderr, text) {
			t.Errorf("not said: %s\n%s", text, stderr)
		}
	}
	for _, text := range []string{"replaced", "no program", "of the agent"} {
		if strings.Contains("\n"+stderr, "\n"+text+"\n") {
			t.Errorf("%q was run", text)
		}
	}
	daemon := func() bool { return len(c.matching("^sleep 1002")) == 1 }
	eventually(t, settle, func() error { // The boot script has ended without waiting for this daemon.
		if !daemon() {
			return fmt.Errorf("the daemon of a boot script is not there: %+v", c.processes())
		}
		return nil
	})
	never(t, "the daemon of a boot script is gone", func() error {
		if daemon() {
			return errors.New("it is there")
		}
		return nil
	})
	st := c.status()
	if !slices.ContainsFunc(st.Init.Warnings, func(w string) bool { return strings.Contains(w, "10-b exited 3") }) {
		t.Errorf("the status does not have the failure: %q", st.Init.Warnings)
	}
	for name := range st.set() {
		if strings.HasPrefix(name, "hook") {
			t.Errorf("a hook that is over is still listed: %v", st.set())
		}
	}
}

// TestAConfigurationOnTheVolumeMakesNobodyRoot checks that no service can run as root if the agent
// can write the file in HINIT_CONFIG.
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
		c.writeFiles(map[string]string{"/opt/data/hinit.yaml": text(", user: " + user)})
		r := c.execAs([]string{"-u", "hermes"}, "hinit", "reload")
		if r.code != 1 || !strings.Contains(r.err, "cannot set services.one.user here: it is root's to decide, and /opt/data belongs to uid 10000") {
			t.Errorf("user %s: %v", user, r)
		}
	}
	c.mustExec("hinit", "restart", "one")
	one := c.await("one", "up", func(s service) bool { return s.State == "up" })
	if owner := c.mustExec("stat", "-c", "%u", fmt.Sprintf("/proc/%d", one.PID)); owner != "10000" {
		t.Errorf("it runs as uid %s", owner)
	}
	c.stop()
	if r := c.attach(); r.code != 2 || !strings.Contains(r.err, "/opt/data/hinit.yaml:1: cannot set services.one.user here") {
		t.Errorf("a new boot: %v", r)
	}
}
