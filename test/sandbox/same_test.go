package sandbox_test

import (
	"regexp"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

// TestSameAsDocker compares the emulation with the real docker command, call by call on the same
// container.
func TestSameAsDocker(t *testing.T) {
	testkit.Parallel(t)
	p := newInstallation(t)
	name := "hermes-" + p.profile
	run := append([]string{"run", "-d", "--init", "--name", name}, p.labels("default")...)
	run = append(run, "-w", "/tmp", "--network=none", "-e", "LITERAL=1", "--memory", "64m", image(), "sleep", "infinity")
	id := regexp.MustCompile(`^[0-9a-f]{64}\n$`)
	if r := p.call(run...); r.code != 0 || !id.MatchString(r.out) || r.err != "" {
		t.Fatal(r)
	}
	if r := p.call("exec", name, "pwd"); r.out != "/tmp\n" { // The docker command itself enters the root directory.
		t.Error(r)
	}
	probe := []string{"ps", "-a", "--filter", "label=hermes-agent=1", "--filter", "label=hermes-profile=" + p.profile, "--format", "{{.ID}}\t{{.State}}"}
	driver := strings.TrimSpace(docker("info", "--format", "{{.Driver}}").out)
	if driver == "" {
		t.Fatal("the docker command says nothing")
	}
	for _, step := range []struct {
		before []string // Docker calls before this call.
		args   []string
		err    string // Text that both must print on standard error; "" for none.
		free   bool   // Whether the rest of standard error may differ.
	}{
		{args: []string{"info", "--format", "{{.Driver}}"}},
		{args: []string{"image", "inspect", image(), "--format", "{{json .Config.Entrypoint}}"}},
		{args: []string{"image", "inspect", "no-such-image", "--format", "{{json .Config.Entrypoint}}"}, err: "No such image: no-such-image:latest", free: true},
		{args: probe},
		{args: append(probe[:len(probe)-1:len(probe)-1], `{{.ID}}\t{{.State}}`)},
		{args: append(probe[:len(probe)-1:len(probe)-1], "{{.ID}}")},
		{args: []string{"ps", "-a", "--filter", "label=hermes-profile=nobody-" + p.profile, "--format", "{{.ID}}"}},
		{args: []string{"ps", "-a", "--filter", "label=hermes-profile=" + p.profile, "--filter", "status=exited", "--format", "{{.ID}}"}},
		{args: run, err: "Conflict. The container name \"/" + name + "\" is already in use", free: true},
		{args: []string{"run", "-d", "--name", name + "-x", "-v", "/tmp:/x:odd", image(), "true"}, err: "invalid mode: odd", free: true},
		{args: []string{"exec", name, "bash", "-c", "echo out; echo err >&2; echo $LITERAL; exit 7"}, err: "err"},
		{args: []string{"exec", "-e", "A=b c", name, "bash", "-c", "echo $A"}},
		{args: []string{"exec", name, "bash", "-c", "kill -9 $$"}},
		{args: []string{"exec", name, "bash", "-c", "cat; echo $?"}},
		{args: []string{"exec", "no-such-container", "true"}, err: "Error response from daemon: No such container: no-such-container"},
		{args: []string{"inspect", "--format", "{{.State.FinishedAt}}", name}},
		{args: []string{"inspect", "--format", "{{.State.FinishedAt}}", "no-such-container"}, err: "Error: No such object: no-such-container"},
		{args: []string{"start", name}},
		{args: []string{"start", "no-such-container"}, err: "Error response from daemon: No such container: no-such-container", free: true},
		{args: []string{"stop", "-t", "x", name}, err: `invalid argument "x" for "-t, --timeout" flag`, free: true},
		{args: []string{"stop", "no-such-container"}, err: "Error response from daemon: No such container: no-such-container"},
		{args: []string{"rm", name}, err: "You cannot remove a running container", free: true},
		{args: []string{"rm", "-f", "no-such-container"}, err: "Error response from daemon: No such container: no-such-container"},
		{before: []string{"pause", name}, args: []string{"exec", name, "true"}, err: "is paused, unpause the container before exec", free: true},
		{args: probe},
		{before: []string{"unpause", name}, args: []string{"stop", "-t", "0", name}},
		{args: []string{"exec", name, "true"}, err: "is not running", free: true},
		{args: probe},
		{args: []string{"inspect", "--format", "{{.State.FinishedAt}}", name}},
		{args: []string{"exec"}, err: "docker: 'docker exec' requires at least 2 arguments", free: true},
		{args: []string{"exec", name}, err: "docker: 'docker exec' requires at least 2 arguments", free: true},
		{args: []string{"rm", "-f"}, err: "docker: 'docker rm' requires at least 1 argument", free: true},
		{args: []string{"volume", "ls", "--filter", "name=nothing-" + p.profile, "-q"}}, // The docker command itself answers, because hinit made no such volume.
	} {
		if step.before != nil {
			if r := docker(step.before...); r.code != 0 {
				t.Fatal(r)
			}
		}
		ours, theirs := p.call(step.args...), docker(step.args...)
		if ours.out != theirs.out || ours.code != theirs.code {
			t.Errorf("docker %q\n ours: %v\ntheirs: %v", step.args, ours, theirs)
		}
		for who, r := range map[string]result{"ours": ours, "theirs": theirs} {
			if !strings.Contains(r.err, step.err) || !step.free && strings.TrimSpace(r.err) != strings.TrimSpace(step.err) {
				t.Errorf("docker %q: %s says %q, and not %q", step.args, who, r.err, step.err)
			}
		}
	}
	if r := p.call("rm", name); r.code != 0 || r.out != name+"\n" {
		t.Error(r)
	}
	if r := docker("inspect", name); r.code == 0 {
		t.Error("it is still there")
	}
}
