package promises_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/testkit"
)

// TestNoSlotOpensBeforeTheBootIsOver checks that no gateway starts during the boot, although the
// agent registers its slots as up.
func TestNoSlotOpensBeforeTheBootIsOver(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick})
	text, err := os.ReadFile(b.path("hinit.yaml"))
	begun, done := b.path("begun"), b.path("done")
	b.check(err, os.WriteFile(b.path("hinit.yaml"), fmt.Appendf(text, "boot: {hooks: [{command: [/bin/sh, -c, 'echo >%s; until [ -e %s ]; do sleep .02; done'], user: root}]}\n", begun, done), 0o644))
	scan := b.enableS6Tools("s6-svscanctl", "s6-svc")
	names := b.profiles(5, "echo \"{\\\"pid\\\": $$}\" >\"${0%/run}/gateway.pid\"\n"+sleeper)
	for range shortOrFull(2, 25) {
		_ = os.Remove(begun) // In the first round, the file does not exist.
		_ = os.Remove(done)
		for _, name := range names {
			state, pid := filepath.Join(b.profileDir(name), "gateway_state.json"), filepath.Join(b.profileDir(name), "gateway.pid")
			_ = os.Remove(state)
			b.check(os.WriteFile(pid, []byte(`{"pid": 1, "stale": true}`), 0o644), os.Lchown(pid, b.uid, b.uid))
		}
		b.start()
		within(t, patience, func() error {
			_, err := os.Stat(begun)
			return err
		})
		for _, name := range names {
			slot := filepath.Join(scan, "gateway-"+name)
			temp := slot + ".new"
			b.check(os.Mkdir(temp, 0o755), testkit.WriteProgram(filepath.Join(temp, "run"), []byte("#!/bin/sh\nexec false\n")), chownTree(temp, b.uid))
			if err := os.Rename(temp, slot); err != nil {
				t.Fatalf("there is a slot before the boot is over: %v", err)
			}
			if out, err := b.asAgent(b.tool("s6-svscanctl"), "-a", scan); err != nil {
				t.Fatalf("the scan of %s: %v: %s", name, err, out)
			}
			sheet.add("slots during a boot", 1)
		}
		for _, name := range names {
			within(t, patience, func() error { // The slot must be known, and its gateway must wait.
				s, err := b.service(name)
				if err == nil && (s.State != client.StateWaiting || s.Want != client.WantUp) {
					err = fmt.Errorf("%s is %s, wanted %s", name, s.State, s.Want)
				}
				return err
			})
			if p := b.processesOf("gateway-" + name); len(p) > 0 {
				t.Errorf("while the hook runs there are %+v", p)
			}
			if pid, err := os.ReadFile(filepath.Join(b.profileDir(name), "gateway.pid")); err != nil || !strings.Contains(string(pid), "stale") {
				t.Errorf("while the hook runs gateway.pid is %q, %v", pid, err)
			}
		}
		b.check(os.WriteFile(done, nil, 0o644), poll(patience, b.booted))
		for _, name := range names {
			within(t, patience, func() error {
				s, err := b.service(name)
				if err != nil || s.State != client.StateUp {
					return fmt.Errorf("%s is %s, %w", name, s.State, err)
				}
				pid, err := os.ReadFile(filepath.Join(b.profileDir(name), "gateway.pid"))
				if want := fmt.Sprintf("{\"pid\": %d}\n", s.PID); err == nil && string(pid) != want {
					err = fmt.Errorf("gateway.pid is %q and the gateway %d", pid, s.PID)
				}
				return err
			})
		}
		b.kill()
	}
}

// TestWhatRunsAsRootHasNothingOfTheAgents checks that root services and hooks get no HOME,
// directory or PATH inside the volume.
func TestWhatRunsAsRootHasNothingOfTheAgents(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{})
	writable := b.path("writable")
	hooked := b.path("hooked")
	const rounds = 2
	users := []string{"root", "0", "0:0", "0:10000"}
	var config strings.Builder
	config.WriteString("boot:\n  hooks:\n")
	for _, user := range users {
		fmt.Fprintf(&config, "    - {command: [/bin/sh, -c, '{ pwd; env; } >>%s'], user: %q}\n", hooked, user)
	}
	config.WriteString("services:\n")
	for i, user := range users {
		fmt.Fprintf(&config, "  s%d: {command: [sleep, \"1000000\"], user: %q}\n", i, user)
	}
	text, err := os.ReadFile(b.path("hinit.yaml"))
	b.check(err, os.WriteFile(b.path("hinit.yaml"), append(text, config.String()...), 0o644), os.Mkdir(writable, 0o777), os.Chmod(writable, 0o777))
	b.env = []string{
		"PATH=" + b.home + "/.local/bin:" + writable + ":" + os.Getenv("PATH"), "HOME=" + b.home, "PYTHONPATH=/usr/lib/x:" + b.home, "NODE_OPTIONS=--require=" + b.home + "/x.js",
		"LD_LIBRARY_PATH=" + b.home, "BASH_ENV=" + b.home + "/env", "HERMES_WRITE_SAFE_ROOT=" + b.home,
	}
	b.profile("a", sleeper)
	for range rounds {
		b.boot()
		b.startAndAwait("a")
		for i, user := range users {
			within(t, patience, b.checkState(fmt.Sprintf("s%d", i), client.StateUp))
			s, err := b.service(fmt.Sprintf("s%d", i))
			b.check(err)
			p := b.processesOf(s.Name)
			if len(p) != 1 || p[0].uid != 0 {
				t.Fatalf("of %s as %q there are %+v", s.Name, user, p)
			}
			environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p[0].pid))
			b.check(err)
			dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p[0].pid))
			b.check(err)
			b.rootAttributes("a service as "+user, dir, strings.Split(string(environment), "\x00"))
			sheet.add("root's processes", 1)
		}
		// A gateway's variables show that the container has such variables.
		if p := b.processesOf("gateway-a"); len(p) != 1 {
			t.Errorf("of the gateway there are %+v", p)
		} else if environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p[0].pid)); err != nil || !strings.Contains(string(environment), "\x00PATH="+b.home) {
			t.Errorf("the gateway has the environment %q, %v", environment, err)
		}
		output, err := os.ReadFile(hooked)
		b.check(err)
		lines := strings.Split(string(output), "\n")
		b.rootAttributes("a hook", lines[0], lines)
		if n := strings.Count(string(output), "\nHOME=/root\n"); n != len(users) {
			t.Errorf("%d of %d hooks have root's HOME:\n%s", n, len(users), output)
		}
		sheet.add("root's processes", len(users))
		b.check(os.Remove(hooked))
		b.kill()
	}
}

// rootAttributes fails the test unless a directory and an environment are independent of the agent.
func (b *testContainer) rootAttributes(process, dir string, environment []string) {
	b.t.Helper()
	if dir != "/" {
		b.t.Errorf("%s is in %s", process, dir)
	}
	if !slices.Contains(environment, "HOME=/root") {
		b.t.Errorf("%s has no HOME=/root: %q", process, environment)
	}
	for _, variable := range environment {
		if strings.Contains(variable, b.home) || strings.Contains(variable, b.path("writable")) {
			b.t.Errorf("%s has %s", process, variable)
		}
	}
}

// TestAGatewayThatChangesItsConfigurationDoesNotSpin checks that restart delays apply to a gateway
// that rewrites its configuration and exits with 78.
func TestAGatewayThatChangesItsConfigurationDoesNotSpin(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: "restart: {initial: 500ms, max: 1s}\n"})
	b.profile("restless", "date +%s%N >\"${0%/run}/config.yaml\"\nexit 78\n")
	b.boot()
	b.check(b.sendCommand("start", "restless"))
	within(t, patience, func() error { // hinit must have started the gateway more than once.
		s, err := b.service("restless")
		if err == nil && s.RunNumber < 3 {
			err = fmt.Errorf("it is in run %d", s.RunNumber)
		}
		return err
	})
	first, err := b.service("restless")
	b.check(err)
	begin := time.Now()
	<-time.After(time.Duration(shortOrFull(1, 20)) * time.Second)
	last, err := b.service("restless")
	took := time.Since(begin)
	b.check(err)
	starts := int(last.RunNumber - first.RunNumber)
	if most := int(2*took/time.Second) + 2; starts > most { // Only too short a delay is wrong; a busy machine adds delay.
		t.Errorf("it was started %d times in %v", starts, took)
	}
	sheet.set("restless starts", fmt.Sprintf("%d starts in %v", starts, took.Round(time.Second)))
}

// TestOneWhoWaitsOrHasNoSignalsLeftIsAnswered checks that the agent's status works while 128 of its
// s6 tools wait, and that root can show a log without queueable signals.
func TestOneWhoWaitsOrHasNoSignalsLeftIsAnswered(t *testing.T) {
	parallelInTurn(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick})
	scan := b.enableS6Tools("s6-svwait")
	b.profile("a", "echo spoken; "+sleeper)
	b.profile("waited", sleeper)
	b.boot()
	b.startAndAwait("a")
	slot := filepath.Join(scan, "gateway-waited")
	waiters := make(chan error, 1)
	go func() {
		const crowd = `n=0; while [ $((n += 1)) -le 128 ]; do "$0" -u -t 600000 "$1" & done; wait`
		_, err := b.asAgent("sh", "-c", crowd, b.tool("s6-svwait"), slot)
		waiters <- err
	}()
	within(t, patience, func() error {
		if n := len(slices.DeleteFunc(b.liveProcesses(), func(p process) bool { return p.name != "s6-svwait" })); n != 128 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})
	for range shortOrFull(10, 200) {
		if out, err := b.asAgent(built.shipped, "status", "a"); err != nil {
			t.Errorf("the status for the agent: %v: %s", err, out)
		}
		sheet.add("answers beside those who wait", 1)
	}
	b.check(b.sendCommand("start", "waited"))
	select {
	case err := <-waiters:
		b.check(err)
	case <-time.After(patience):
		t.Error("those who wait were not told")
	}
	for range shortOrFull(3, 50) {
		out, err := b.asRoot("prlimit", "--sigpending=0", "timeout", "-k1", strconv.Itoa(int(patience/time.Second)), built.shipped, "logs", "a")
		if err != nil || !strings.Contains(string(out), "spoken") {
			t.Errorf("the log without signals: %v: %s", err, out)
		}
		sheet.add("answers beside those who wait", 1)
	}
}

// TestServicesDoNotWaitForTheirSlots checks that services start while the s6 slots are on a hanging
// disk.
func TestServicesDoNotWaitForTheirSlots(t *testing.T) {
	parallelMeasurement(t)
	requireRoot(t)
	b := newTestContainer(t, setup{config: quick, faults: true})
	n := shortOrFull(100, 1000)
	var services strings.Builder
	services.WriteString("services:\n")
	for i := range n {
		fmt.Fprintf(&services, "  s%04d: {command: [sleep, \"1000000\"]}\n", i)
	}
	text, err := os.ReadFile(b.path("hinit.yaml"))
	b.check(err, os.WriteFile(b.path("hinit.yaml"), append(text, services.String()...), 0o644))
	scan := b.enableS6Tools()
	slots := func() int {
		found, _ := filepath.Glob(filepath.Join(scan, "s*")) // Ignore the error: the pattern is valid.
		return len(found)
	}
	b.setFaultRules("rename .s0 delay=1h")
	begin := time.Now()
	b.start()
	within(t, 5*time.Minute, func() error {
		if !b.running() {
			return errHopeless
		}
		status, err := b.client.Status(t.Context())
		if err != nil {
			return err
		}
		up := 0
		for _, s := range status.Services {
			if strings.HasPrefix(s.Name, "s") && s.State == client.StateUp {
				up++
			}
		}
		if up != n {
			err = fmt.Errorf("%d of %d are up", up, n)
		}
		return err
	})
	running := time.Since(begin)
	if made := slots(); made > 0 {
		t.Errorf("there are %d slots on a disk that does not answer", made)
	}
	b.setFaultRules()
	begin = time.Now()
	within(t, 5*time.Minute, func() error {
		if made := slots(); made != n {
			return fmt.Errorf("%d of %d slots are there", made, n)
		}
		return nil
	})
	made := time.Since(begin)
	sheet.add("services without slots", n)
	sheet.set("their start", running.Round(10*time.Millisecond).String())
	sheet.set("their slots", made.Round(10*time.Millisecond).String())
	t.Logf("%d services ran after %v, and their slots were made in %v", n, running, made)
}
