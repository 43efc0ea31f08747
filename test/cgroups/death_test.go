package cgroups_test

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"hinit/client"
	"hinit/internal/testkit"
)

// If Kubernetes sets memory.oom.group, the kernel ends the whole container with PID 1 when its memory runs out. The
// termination message must say so, and the next start must have the same gateways.
func TestTheKernelEndsAWholeContainer(t *testing.T) {
	c := begin(t, options{
		profiles: map[string]string{"coder": "", "eater": "oom=300"}, config: "profiles: {coder: {priority: critical}, eater: {priority: critical}}\n",
		limits: map[string]string{"memory.max": "120000000", "memory.oom.group": "1"},
	})
	c.start("coder")
	c.order(client.VerbStart, "eater")
	if state := c.wait(); state != "signal: killed" {
		t.Errorf("the container has ended: %s", state)
	}
	c.told(t, "killed from outside (out of memory, or ")
	c.profile("eater", map[string]string{"agent.conf": ""})
	c.boot()
	testkit.Until(t, "both gateways are up again", func() bool { return c.of("coder").State == client.StateUp && c.of("eater").State == client.StateUp })
}

// The kernel must kill PID 1 last: after every gateway and the CMD. Here a command of "docker exec" fills a tmpfs,
// whose memory no kill frees, and the kernel may not choose that command.
func TestTheKernelEndsPID1Last(t *testing.T) {
	c := begin(t, options{profiles: map[string]string{"coder": ""}, config: "profiles: {coder: {priority: critical}}\n", limits: map[string]string{"memory.max": "80000000"}})
	c.start("coder")
	exec := exec.Command("/bin/sh", "-c", `echo 0 >"$0/cgroup.procs"; echo -999 >/proc/self/oom_score_adj; exec cat /dev/zero >"/proc/$1/root/run/full"`, c.group, strconv.Itoa(c.cmd.Process.Pid))
	c.must(exec.Start())
	t.Cleanup(func() { _, _ = exec.Process.Kill(), exec.Wait() })
	switch state := c.wait(); state {
	case "signal: killed":
		c.told(t, "killed from outside (out of memory, or ")
	case "exit status 137": // the CMD was killed, and PID 1 ended before the kernel chose the command
		c.told(t, "exit code 137, ")
	default:
		t.Errorf("the container has ended: %s", state)
	}
	c.must(exec.Process.Kill())
	_ = exec.Wait() // the kernel has killed the command, so the container must go on
	c.boot()
	testkit.Until(t, "the gateway is up again", func() bool { return c.of("coder").State == client.StateUp })
}

// told fails the test unless the termination message says how the container ended, and after which event.
func (c *container) told(t *testing.T, how string) {
	t.Helper()
	words := c.lastWords()
	t.Logf("last words:\n%s", words)
	if !strings.HasPrefix(words, how) || !strings.Contains(words, "gateway-") {
		t.Errorf("the last words are %q", words)
	}
}
