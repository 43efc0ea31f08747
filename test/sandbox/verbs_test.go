package sandbox_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/internal/testkit"
)

// TestVerbs checks the commands of hinit sandbox as a person uses them.
func TestVerbs(t *testing.T) {
	inEachSetup(t, func(t *testing.T, p *installation) {
		p.env = append(p.env, "GIVEN=a value", "TERMINAL_DOCKER_NETWORK=none")
		step := func(code int, want string, args ...string) string {
			t.Helper()
			r := p.sandbox(args...)
			if r.code != code || !strings.Contains(r.out+r.err, want) {
				t.Errorf("hinit sandbox %q: %v", args, r)
			}
			return strings.TrimSpace(r.out)
		}
		step(0, "", "exec", "cd /workspace && export GREETING=hello && echo made > note")
		step(0, "/workspace hello made a value", "exec", "-e", "GIVEN", "echo $(pwd) $GREETING $(cat note) $GIVEN")
		step(7, "", "exec", "exit 7")
		step(0, "two  words", "exec", "--", "echo", "two  words")
		step(124, "ran out of time", "exec", "--timeout", "1s", "sleep 5551 & sleep 5552")
		if out := step(0, "", "exec", "ps"); strings.Contains(out, "sleep 555") {
			t.Errorf("a command that ran out of time still runs: %s", out)
		}
		job := step(0, "", "exec", "--background", "echo from the job; sleep 5553")
		step(0, "Job "+job, "show")
		testkit.Until(t, "the job has written", func() bool { return strings.Contains(p.sandbox("logs", "--job", job).out, "from the job") })
		step(0, "", "stop", "--job", job)
		if out := step(0, "", "exec", "ps"); strings.Contains(out, "sleep 5553") {
			t.Errorf("a job that was stopped still runs: %s", out)
		}
		step(6, "no such", "logs", "--job", "999-9")

		file := filepath.Join(p.home(), "file")
		if err := os.WriteFile(file, []byte("copied"), 0o644); err != nil {
			t.Fatal(err)
		}
		step(0, "", "cp", file, ":/workspace/")
		step(0, "copied", "exec", "cat /workspace/file; ln -s /etc/passwd /workspace/out; mkdir /workspace/d; echo in > /workspace/d/f")
		step(0, "", "cp", ":/workspace", filepath.Join(p.home(), "back"))
		if text, err := os.ReadFile(filepath.Join(p.home(), "back", "d", "f")); err != nil || string(text) != "in\n" {
			t.Errorf("%q, %v", text, err)
		}
		if link, err := os.Readlink(filepath.Join(p.home(), "back", "out")); err != nil || link != "/etc/passwd" {
			t.Errorf("the link came as %q (%v)", link, err)
		}
		step(2, "begin with a colon", "cp", "a", "b")
		step(1, "no such file", "cp", "/no/such/file", ":/workspace/")

		var all []struct{ Container, Name, Task, State string }
		if err := json.Unmarshal([]byte(step(0, "", "ls", "--json")), &all); err != nil || len(all) != 1 || all[0].State != "running" {
			t.Fatalf("%+v, %v", all, err)
		}
		step(0, all[0].Name, "show", all[0].Name)
		step(0, "default", "exec", "--in", all[0].Name, "echo default")
		step(0, "nothing to remove", "reap", "--dry-run")
		step(0, all[0].Name, "stop")
		step(3, "the container has ended", "exec", "--in", all[0].Name, "true")
		step(0, all[0].Name, "prune", "--dry-run")
		step(0, "made", "exec", "cat /workspace/note") // This command restarts the container.
		step(0, all[0].Name, "rm", "default")
		step(6, "no such sandbox", "show")
		step(0, "[]", "ls", "--json")

		step(2, "no such command", "nothing")
		step(2, "expected", "exec")
		step(2, "see: hinit sandbox ls --help", "ls", "--nothing")
		step(2, "--timeout must be a time", "exec", "--timeout", "-5s", "true")
		step(2, "add --background", "exec", "--json", "true")
		step(1, "cannot copy: ", "cp", ":/no/such/file", ".")
		step(2, "--retry is never or safe", "exec", "--retry", "always", "true")
		step(0, "usage: hinit sandbox ls", "ls", "--help")
		step(0, "hinit sandbox exec", "help")
	})
}

func TestVerbsWithoutAnEngine(t *testing.T) {
	testkit.Parallel(t)
	p := newInstallation(t)
	p.env = append(p.env, "DOCKER_HOST=unix:///no/such/socket")
	if r := p.sandbox("ls"); r.code != 4 {
		t.Errorf("ls: %v", r)
	}
	if r := p.call("version"); r.code != 1 || !strings.Contains(r.err, "Is the docker daemon running") {
		t.Errorf("version: %v", r)
	}
	p.env = append(p.env, "TERMINAL_CONTAINER_MEMORY=lots")
	if r := p.sandbox("exec", "true"); r.code != 2 || !strings.Contains(r.err, "TERMINAL_CONTAINER_MEMORY") {
		t.Errorf("a bad option: %v", r)
	}
}

// TestStateBeforeEachCommand checks that a command reports a paused or killed container at once,
// with and without an open connection.
func TestStateBeforeEachCommand(t *testing.T) {
	inEachSetup(t, func(t *testing.T, p *installation) {
		name := "hermes-" + p.profile
		if r := p.call(append(append([]string{"run", "-d", "--name", name, "--network=none"}, p.labels("default")...), image(), "sleep", "infinity")...); r.code != 0 {
			t.Fatal(r)
		}
		for range 2 { // The first round has no open connection.
			docker("pause", name)
			begin := time.Now()
			r := p.call("exec", name, "true")
			if r.code != 1 || !strings.Contains(r.err, "is paused, unpause the container before exec") {
				t.Errorf("paused: %v", r)
			}
			if took := time.Since(begin); took > 10*time.Second { // The command takes 0.3 s on an idle machine.
				t.Errorf("it said so after %v", took)
			}
			docker("unpause", name)
			if r := p.call("exec", name, "true"); r.code != 0 {
				t.Errorf("unpaused: %v", r)
			}
		}
		docker("kill", name)
		if r := p.call("exec", name, "true"); r.code != 1 || !strings.Contains(r.err, "is not running") {
			t.Errorf("killed: %v", r)
		}
		if state := strings.TrimSpace(docker("inspect", "--format", "{{.State.Status}}", name).out); state != "exited" {
			t.Errorf("it is %s: somebody has started it", state)
		}
	})
}

// TestPausedWithoutAConnection checks that hinit sandbox exec refuses a paused container.
func TestPausedWithoutAConnection(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (p *installation, away func()){
		"service": func(t *testing.T) (*installation, func()) {
			p, s := newService(t)
			return p, func() { s.kill(); s.start() }
		},
		"alone": func(t *testing.T) (*installation, func()) { return newInstallation(t), func() {} },
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Parallel(t)
			p, away := start(t)
			if r := p.sandbox("exec", "true"); r.code != 0 {
				t.Fatal(r)
			}
			id := p.containers()[0]
			docker("pause", id)
			for range 2 {
				if r := p.sandbox("exec", "true"); r.code != 3 || !strings.Contains(r.err, "is paused; resume it with: docker unpause") {
					t.Errorf("paused: %v", r)
				}
				away()
			}
			for _, args := range [][]string{{"exec", "--background", "true"}, {"shell"}, {"cp", ":/etc/passwd", p.dir + "/copy"}} {
				if r := p.sandbox(args...); r.code != 3 || !strings.Contains(r.err, "is paused") {
					t.Errorf("paused, %q: %v", args, r)
				}
			}
			if state := strings.TrimSpace(docker("inspect", "--format", "{{.State.Status}}", id).out); state != "paused" {
				t.Errorf("it is %s", state)
			}
			docker("unpause", id)
			if r := p.sandbox("exec", "true"); r.code != 0 {
				t.Errorf("afterwards: %v", r)
			}
			if n := len(p.containers()); n != 1 {
				t.Errorf("there are %d containers", n)
			}
		})
	}
}

// TestAFrozenContainer checks commands for a frozen container that the engine reports as running.
// They must fail in time.
func TestAFrozenContainer(t *testing.T) {
	inEachSetup(t, func(t *testing.T, p *installation) {
		if r := p.sandbox("exec", "--", "true"); r.code != 0 {
			t.Fatal(r)
		}
		id := p.containers()[0]
		froze := false
		for file, frozen := range map[string]string{"freezer/docker/" + id + "/freezer.state": "FROZEN", "docker/" + id + "/cgroup.freeze": "1", "system.slice/docker-" + id + ".scope/cgroup.freeze": "1"} {
			froze = froze || os.WriteFile("/sys/fs/cgroup/"+file, []byte(frozen), 0o644) == nil
		}
		if !froze {
			testkit.SkipOrFail(t, "needs the freezer of the container")
		}
		for range 2 { // The second round has no open connection.
			begin := time.Now()
			if r := p.sandbox("exec", "--", "true"); r.code != 137 && r.code != 1 || !strings.Contains(r.err, "it is frozen, though the engine says that it runs") {
				t.Errorf("frozen: %v", r)
			}
			if took := time.Since(begin); took > 20*time.Second { // The two take 3.4 s and 0.1 s on an idle machine.
				t.Errorf("it said so after %v", took)
			}
		}
		if docker("restart", "-t", "0", id); thaw(id) {
			t.Log("docker restart has not thawed it")
		}
		if r := p.sandbox("exec", "--", "true"); r.code != 0 {
			t.Errorf("afterwards: %v", r)
		}
	})
}

// TestAnOldIDWasNoSandbox checks that a recreated container is still found by its old ID.
func TestAnOldIDWasNoSandbox(t *testing.T) {
	testkit.Parallel(t)
	p, _ := newService(t)
	skills := filepath.Join(p.home(), "skills")
	if err := errors.Join(os.Mkdir(skills, 0o755), os.Chown(skills, agentUID, agentUID)); err != nil {
		t.Fatal(err)
	}
	run := append([]string{"run", "-d", "--network=none", "-v", skills + ":/root/.hermes/skills:ro"}, p.labels("default")...)
	made := p.call(append(run, image(), "sleep", "infinity")...)
	id := strings.TrimSpace(made.out)
	stop, start := p.call("stop", "-t", "0", id), p.call("start", id)
	if made.code+stop.code+start.code != 0 {
		t.Fatal(made, stop, start)
	}
	if now := p.containers(); len(now) != 1 || now[0] == id {
		t.Fatalf("%s was made again as %q", id, now)
	}
	for _, name := range []string{id, id[:12], "default"} {
		if r := p.sandbox("exec", "--in", name, "--", "echo", "found"); r.code != 0 || r.out != "found\n" {
			t.Errorf("by %s: %v", name, r)
		}
	}
}
