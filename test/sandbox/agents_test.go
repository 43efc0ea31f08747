package sandbox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

// TestTurns checks that files and variables persist from one turn to the next, also in another
// process.
func TestTurns(t *testing.T) {
	inEachSetup(t, func(t *testing.T, p *installation) {
		a := p.newAgent()
		first := a.run("cd /workspace && export GREETING=hello && echo made > note && hostname")
		if first.Code != 0 {
			t.Fatalf("%+v", first)
		}
		if got := a.run(`echo $GREETING $(pwd) $(cat note)`); got.Output != "hello /workspace made\n" || got.Code != 0 {
			t.Errorf("%+v", got)
		}
		if got := a.run(`(exit 7)`); got.Code != 7 {
			t.Errorf("%+v", got)
		}
		a.send("cat; echo err >&2; exit 3", "given", 60)
		if got := a.receive(); got.Code != 3 || !strings.Contains(got.Output, "given") || !strings.Contains(got.Output, "err") {
			t.Errorf("%+v", got)
		}
		a.close()
		b := p.newAgent()
		second := b.run("hostname; cat /workspace/note")
		if second.Output != first.Output+"made\n" || !strings.HasPrefix(first.Container, second.Container) && !strings.HasPrefix(second.Container, first.Container) {
			t.Errorf("first %+v, then %+v", first, second)
		}
		b.close()
		if n := len(p.containers()); n != 1 {
			t.Errorf("there are %d containers", n)
		}
	})
}

// TestTwoAgentsGetOneContainer checks that simultaneous agents share one container.
func TestTwoAgentsGetOneContainer(t *testing.T) {
	testkit.Parallel(t)
	p, _ := newService(t)
	var agents []*agent
	for range 4 {
		agents = append(agents, p.newAgent())
	}
	for i, a := range agents {
		a.send(fmt.Sprintf("echo %d >> /workspace/log; hostname", i), "", 60)
	}
	hosts := map[string]bool{}
	for _, a := range agents {
		reply := a.receive()
		hosts[reply.Output] = true
	}
	if len(hosts) != 1 || len(p.containers()) != 1 {
		t.Errorf("hosts %v, containers %v", hosts, p.containers())
	}
}

// TestAnAgentOfItsOwn checks that an agent that does not look for a container gets its own, and
// removes it.
func TestAnAgentOfItsOwn(t *testing.T) {
	inEachSetup(t, func(t *testing.T, p *installation) {
		off := "TERMINAL_DOCKER_PERSIST_ACROSS_PROCESSES=false"
		a, b := p.newAgent(off), p.newAgent(off)
		one, two := a.run("hostname"), b.run("hostname")
		if one.Code != 0 || two.Code != 0 || one.Output == two.Output {
			t.Errorf("%+v and %+v", one, two)
		}
		a.close()
		b.close()
		if left := p.containers(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// TestNothingRunsTwice checks that a command runs once although its output looks like a lost
// container, after which the agent repeats it.
func TestNothingRunsTwice(t *testing.T) {
	testkit.Parallel(t)
	p, _ := newService(t)
	a := p.newAgent()
	for i, text := range []string{"nginx is not running", "Error: No such container: web", "no such container"} {
		reply := a.run(fmt.Sprintf("echo once >> /workspace/count%d; echo %q; exit 4", i, text))
		if reply.Code != 4 || !strings.Contains(reply.Output, text) {
			t.Errorf("%+v", reply)
		}
		if got := a.run(fmt.Sprintf("cat /workspace/count%d", i)); got.Output != "once\n" {
			t.Errorf("after %q it has run: %q", text, got.Output)
		}
		// The agent repeats this command on purpose, so it must run again.
		a.run(fmt.Sprintf("echo once >> /workspace/count%d; echo %q; exit 4", i, text))
		if got := a.run(fmt.Sprintf("cat /workspace/count%d", i)); got.Output != "once\nonce\n" {
			t.Errorf("after the second %q it has run: %q", text, got.Output)
		}
	}
}

// TestTimeLimitEndsTheTree checks that a command's processes end when the agent kills its docker
// command.
func TestTimeLimitEndsTheTree(t *testing.T) {
	testkit.Parallel(t)
	p, _ := newService(t)
	a := p.newAgent()
	a.send("setsid sleep 7771 & (sleep 7772 &) ; echo begun; sleep 7773", "", 1.5)
	if reply := a.receive(); reply.Code != 124 || !strings.Contains(reply.Output, "[Command timed out after 1.5s]") {
		t.Errorf("%+v", reply)
	}
	testkit.Until(t, "nothing is left inside", func() bool {
		return !strings.Contains(a.run("ps").Output, "sleep 777")
	})
}

// TestKilledAgent checks that a killed agent's commands end, except for its own background
// processes.
func TestKilledAgent(t *testing.T) {
	testkit.Parallel(t)
	p, _ := newService(t)
	a := p.newAgent()
	a.run("setsid sleep 6661 >/dev/null 2>&1 &")
	a.send("sleep 6662", "", 600)
	b := p.newAgent()
	b.awaitProcess("sleep 6662")
	a.kill()
	p.killClients(t, "sleep 6662")
	testkit.Until(t, "its command has ended", func() bool { return !strings.Contains(b.run("ps").Output, "sleep 6662") })
	if !strings.Contains(b.run("ps").Output, "sleep 6661") {
		t.Error("what was in the background has ended too")
	}
}

// killClients kills the installation's docker commands whose command line contains a text.
func (p *installation) killClients(t *testing.T, text string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if strings.HasPrefix(string(line), p.docker()+"\x00") && strings.Contains(string(line), text) {
			var pid int
			if _, err := fmt.Sscan(e.Name(), &pid); err == nil {
				process, _ := os.FindProcess(pid)
				_ = process.Kill()
			}
		}
	}
}

// TestRemovedFromOutside checks the next command after the removal of a container. A started
// command must not run again.
func TestRemovedFromOutside(t *testing.T) {
	testkit.Parallel(t)
	p, _ := newService(t)
	a := p.newAgent()
	before := a.run("echo kept > /workspace/file; hostname")
	docker("rm", "-f", before.Container)
	after := a.run("cat /workspace/file")
	if after.Code != 0 || after.Output != "kept\n" || after.Container == before.Container {
		t.Errorf("before %+v, after %+v", before, after)
	}
	a.send("echo ran >> /workspace/ran; sleep 600", "", 60)
	ran := filepath.Join(p.home(), "sandboxes", "docker", "default", "workspace", "ran")
	testkit.Until(t, "it has begun", func() bool { _, err := os.Stat(ran); return err == nil })
	docker("rm", "-f", after.Container)
	if reply := a.receive(); reply.Code != 137 || strings.Contains(reply.Output, "is not running") || strings.Contains(strings.ToLower(reply.Output), "no such container") {
		t.Errorf("%+v", reply)
	}
	if got := a.run("cat /workspace/ran; (exit 9)"); got.Output != "ran\n" || got.Code != 9 {
		t.Errorf("%+v", got)
	}
	stopped := a.run("hostname")
	docker("stop", "-t", "0", stopped.Container)
	if got := a.run("hostname"); got.Code != 0 || got.Output != stopped.Output {
		t.Errorf("stopped %+v, then %+v", stopped, got)
	}
	docker("pause", stopped.Container)
	b := p.newAgent()
	if got := b.run("hostname"); got.Code != 0 || got.Output != stopped.Output {
		t.Errorf("paused %+v, then %+v", stopped, got)
	}
	if n := len(p.containers()); n != 1 {
		t.Errorf("there are %d containers", n)
	}
}
