package cgroups_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/testkit"
)

const limits = "memory: {high: 96MiB, max: 128MiB}\n  cpu: {weight: 50}\n  pids: {max: 60}"

// TestEachProfileHasItsOwnControlGroup checks that each gateway has its own control group with its
// limits, and that the status says so.
func TestEachProfileHasItsOwnControlGroup(t *testing.T) {
	c := startContainer(t, options{
		agent: limits, profiles: map[string]string{"coder": "", "writer": "", "vital": ""},
		config: "profiles: {vital: {cpu: {weight: 900}, pids: {max: 90}, memory: {max: 100MiB}}}\n",
		limits: map[string]string{"memory.max": "300000000", "cpu.max": "200000 100000", "pids.max": "500"}, env: []string{"GODEBUG=schedtrace=1000"},
	})
	c.start("coder", "writer", "vital")
	for _, tt := range []struct{ name, weight, pids, max string }{{"coder", "50", "60", "134217728"}, {"writer", "50", "60", "134217728"}, {"vital", "900", "90", "104857600"}} {
		dir := "hinit-gateway-" + tt.name + "/"
		for file, want := range map[string]string{"memory.high": "100663296", "memory.max": tt.max, "cpu.weight": tt.weight, "pids.max": tt.pids} {
			if got := c.file(dir + file); got != want {
				t.Errorf("%s%s is %s, not %s", dir, file, got, want)
			}
		}
		s := c.service(tt.name)
		if len(s.Limits) != 4 {
			t.Errorf("%s has the limits %+v", tt.name, s.Limits)
		}
		for _, l := range s.Limits {
			if l.EnforcedBy != client.LimitedByGroup {
				t.Errorf("%s: %+v", tt.name, l)
			}
		}
		if procs := c.file(dir + "cgroup.procs"); procs == "" || strings.Contains(c.file("hinit/cgroup.procs"), procs) {
			t.Errorf("the processes of %s are %q", tt.name, procs)
		}
	}
	if got := c.file("cgroup.procs"); got != "" {
		t.Errorf("the container's own group has the processes %q", got)
	}
	if !strings.Contains(c.out.String(), "gomaxprocs=2 ") {
		t.Error("GOMAXPROCS of hinit is not the container's number of processors")
	}
}

// TestAStopEndsAForkBomb checks that a fork bomb reaches its gateway's limit, that a stop ends all
// of it, and that other gateways keep running.
func TestAStopEndsAForkBomb(t *testing.T) {
	c := startContainer(t, options{
		agent: limits, profiles: map[string]string{"coder": ""},
		scripts: map[string]string{"bomb": "b() { (b & b &) 2>/dev/null; }\nb\nwhile :; do b; done\n"},
	})
	c.start("coder")
	c.sendCommand(client.VerbStart, "bomb")
	testkit.Until(t, "the bomb meets its limit", func() bool {
		events, err := os.ReadFile(filepath.Join(c.group, "hinit-gateway-bomb/pids.events"))
		n, _ := strings.CutPrefix(strings.TrimSpace(string(events)), "max ")
		most, _ := strconv.Atoi(n)
		return err == nil && most > 0
	})
	if _, err := c.api.Stop(c.context(), "bomb", client.WaitOptions{Wait: true, Timeout: testkit.Patience}); err != nil {
		t.Error(err)
	}
	if unix.Access(filepath.Join(c.group, "hinit-gateway-bomb"), unix.F_OK) == nil && !strings.Contains(c.file("hinit-gateway-bomb/cgroup.events"), "populated 0") {
		t.Errorf("the stop has answered, and processes of the bomb live: %s", c.file("hinit-gateway-bomb/cgroup.procs"))
	}
	if s := c.service("bomb"); s.State != client.StateDown {
		t.Errorf("the bomb is %s: %s", s.State, s.Reason)
	}
	c.checkAlive("coder")
}

// TestAGatewayWithTooMuchMemoryEndsAlone checks that only the gateway that reaches its memory.max
// is killed, and that the status and an event name it.
func TestAGatewayWithTooMuchMemoryEndsAlone(t *testing.T) {
	c := startContainer(t, options{
		agent: limits, profiles: map[string]string{"coder": "", "writer": "", "eater": "oom=200"},
		config: "profiles: {eater: {memory: {high: 0, max: 48MiB}}}\n",
		limits: map[string]string{"memory.max": "300000000", "memory.oom.group": "1"},
	})
	c.start("coder", "writer")
	c.sendCommand(client.VerbStart, "eater")
	testkit.Until(t, "status and an event name the gateway", func() bool { return c.killedForMemory("eater") })
	c.sendCommand(client.VerbStop, "eater")
	c.checkAlive("coder", "writer")
	testkit.Until(t, "the last words name it too", func() bool {
		return strings.Contains(c.lastWords(), "gateway-eater: ") && strings.Contains(c.lastWords(), "oom")
	})
}

// TestReadOnlyControlGroupsAreReported checks that hinit reports read-only control groups, measures
// memory itself, and still counts the kernel's kills.
func TestReadOnlyControlGroupsAreReported(t *testing.T) {
	c := startContainer(t, options{
		readOnly: true, agent: limits, profiles: map[string]string{"coder": "", "eater": "oom=200"},
		config: "profiles: {coder: {priority: critical}, eater: {priority: critical, memory: {high: 0, max: 0}}}\n", limits: map[string]string{"memory.max": "100000000"},
	})
	if !strings.Contains(c.out.String(), "services have no control groups of their own: its control group is not writable (") {
		t.Errorf("the log doesn't say why there are no control groups")
	}
	c.start("coder")
	for _, l := range c.service("coder").Limits {
		want := map[string]string{"memory.high": client.LimitedByHinit, "memory.max": client.LimitedByHinit, "cpu.weight": client.LimitedByNice, "pids.max": client.LimitedByNothing}[l.Key]
		if l.EnforcedBy != want {
			t.Errorf("%+v, not %s", l, want)
		}
	}
	c.sendCommand(client.VerbStart, "eater")
	testkit.Until(t, "status and an event name the gateway", func() bool { return c.killedForMemory("eater") })
	c.sendCommand(client.VerbStop, "eater")
	c.checkAlive("coder")
}

// fill is a gateway that uses tmpfs files until 85 % of the container's memory are used.
const fill = `while [ $(($(cat /sys/fs/cgroup/memory.current) * 100 / $(cat /sys/fs/cgroup/memory.max))) -lt 85 ]; do head -c 500000 /dev/zero >>/run/full; done
exec sleep 100000
`

// TestStartsWaitWhileMemoryStalls checks that starts wait while the container's memory stalls,
// although less than 90 % are used.
func TestStartsWaitWhileMemoryStalls(t *testing.T) {
	if unix.Access("/proc/pressure/memory", unix.R_OK) != nil {
		t.Skip("the kernel does not measure pressure (PSI)")
	}
	c := startContainer(t, options{
		profiles: map[string]string{"slow": "oom=400", "late": "", "vital": ""}, scripts: map[string]string{"fill": fill}, limits: map[string]string{"memory.max": "250000000"},
		config: "profiles: {slow: {memory: {high: 36MiB}}, fill: {priority: critical}, vital: {priority: critical}}\n",
	})
	c.sendCommand(client.VerbStart, "slow")
	testkit.Until(t, "the kernel slows the gateway down", func() bool { return !strings.Contains(c.file("hinit-gateway-slow/memory.events"), "high 0\n") })
	c.sendCommand(client.VerbStart, "fill")
	testkit.Until(t, "starts wait", func() bool { return strings.Contains(c.out.String(), "waits for memory: 8") })
	c.sendCommand(client.VerbStart, "late")
	testkit.Until(t, "the start waits", func() bool {
		s := c.service("late")
		return s.State == client.StateWaiting && strings.HasPrefix(s.Reason, "waits for memory: ")
	})
	c.start("vital")
	c.sendCommand(client.VerbStop, "slow")
	testkit.Until(t, "starts continue", func() bool { return c.service("late").State == client.StateUp })
}
