package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// checkGatewayRun checks "gateway run" as the container's command: a supervised gateway and one sleep
// process (contract, section 3.1).
func checkGatewayRun(t *testing.T, c *container) {
	c.awaitUp("gateway-default")
	c.awaitStderr("s6 supervision", "--no-supervise", "HERMES_GATEWAY_NO_SUPERVISE=1")
	eventually(t, settle, func() error { // A process of Docker's health check may run for a moment.
		all := c.matching(".")
		if len(all) != 3 || len(c.matching("^sleep infinity$")) != 1 || // The upstream project's tests search for this process.
			len(c.matching("^/opt/hermes/.venv/bin/hermes .*gateway run --replace$")) != 1 {
			return fmt.Errorf("processes %+v, want the init, one gateway, and sleep infinity", all)
		}
		return nil
	})
}

// checkCmdline checks the words in process 1's command line for which agents search (contract, section
// 3.2).
func checkCmdline(t *testing.T, c *container) {
	if argv := c.mustExec("sh", "-c", "tr '\\0' ' ' </proc/1/cmdline"); argv != "/init /opt/hermes/docker/main-wrapper.sh gateway run" {
		t.Errorf("/proc/1/cmdline: %q", argv)
	}
}

// TestGatewayBehindTini checks the entrypoint of older images.
func TestGatewayBehindTini(t *testing.T) {
	parallel(t)
	checkGatewayRun(t, start(t, setup{options: []string{"--entrypoint", "/usr/bin/tini"}}, "-g", "--", "gateway", "run"))
}

// subtest is one of several tests in the same container.
type subtest struct {
	name string
	run  func(*testing.T, *container)
}

// runSubtests runs several tests in this container, one after the other.
func (c *container) runSubtests(parts ...subtest) {
	c.t.Helper()
	for _, p := range parts {
		c.t.Run(p.name, func(t *testing.T) { p.run(t, &container{t: t, id: c.id}) })
	}
}

// TestGatewayRun checks many features in one container with a supervised gateway.
func TestGatewayRun(t *testing.T) {
	parallel(t)
	start(t, setup{}, "gateway", "run").runSubtests(
		subtest{"processes", checkGatewayRun}, subtest{"command line", checkCmdline}, subtest{"timeline", checkTimeline}, subtest{"docker exec", checkDockerExec},
		subtest{"the upgrade page", checkUpgradePage}, subtest{"the screen", checkTopScreen},
	)
}

// TestNoSupervise checks that the gateway can be the container's command without supervision.
func TestNoSupervise(t *testing.T) {
	parallel(t)
	c := start(t, setup{files: profile("coder", "running")}, "gateway", "run", "--no-supervise")
	c.awaitLog("gateway of profile default is running")
	c.awaitUp("gateway-coder")
	if s, _ := c.status().find("gateway-default"); s.Want != "down" || s.State != "down" {
		t.Errorf("the slot of the foreground gateway is %+v", s)
	}
	if _, stderr := c.logs(); strings.Contains(stderr, "s6 supervision") {
		t.Error("declined, and told about supervision")
	}
	if found := c.matching("^sleep infinity$"); len(found) > 0 {
		t.Errorf("beside a gateway in the foreground: %+v", found)
	}
	found := c.matching("/hermes gateway run|^hermes gateway run")
	if len(found) != 1 {
		t.Fatalf("gateways %+v, want one", found)
	}
	c.mustExec("kill", "-INT", fmt.Sprint(found[0].pid)) // A planned stop has this exit code.
	if code := c.exitCode(); code != 0 {
		t.Errorf("the gateway ended well, the container with code %d", code)
	}
}
