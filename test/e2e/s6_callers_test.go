package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// asHermes are the docker exec options of the agent's own calls.
var asHermes = []string{"--user", "10000"}

// callTime is the time after which a call of an s6 tool counts as hanging. It is long, because
// docker exec is slow on a busy machine.
const callTime = time.Minute

// s6Call calls an s6 tool as the agent does: by its absolute path, as the agent's user.
func (c *container) s6Call(words ...string) result {
	c.t.Helper()
	begin := time.Now()
	r := c.execAs(asHermes, append([]string{"/command/" + words[0]}, words[1:]...)...)
	if took := time.Since(begin); took > callTime {
		c.t.Errorf("%v took %v", words, took)
	}
	return r
}

// mustS6 calls a tool, which must succeed for the agent.
func (c *container) mustS6(words ...string) string {
	c.t.Helper()
	r := c.s6Call(words...)
	if r.code != 0 || r.err != "" {
		c.t.Fatal(r)
	}
	return r.out
}

// pidInParentheses matches a gateway's pid as older agents do.
var pidInParentheses = regexp.MustCompile(`\(pid (\d+)\)`)

// s6State is a slot's state as older and newer agents see it.
type s6State struct {
	line    string
	running bool
	pid     int // PID; 0 while the slot is down.
	wanted  bool
}

// s6State queries a slot in both ways. The answers must agree.
func (c *container) s6State(slot string) (s6State, error) {
	line := c.mustS6("s6-svstat", slot)
	s := s6State{line: line, running: strings.Contains(line, "up ")}
	s.wanted = strings.HasPrefix(line, "up") && !strings.Contains(line, "want down") || strings.Contains(line, "want up")
	if m := pidInParentheses.FindStringSubmatch(line); m != nil {
		s.pid, _ = strconv.Atoi(m[1])
	}
	up := strings.Fields(c.mustS6("s6-svstat", "-o", "up", slot))
	pid := strings.Fields(c.mustS6("s6-svstat", "-o", "pid", slot))
	if len(up) != 1 || len(pid) != 1 {
		return s, fmt.Errorf("-o up prints %q, -o pid %q", up, pid)
	}
	n, err := strconv.Atoi(pid[0])
	switch {
	case err != nil, n <= 0 && n != -1:
		return s, fmt.Errorf("-o pid prints %q", pid)
	case (up[0] == "true") != s.running, max(n, 0) != s.pid, s.running != (s.pid != 0):
		return s, fmt.Errorf("-o up is %q, -o pid is %q, and the line is %q", up, pid, line)
	}
	return s, nil
}

// awaitSlot waits until the agent sees a slot in the expected state.
func (c *container) awaitSlot(slot, wish string, ok func(s6State) bool) s6State {
	c.t.Helper()
	var s s6State
	eventually(c.t, settle, func() (err error) {
		if s, err = c.s6State(slot); err == nil && !ok(s) {
			err = fmt.Errorf("%s is not %s: %s", slot, wish, s.line)
		}
		return err
	})
	return s
}

func isRunning(s s6State) bool { return s.running }
func isDown(s s6State) bool    { return !s.running && !s.wanted }

// TestTheAgentsCalls checks the agent's s6 calls in one container with a CMD and a stopped profile.
func TestTheAgentsCalls(t *testing.T) {
	parallel(t)
	files := profile("coder", "stopped")
	files["/opt/register"] = registerScript
	c := start(t, setup{options: []string{"--env", "GREETING=hello  world"}, files: files}, "sleep", "1000")
	c.awaitStates(map[string]string{"gateway-default": "down", "gateway-coder": "down"})
	c.awaitHealthy() // A healthy container has completed its boot.
	c.runSubtests(
		subtest{"paths", checkImagePaths}, subtest{"s6 is found", checkS6IsFound}, subtest{"calls on a gateway", checkCallsOnAGateway}, subtest{"gateway commands", checkGatewayCommands},
		subtest{"profile commands", checkAgentCommands}, subtest{"register", checkRegistration}, subtest{"service directories", checkServiceDirectories},
		subtest{"privilege drop", checkPrivilegeDrop},
	)
}

// checkS6IsFound checks that the agent finds everything as under s6 (contract, section 9.1).
func checkS6IsFound(t *testing.T, c *container) {
	if r := c.execAs(asHermes, "sh", "-c", "cat /proc/1/comm && test -d /run/s6/basedir && tr '\\0' ' ' </proc/1/cmdline"); r.code != 0 || r.out != "s6-svscan\n/init /opt/hermes/docker/main-wrapper.sh sleep 1000 " {
		t.Error(r)
	}
	if line := c.mustS6("s6-svstat", "/run/service/main-hermes"); !strings.HasPrefix(line, "up (pid 1) ") {
		t.Errorf("main-hermes is %q", line)
	}
	if line := c.mustS6("s6-svstat", "/run/service/dashboard"); !strings.HasPrefix(line, "down ") || strings.Contains(line, "want up") {
		t.Errorf("the dashboard is %q", line)
	}
	if r := c.s6Call("s6-svstat", "/run/service/gateway-nobody"); r.code != 1 || r.out != "" {
		t.Error(r)
	}
	for _, slot := range []string{"gateway-default", "dashboard"} { // the run script must show which command hinit executes
		c.mustS6("s6-svstat", "/run/service/"+slot) // hinit creates a slot on demand, or a moment after the boot.
		if run := c.mustExec("cat", "/run/service/"+slot+"/run"); !strings.Contains(run, "\nexport HOME='/opt/data'\n") || strings.ContainsAny(run, "{}") {
			t.Errorf("the run of %s is\n%s", slot, run)
		}
	}
}

// checkCallsOnAGateway replays start, restart and stop as the agent's commands make them (contract,
// section 9.2).
func checkCallsOnAGateway(t *testing.T, c *container) {
	const slot = "/run/service/gateway-coder"
	c.awaitSlot(slot, "down", isDown)

	c.mustS6("s6-svc", "-u", slot)
	first := c.awaitSlot(slot, "up", isRunning)
	c.await("gateway-coder", "the same process", func(s service) bool { return s.PID == first.pid })
	c.awaitUp("gateway-coder")

	c.mustS6("s6-svc", "-t", slot)
	second := c.awaitSlot(slot, "restarted", func(s s6State) bool { return s.running && s.pid != first.pid })

	c.mustS6("s6-svc", "-d", slot)
	c.mustS6("s6-svwait", "-D", "-t", "50000", slot) // The agent passes 10000 as the time limit, and ignores the result.
	c.awaitSlot(slot, "down", isDown)
	if err := c.checkGone(second.pid); err != nil {
		t.Error(err)
	}
	c.awaitStates(map[string]string{"gateway-default": "down", "gateway-coder": "down"})
	// The gateway rewrites this file at its end, and hinit must restore a lost desired_state.
	c.awaitFile("/opt/data/profiles/coder/gateway_state.json", `"desired_state":"stopped"`)

	// The effects of hinit's own commands must be visible at once, too.
	c.mustExec("hinit", "start", "coder")
	if s, err := c.s6State(slot); err != nil || !s.running {
		t.Errorf("%+v, %v", s, err)
	}
	if r := c.execAs([]string{"--user", "12345"}, "/command/s6-svc", "-d", slot); r.code != 111 || !strings.Contains(r.err, "Permission denied") {
		t.Errorf("a stranger may stop it: %v", r)
	}
	c.mustExec("hinit", "stop", "coder")
}

// registerScript publishes a profile's slot as the agent does: in a temporary directory, renamed,
// announced (contract, section 9.3). It also removes the slot again.
const registerScript = `set -e
register() {
	slot=/run/service/gateway-$1 temp=/run/service/.gateway-$1.tmp
	if [ -d $slot ]; then
		/command/s6-svscanctl -a /run/service
		return
	fi
	mkdir -p $temp/log $temp/supervise $temp/event $temp/log/supervise $temp/log/event
	echo longrun >$temp/type
	printf '#!/command/with-contenv sh\nset -e\nexport HOME=/opt/data HERMES_S6_SUPERVISED_CHILD=1\ncd /opt/data\nexec hermes -p %s gateway run --replace\n' $1 >$temp/run
	printf '#!/command/with-contenv sh\nexec s6-log 1 n10 s1000000 T /opt/data/logs/gateways/%s\n' $1 >$temp/log/run
	chmod 755 $temp/run $temp/log/run
	: >$temp/down
	mkfifo -m 660 $temp/supervise/control
	chmod 3730 $temp/event
	if ! mv $temp $slot 2>/dev/null; then
		rm -rf $temp
		test -d $slot
	fi
	/command/s6-svscanctl -a /run/service
}
unregister() {
	slot=/run/service/gateway-$1
	/command/s6-svc -d $slot || true
	/command/s6-svwait -D -t 50000 $slot || true
	/command/s6-svscanctl -an /run/service || true
	sleep 0.2
	remove $slot
}
remove() {
	tries=0
	until rm -rf $1 2>/dev/null; do
		tries=$((tries+1))
		[ $tries -lt 200 ] || { rm -rf $1; return; }
		sleep 0.1
	done
}
`

// checkRegistration lets the agent register and unregister a gateway, which the agent then controls.
func checkRegistration(t *testing.T, c *container) {
	const slot = "/run/service/gateway-writer"
	script := func(text string) {
		t.Helper()
		if r := c.execAs(asHermes, "sh", "-c", ". /opt/register\n"+text); r.code != 0 {
			t.Fatal(r)
		}
	}
	script("mkdir -p /opt/data/profiles/writer; : >/opt/data/profiles/writer/SOUL.md; register writer; /command/s6-svstat " + slot)
	if s, err := c.s6State(slot); err != nil || !isDown(s) {
		t.Errorf("after register: %+v, %v", s, err)
	}
	c.mustS6("s6-svc", "-u", slot)
	running := c.awaitSlot(slot, "up", isRunning)
	c.await("gateway-writer", "up", func(s service) bool { return s.State == "up" && s.PID == running.pid })
	eventually(t, settle, func() error {
		if r := c.exec("test", "-s", "/opt/data/logs/gateways/writer/current"); r.code != 0 {
			return errors.New("its log is not where it belongs")
		}
		return nil
	})
	script("unregister writer; remove /opt/data/profiles/writer")
	eventually(t, settle, func() error {
		if r := c.s6Call("s6-svstat", slot); r.code != 1 {
			return fmt.Errorf("the slot is still there: %v", r)
		}
		if _, known := c.status().find("gateway-writer"); known {
			return errors.New("the service is still there")
		}
		return c.checkGone(running.pid)
	})
}

// checkServiceDirectories checks foreign service directories: with a logger, a finish program, and a
// notification of readiness.
func checkServiceDirectories(t *testing.T, c *container) {
	c.mustExec("sh", "-c", `set -e; cd /run/service
mkdir -p .new/log .done .told
printf '#!/command/with-contenv sh\necho "$GREETING of $(id -u)"\nexec s6-setuidgid hermes sh -c "id -u; exec sleep 1000"\n' >.new/run
printf '#!/bin/sh\nexec s6-log n3 s100000 t /tmp/greetings\n' >.new/log/run
printf '#!/bin/sh\nexit 7\n' >.done/run
printf '#!/bin/sh\necho "$@" >/tmp/finished\nexit 125\n' >.done/finish
printf '#!/bin/sh\necho x >&5\nexec sleep 1000\n' >.told/run
echo 5 >.told/notification-fd
chmod 755 .*/run .new/log/run .done/finish
mv .new new; mv .done done; mv .told told
s6-svscanctl -a /run/service`)
	told := c.mustExec("s6-svwait", "-U", "-t", "50000", "/run/service/told")
	if line := c.mustExec("s6-svstat", "/run/service/told"); !matches(`^up \(pid \d+\) \d+ seconds, ready \d+ seconds$`, line) {
		t.Errorf("told: %s%s", told, line)
	}
	eventually(t, settle, func() error {
		if line := c.mustExec("s6-svstat", "/run/service/done"); !matches(`^down \(exitcode 7\) \d+ seconds, normally up, ready \d+ seconds$`, line) {
			return fmt.Errorf("done: %s", line)
		}
		out := c.exec("sh", "-c", "s6-tai64nlocal </tmp/greetings/current").out
		if !matches(`(?m)^20\S+ \S+ hello  world of 0\n20\S+ \S+ 10000$`, strings.TrimSpace(out)) {
			return fmt.Errorf("the log holds %q", out)
		}
		return nil
	})
	if args := strings.Fields(c.mustExec("cat", "/tmp/finished")); len(args) != 4 || args[0] != "7" || args[1] != "0" || args[2] != "done" {
		t.Errorf("finish got %q", args)
	}
	c.mustExec("s6-svc", "-wD", "-T", "50000", "-d", "/run/service/new")
	if line := c.mustExec("s6-svstat", "/run/service/new/log"); !strings.HasPrefix(line, "up ") {
		t.Errorf("the logger went down with its service: %s", line)
	}
}

// checkGatewayCommands checks that hinit answers the gateway commands like the agent (contract, sections
// 9.2 and 9.4).
func checkGatewayCommands(t *testing.T, c *container) {
	silent := func(words ...string) {
		t.Helper()
		if r := c.exec(append([]string{"hermes"}, words...)...); r.code != 0 || r.out != "" || r.err != "" {
			t.Errorf("it is not silent: %v", r)
		}
	}
	silent("-p", "coder", "gateway", "start")
	up, _ := c.status().find("gateway-coder")
	if up.State != "up" {
		t.Errorf("after start it is %s", up.State)
	}
	if out := c.mustExec("hermes", "--profile=coder", "gateway", "status"); !strings.HasPrefix(out, fmt.Sprintf("✓ Gateway is running (PID: %d)\n  Manager: s6 (container supervisor)\n", up.PID)) {
		t.Errorf("status: %s", out)
	}
	silent("gateway", "restart", "-p", "coder")
	if again, _ := c.status().find("gateway-coder"); again.State != "up" || again.PID == up.PID {
		t.Errorf("after restart it is %s with pid %d, before %d", again.State, again.PID, up.PID)
	}
	if r := c.exec("hermes", "gateway", "stop", "--all"); r.code != 0 || r.out != "✓ Stopped 2 profile gateway(s) under s6\n" {
		t.Error(r)
	}
	if out := c.mustExec("hermes", "-p", "coder", "gateway", "status"); !strings.HasPrefix(out, "✗ Gateway is not running\n  Manager: s6 (container supervisor)\n  Service: installed but stopped\n") {
		t.Errorf("status: %s", out)
	}
	if r := c.exec("hermes", "-p", "nobody", "gateway", "start"); r.code != 1 || r.err != "Error: Profile 'nobody' does not exist. Create it with: hermes profile create nobody\n" {
		t.Error(r)
	}
	c.mustExec("mkdir", "-p", "/opt/data/profiles/empty")
	if r := c.exec("hermes", "-p", "empty", "gateway", "stop"); r.code != 1 || r.out != "✗ no such gateway 'empty': register it with `hermes profile create empty` first, or pass an existing profile name via `-p <name>`\n" {
		t.Error(r)
	}
	if r := c.execAs([]string{"--env", "_HERMES_GATEWAY=1"}, "hermes", "gateway", "stop"); r.code != 1 || !strings.HasPrefix(r.out, "✗ refusing") {
		t.Error(r)
	}
	if r := c.execAs([]string{"--env", "HINIT_SHIM_NATIVE=0"}, "hermes", "-p", "coder", "gateway", "status"); strings.Contains(r.out, "Manager: s6") {
		t.Errorf("hinit has answered though it was turned off: %v", r)
	}
}
