package cgroups_test

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"hinit/client"
	"hinit/internal/testkit"
)

// TestTheKernelEndsAWholeContainer checks the termination message and the next start after the
// kernel killed the whole container (memory.oom.group).
func TestTheKernelEndsAWholeContainer(t *testing.T) {
	c := startContainer(t, options{
		profiles: map[string]string{"coder": "", "eater": "oom=300"}, config: "profiles: {coder: {priority: critical}, eater: {priority: critical}}\n",
		limits: map[string]string{"memory.max": "120000000", "memory.oom.group": "1"},
	})
	c.start("coder")
	c.sendCommand(client.VerbStart, "eater")
	if state := c.wait(); state != "signal: killed" {
		t.Errorf("the container has ended: %s", state)
	}
	c.checkTerminationMessage(t, "killed from outside (out of memory, or ")
	c.profile("eater", map[string]string{"agent.conf": ""})
	c.boot()
	testkit.Until(t, "both gateways are up again", func() bool {
		return c.service("coder").State == client.StateUp && c.service("eater").State == client.StateUp
	})
}

// TestTheKernelEndsPID1Last checks that the kernel kills every gateway and the CMD before PID 1. An
// unkillable command fills a tmpfs.
func TestTheKernelEndsPID1Last(t *testing.T) {
	c := startContainer(t, options{profiles: map[string]string{"coder": ""}, config: "profiles: {coder: {priority: critical}}\n", limits: map[string]string{"memory.max": "80000000"}})
	c.start("coder")
	exec := exec.Command("/bin/sh", "-c", `echo 0 >"$0/cgroup.procs"; echo -999 >/proc/self/oom_score_adj; exec cat /dev/zero >"/proc/$1/root/run/full"`, c.group, strconv.Itoa(c.cmd.Process.Pid))
	c.check(exec.Start())
	t.Cleanup(func() { _, _ = exec.Process.Kill(), exec.Wait() })
	switch state := c.wait(); state {
	case "signal: killed":
		c.checkTerminationMessage(t, "killed from outside (out of memory, or ")
	case "exit status 137": // The CMD was killed, and PID 1 ended before the kernel chose the command.
		c.checkTerminationMessage(t, "exit code 137, ")
	default:
		t.Errorf("the container has ended: %s", state)
	}
	c.check(exec.Process.Kill())
	_ = exec.Wait() // The kernel has killed the command, so the container must keep running.
	c.boot()
	testkit.Until(t, "the gateway is up again", func() bool { return c.service("coder").State == client.StateUp })
}

// checkTerminationMessage fails the test unless the termination message names the container's end and its cause.
func (c *container) checkTerminationMessage(t *testing.T, how string) {
	t.Helper()
	words := c.lastWords()
	t.Logf("last words:\n%s", words)
	if !strings.HasPrefix(words, how) || !strings.Contains(words, "gateway-") {
		t.Errorf("the last words are %q", words)
	}
}
