package sandbox_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// secret is a text that no agent may read.
const secret = "the host's secret"

// TestEscapes tries an agent's escapes on the real engine, through the service. None may succeed.
func TestEscapes(t *testing.T) {
	testkit.Parallel(t)
	p, _ := newService(t)
	hidden := filepath.Join(p.dir, "hidden")
	if err := errors.Join(os.Mkdir(hidden, 0o700), os.WriteFile(filepath.Join(hidden, "secret"), []byte(secret), 0o600), os.Symlink(hidden, filepath.Join(p.home(), "link"))); err != nil {
		t.Fatal(err)
	}
	// These containers belong to others.
	victims := map[string]string{}
	for who, labels := range map[string][]string{
		"profile": {"--label", "hermes-agent=1", "--label", "hermes-profile=" + p.profile + "x", "--label", "hinit-owner=12345"},
		"user":    {"--label", "hermes-agent=1", "--label", "hermes-profile=" + p.profile, "--label", "hinit-owner=54321"},
		"plain":   {"--label", "hermes-agent=1", "--label", "hermes-profile=" + p.profile},
		"none":    {"--label", "x=" + p.profile},
	} {
		r := docker(append(append([]string{"run", "-d", "--network=none"}, labels...), image(), "sleep", "infinity")...)
		if r.code != 0 {
			t.Fatal(r)
		}
		id := strings.TrimSpace(r.out)
		victims[who] = id
		t.Cleanup(func() { docker("rm", "-f", id) })
	}
	run := func(flags ...string) []string {
		return append(append(append([]string{"run", "-d"}, p.labels("default")...), flags...), image(), "sleep", "infinity")
	}
	tries := [][]string{
		run("-v", "/:/host"), run("-v", "/etc:/host"), run("-v", "/var/run/docker.sock:/s"), run("-v", "/run:/r"), run("-v", hidden+":/h"), run("-v", p.home()+"/link:/h"),
		run("-v", p.home()+"/link/secret:/h"), run("-v", p.home()+"/../../../hidden:/h"), run("-v", p.root()+":/h"), run("-v", p.home()+"/x:/.hinit"), run("-v", p.home()+"/x:/proc"),
		run("--mount", "type=bind,source=/,target=/h"), run("-v", "volume:/h"), run("--tmpfs", "/.hinit"), run("-v", p.home()+"/x:/d:ro", "--tmpfs", "/d/.:remount,rw"),
		run("--privileged"), run("--pid=host"), run("--pid=container:" + victims["none"]), run("--ipc=host"), run("--uts=host"), run("--userns=host"), run("--cgroupns=host"),
		run("--network=host"), run("--network=container:" + victims["none"]), run("--network=bridge-of-others"), run("--cap-add=SYS_ADMIN"), run("--cap-add=ALL"),
		run("--security-opt", "seccomp=unconfined"), run("--security-opt", "no-new-privileges=false"), run("--device=/dev/kmsg"), run("--device-cgroup-rule=a *:* rwm"),
		run("--gpus=all"), run("--cgroup-parent=/"), run("--volumes-from", victims["none"]), run("--group-add=0"), run("--restart=always"), run("-p", "22:22"),
		run("--runtime=other"), run("--label", "hinit-owner=0"), run("--label", "hermes-profile="+p.profile+"x"), run("--add-host=a:1.2.3.4"),
		run("--use-api-socket"), run("--oom-score-adj=-1000"), run("--storage-opt", "overlay2.override_kernel_check=true"),
		append(run()[:len(run())-3], "busybox", "sleep", "infinity"), append(run()[:len(run())-3], image()+"@sha256:"+strings.Repeat("0", 64), "sleep", "infinity"),
		{"create", "-v", "/:/host", image()},
		{"exec", "--privileged", victims["plain"], "sh"},
	}
	for who := range victims {
		id := victims[who]
		tries = append(tries, []string{"exec", id, "true"}, []string{"exec", id[:12], "true"}, []string{"start", id}, []string{"stop", "-t", "0", id}, []string{"rm", id},
			[]string{"inspect", "--format", "{{.State.FinishedAt}}", id})
	}
	before := len(p.containers())
	for _, args := range tries {
		if r := p.call(args...); r.code == 0 {
			t.Errorf("docker %q: %v", args, r)
		}
	}
	for _, args := range [][]string{{"run", "-d", "--env-file", "/etc/shadow", image(), "sleep", "1"}, {"cp", "/etc/shadow", "x:/"}, {"-H", "unix:///var/run/docker.sock", "ps"}, {"export", victims["none"]}} {
		// The service passes these calls to the docker command, which can't reach the engine.
		if r := p.call(args...); r.code == 0 {
			t.Errorf("docker %q: %v", args, r)
		}
	}
	for _, name := range []string{".", "/", "..", "./", "../images/" + image(), "/../../info"} { // In a request's URL, these would be paths.
		if r := p.call("stop", name); r.code == 0 || !strings.Contains(r.err, "No such container: "+name) {
			t.Errorf("the container %q: %v", name, r)
		}
	}
	for _, args := range [][]string{{"exec", "--in", victims["plain"], "true"}, {"rm", victims["user"]}, {"stop", victims["none"]}, {"show", victims["profile"]}, {"logs", victims["none"]}, {"exec", "--profile", "other", "true"}, {"shell", "--in", victims["none"]}} {
		if r := p.sandbox(args...); r.code == 0 {
			t.Errorf("hinit sandbox %q: %v", args, r)
		}
	}
	if r := p.call("rm", "-f", victims["user"], victims["none"], victims["profile"], victims["plain"]); r.code != 0 || strings.Contains(r.out, victims["none"]) {
		t.Errorf("what is not there can't be removed: %v", r)
	}
	if r := p.call("ps", "-a", "--filter", "label=hermes-agent=1", "--format", "{{.ID}}"); r.code != 0 || r.out != "" {
		t.Errorf("it sees %v", r)
	}
	if after := len(p.containers()); after != before {
		t.Errorf("there were %d containers, and are %d", before, after)
	}
	for who, id := range victims {
		if got := strings.TrimSpace(docker("inspect", "--format", "{{.State.Running}} {{.RestartCount}}", id).out); got != "true 0" {
			t.Errorf("the container of %s: %s", who, got)
		}
	}
	if r := runAs(p.env, agentUID+1, p.docker(), "version"); r.code != 5 {
		t.Errorf("another user: %v", r)
	}
}

// rounds is how many containers TestMountRace makes.
var rounds = flag.Int("rounds", 12, "how many containers TestMountRace makes")

// TestMountRace changes a mount's target while containers start. Each container must get only the
// requested directory.
func TestMountRace(t *testing.T) {
	testkit.Parallel(t)
	p, _ := newService(t)
	hidden := filepath.Join(p.dir, "hidden")
	work, link := filepath.Join(p.home(), "work"), filepath.Join(p.home(), "elsewhere")
	if err := errors.Join(os.Mkdir(hidden, 0o755), os.WriteFile(filepath.Join(hidden, "secret"), []byte(secret), 0o644),
		os.Mkdir(work, 0o777), os.WriteFile(filepath.Join(work, "mine"), nil, 0o644), os.Chown(work, agentUID, agentUID), os.Symlink(hidden, link)); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, work, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
	made, refused := 0, 0
	for i := range *rounds {
		name := fmt.Sprintf("hermes-%s-%d", p.profile, i)
		running, looked := make(chan struct{}), make(chan struct{})
		go func() { // the path is exchanged all the time, so no command may read the secret before the mounts are checked either
			defer close(looked)
			for {
				if r := p.call("exec", name, "bash", "-c", "cat /work/*; ls /work"); strings.Contains(r.out, "secret") {
					t.Errorf("round %d, before the gate was open: %v", i, r)
				}
				select {
				case <-running:
					return
				default:
				}
			}
		}()
		r := p.call(append(append([]string{"run", "-d", "--name", name, "--network=none", "-v", work + ":/work"}, p.labels("default")...), image(), "sleep", "infinity")...)
		close(running)
		<-looked
		if r.code != 0 {
			refused++
			continue
		}
		made++
		if r := p.call("exec", name, "bash", "-c", "cat /work/*; ls /work"); strings.Contains(r.out, "secret") || !strings.Contains(r.out, "mine") {
			t.Errorf("round %d: %v", i, r)
		}
		p.call("stop", "-t", "0", name)
		if r := p.call("start", name); r.code == 0 {
			if r := p.call("exec", name, "bash", "-c", "cat /work/*; ls /work"); r.code == 0 && (strings.Contains(r.out, "secret") || !strings.Contains(r.out, "mine")) {
				t.Errorf("round %d, after a start: %v", i, r)
			}
		}
		p.call("rm", "-f", name)
	}
	t.Logf("%d made, %d refused", made, refused)
	if left := p.containers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestAHealthCheckRanBeforeTheGateWasOpen checks that an image's health check runs no program
// before the mounts are checked.
func TestAHealthCheckRanBeforeTheGateWasOpen(t *testing.T) {
	testkit.Parallel(t)
	requireEngine(t)
	checked := image() + "-checked"
	dir := t.TempDir()
	text := "FROM " + image() + "\nHEALTHCHECK --interval=1s CMD [\"/bin/sh\", \"-c\", \"echo >/work/probed\"]\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := runAs([]string{"DOCKER_BUILDKIT=0"}, 0, "docker", "build", "-q", "-t", checked, dir); r.code != 0 {
		t.Fatal(r)
	}
	t.Cleanup(func() { docker("rmi", "-f", checked) })
	p, _ := newService(t, "HINIT_SANDBOX_IMAGES="+checked)
	work := filepath.Join(p.home(), "work")
	if err := errors.Join(os.Mkdir(work, 0o755), os.Chown(work, agentUID, agentUID)); err != nil {
		t.Fatal(err)
	}
	made := p.call(append(append([]string{"create", "--network=none", "-v", work + ":/work"}, p.labels("default")...), checked, "sleep", "infinity")...)
	id := strings.TrimSpace(made.out)
	if r := docker("start", id); made.code != 0 || r.code != 0 { // The container waits at its gate, because start runs no command.
		t.Fatal(made, r)
	}
	if check := docker("inspect", "--format", "{{json .State.Health}} {{.Config.Healthcheck.Test}}", id).out; check != "null [NONE]\n" {
		t.Errorf("the engine checks the container at the gate: %s", check)
	}
	if r := p.call("exec", id, "echo", "open"); r.out != "open\n" {
		t.Error(r)
	}
}

// TestServiceKilled checks that a kill of the service loses nothing. Callers must wait for the next service, and the
// container must be the same.
func TestServiceKilled(t *testing.T) {
	testkit.Parallel(t)
	p, s := newService(t)
	a := p.newAgent()
	before := a.run("hostname; echo kept > /workspace/f")
	a.send("sleep 600", "", 60)
	b := p.newAgent()
	b.awaitProcess("sleep 600")
	s.kill()
	if reply := a.receive(); reply.Code != 137 {
		t.Errorf("its command: %+v", reply)
	}
	s.start()
	if after := a.run("hostname; cat /workspace/f"); after.Output != before.Output+"kept\n" {
		t.Errorf("before %+v, after %+v", before, after)
	}
	testkit.Until(t, "the command that was lost has ended", func() bool { return !strings.Contains(b.run("ps").Output, "sleep 600") })
	if n := len(p.containers()); n != 1 {
		t.Errorf("there are %d containers", n)
	}
}

// TestIdleWindowOfADeadAgent checks that the service removes a dead agent's idle container.
func TestIdleWindowOfADeadAgent(t *testing.T) {
	testkit.Parallel(t)
	p, s := newService(t, "TERMINAL_LIFETIME_SECONDS=2", "TERMINAL_DOCKER_PERSIST_ACROSS_PROCESSES=false")
	living, dead := p.newAgent(), p.newAgent()
	kept := living.run("hostname").Container
	gone := dead.run("hostname").Container
	dead.kill()
	s.kill() // These containers hold files that must survive.
	s.start()
	testkit.Until(t, "the dead agent's container is gone", func() bool { return docker("inspect", gone).code != 0 })
	if docker("inspect", kept).code != 0 {
		t.Error("so is that of the living one")
	}
}

// gateName returns the directory of a container's gate.
func (p *installation) gateName(name string) string {
	for line := range strings.Lines(docker("inspect", "--format", "{{range .Mounts}}{{println .Destination}}{{end}}", name).out) {
		if strings.HasPrefix(line, "/.hinit-") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// TestLinksBelowMounts checks that a link in one mount can't redirect another mount to the engine's
// or the gate's program.
func TestLinksBelowMounts(t *testing.T) {
	testkit.Parallel(t)
	p, _ := newService(t)
	work, evil := filepath.Join(p.home(), "work"), filepath.Join(p.home(), "evil")
	if err := errors.Join(os.Mkdir(work, 0o755), os.Symlink("/sbin", filepath.Join(work, "s")), os.Symlink("/bin", filepath.Join(work, "b")),
		os.WriteFile(evil, []byte("#!/bin/bash\necho replaced > /work/replaced; exec sleep infinity\n"), 0o755), os.Chown(work, agentUID, agentUID)); err != nil {
		t.Fatal(err)
	}
	name := "hermes-" + p.profile
	r := p.call(append(append([]string{"run", "-d", "--init", "--name", name, "--network=none", "-v", work + ":/work", "-v", evil + ":/work/s/docker-init", "-v", evil + ":/work/s/init"},
		p.labels("default")...), image(), "sleep", "infinity")...)
	if r.code == 0 {
		if r := p.call("exec", name, "bash", "-c", `tr '\0' ' ' < /proc/1/cmdline`); !strings.Contains(r.out, "/gate gate-init / sleep infinity") {
			t.Errorf("the first process is %v", r)
		}
		// The agent now knows the gate's name, and a link redirects a mount to it.
		gate := p.gateName(name)
		p.call("stop", "-t", "0", name)
		if err := errors.Join(os.Remove(filepath.Join(work, "s")), os.Symlink(gate, filepath.Join(work, "s"))); err != nil {
			t.Fatal(err)
		}
		if r := p.call("start", name); r.code == 0 {
			if now := p.gateName(name); now == gate || now == "" {
				t.Errorf("the gate was %s, and is %s", gate, now)
			}
			if r := p.call("exec", name, "bash", "-c", `tr '\0' ' ' < /proc/1/cmdline`); !strings.Contains(r.out, "/gate gate-init / sleep infinity") {
				t.Errorf("after another start the first process is %v", r)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(work, "replaced")); err == nil {
		t.Error("the agent's program was the first one")
	}
}

// TestALogFilledTheDiskOfTheHost checks that the log of a container's first process stays small.
func TestALogFilledTheDiskOfTheHost(t *testing.T) {
	testkit.Parallel(t)
	p, _ := newService(t)
	if driver := docker("info", "--format", "{{.LoggingDriver}}").out; driver != "json-file\n" {
		t.Skipf("the engine writes no file: %s", driver)
	}
	r := p.call(append(append([]string{"run", "-d", "--network=none"}, p.labels("default")...), image(), "sleep", "infinity")...)
	id := strings.TrimSpace(r.out)
	if wrote := p.call("exec", id, "bash", "-c", `head -c 24000000 /dev/zero | tr '\0' x > /proc/1/fd/1; printf '\nthe end\n' > /proc/1/fd/1`); wrote.code != 0 {
		t.Fatal(r, wrote)
	}
	files, size := strings.TrimSpace(docker("inspect", "--format", "{{.LogPath}}", id).out)+"*", int64(0)
	testkit.Until(t, "the end is in the log", func() bool { return strings.Contains(p.sandbox("logs", id).out, "the end") })
	all, err := filepath.Glob(files)
	for _, file := range all {
		info, statErr := os.Stat(file)
		if err = errors.Join(err, statErr); err == nil {
			size += info.Size()
		}
	}
	if err != nil || len(all) == 0 || size > 11<<20 {
		t.Errorf("%q have %d bytes (%v)", all, size, err)
	}
}
