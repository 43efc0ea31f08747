package test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hinit/kubernetes/internal/cluster"
	"hinit/kubernetes/internal/engine"
)

// sandboxPatch makes the sandbox service use the test image.
const sandboxPatch = `patches:
- patch: |-
    apiVersion: apps/v1
    kind: StatefulSet
    metadata: {name: agents}
    spec:
      template:
        spec:
          initContainers:
          - name: sandboxes
            env: [{name: HINIT_SANDBOX_IMAGES, value: hinit-demo}%s]
`

// agentPod is an agents' pod whose commands run in sandboxes.
type agentPod struct {
	*testBed
	t      *testing.T
	volume string // Directory of the agents' volume on this machine.
}

// withSandboxes applies the manifests with the sandbox component, on the first node. more are
// further variables of the service.
func withSandboxes(t *testing.T, more ...string) *agentPod {
	t.Helper()
	b := withNode(t, manifestNamespace)
	if b.nodes[2] != nil { // Another test may have started the node already.
		b.mustRun("cordon", "node2")
		t.Cleanup(func() { b.mustRun("uncordon", "node2") })
	}
	volume := b.volumes(1, corev1.ReadWriteOnce)[0]
	extra := ""
	for _, m := range more {
		name, value, _ := strings.Cut(m, "=")
		extra += fmt.Sprintf(", {name: %s, value: %q}", name, value)
	}
	b.mustRun("apply", "-k", b.kustomization("sandboxes", fmt.Sprintf(sandboxPatch, extra)))
	b.awaitReady("agents-0")
	a := &agentPod{b, t, volume}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(b.run("logs", "agents-0", "-c", "sandboxes").output)
		}
	})
	return a
}

func (a *agentPod) docker(words ...string) result {
	return a.run(append([]string{"exec", "agents-0", "-c", "agents", "--", "/opt/hinit/docker"}, words...)...)
}

// runSandbox runs the command line with which the agent creates its container.
func (a *agentPod) runSandbox(name string, more ...string) result {
	return a.docker(runArgs(name, more...)...)
}

func runArgs(name string, more ...string) []string {
	words := []string{
		"run", "-d", "--init", "--name", name, "--label", "hermes-agent=1", "--label", "hermes-task-id=default", "--label", "hermes-profile=default", "-w", "/root",
		"--cap-drop", "ALL", "--cap-add", "DAC_OVERRIDE", "--cap-add", "CHOWN", "--cap-add", "FOWNER", "--cap-add", "SETUID", "--cap-add", "SETGID",
		"--security-opt", "no-new-privileges", "--pids-limit", "256", "--tmpfs", "/tmp:rw,nosuid,size=64m", "--tmpfs", "/var/tmp:rw,noexec,nosuid,size=32m",
		"--tmpfs", "/run:rw,noexec,nosuid,size=16m", "--cpus", "1", "--memory", "128m",
		"-v", "/opt/data/sandboxes/docker/default/home:/root", "-v", "/opt/data/sandboxes/docker/default/workspace:/workspace",
	}
	return append(append(words, more...), "hinit-demo", "sleep", "infinity")
}

// dockerEach runs several docker command lines in one call of kubectl.
func (a *agentPod) dockerEach(calls [][]string) []result {
	return a.runEach("/opt/hinit/docker", calls)
}

func (a *agentPod) runEach(program string, calls [][]string) (out []result) {
	a.t.Helper()
	const mark = "\n=== code "
	var script strings.Builder
	for _, words := range calls {
		script.WriteString(program)
		for _, word := range words {
			script.WriteString(" '" + strings.ReplaceAll(word, "'", `'\''`) + "'")
		}
		script.WriteString(" < /dev/null 2>&1; printf '\\n=== code %s\\n' $?\n")
	}
	r := a.run("exec", "agents-0", "-c", "agents", "--", "sh", "-c", script.String())
	rest := r.output
	for _, words := range calls {
		output, after, found := strings.Cut(rest, mark)
		code, after, _ := strings.Cut(after, "\n")
		n, err := strconv.Atoi(code)
		if !found || err != nil {
			a.t.Fatalf("%q has no end: %v, %v", words, err, r)
		}
		out, rest = append(out, result{append([]string{program}, words...), output, n}), after
	}
	return out
}

func (a *agentPod) shellIn(ref, line string) result {
	return a.docker("exec", ref, "sh", "-c", line)
}

func (a *agentPod) createdID(r result) (id string) {
	a.t.Helper()
	id = strings.TrimSpace(r.output)
	if r.exitCode != 0 || strings.ContainsAny(id, " \n") {
		a.t.Fatal(r)
	}
	return id
}

// objectName returns the name of the pod or Sandbox for a docker name.
func objectName(name string) string { return engine.ObjectName(name) }

// awaitNoPod waits until a sandbox has no pod.
func (a *agentPod) awaitNoPod(name string) {
	a.t.Helper()
	a.eventually(name+" is gone", func() string {
		if p := a.pod(objectName(name)); p.Name != "" {
			return string(p.Status.Phase)
		}
		return ""
	})
}

// killMatching kills all pods' processes whose command lines contain all the words. It returns their
// number.
func killMatching(words ...string) (n int) {
	for pid, command := range processes() {
		found := true
		for _, word := range words {
			found = found && strings.Contains(command, word)
		}
		if found && syscall.Kill(pid, syscall.SIGKILL) == nil {
			n++
		}
	}
	return n
}

// Parts of command lines that identify processes: the sandbox service, and in each sandbox process 1 and the helper.
const (
	serving  = "hinit-sandbox\x00serve"
	gateInit = "/gate\x00gate-init\x00"
	inside   = "/proc/self/exe\x00serve\x00"
)

// TestTheAgentsDockerRunsInPods checks create, exec, reuse, stop, start and remove, with the files of the agent.
func TestTheAgentsDockerRunsInPods(t *testing.T) {
	a := withSandboxes(t)
	began := time.Now()
	id := a.createdID(a.runSandbox("hermes-1a2b3c4d", "-e", "WORD=of $(HOME)"))
	t.Logf("made in %v, which includes the trial of user namespaces", time.Since(began))
	line := "id -u; pwd; echo $WORD; echo kept > file; echo gone > /tmp/file; ls -d /run/secrets/kubernetes.io /var/run/secrets/kubernetes.io 2>&1"
	if r := a.shellIn(id, line); !strings.HasPrefix(r.output, "10000\n/root\nof $(HOME)\nls: /run/secrets/kubernetes.io: No such file") {
		t.Error(r)
	}
	if text, err := os.ReadFile(a.volume + "/sandboxes/docker/default/home/file"); string(text) != "kept\n" {
		t.Error("the file of the sandbox is not on the agent's volume:", string(text), err)
	}
	find := []string{"ps", "-a", "--filter", "label=hermes-agent=1", "--filter", "label=hermes-task-id=default", "--filter", "label=hermes-profile=default", "--format", "{{.ID}}\t{{.State}}", "--no-trunc"}
	if r := a.docker(find...); r.output != id+"\trunning\n" {
		t.Error(r)
	}
	if r := a.runSandbox("hermes-1a2b3c4d"); r.exitCode != 125 || !strings.Contains(r.output, "name") {
		t.Error("a second one of the same name:", r)
	}

	if killMatching(serving) != 1 {
		t.Error("there is not one service")
	}
	var r result
	a.eventually("the service serves again", func() string {
		r = a.shellIn(id, "cat /tmp/file")
		return map[bool]string{false: r.String()}[r.exitCode == 0]
	})
	if r.output != "gone\n" {
		t.Error("after a restart of the service it is another container:", r)
	}

	if r := a.docker("stop", "-t", "1", id); r.exitCode != 0 {
		t.Fatal(r)
	}
	if r := a.shellIn(id, "true"); r.exitCode != 1 || !strings.Contains(r.output, "is not running (the sandbox was stopped)") {
		t.Error(r)
	}
	if r := a.docker("start", id); r.exitCode != 0 {
		t.Fatal(r)
	}
	if r := a.shellIn(id, "cat file; cat /tmp/file 2>&1"); !strings.HasPrefix(r.output, "kept\ncat: can't open '/tmp/file'") { // kubectl keeps the two output streams apart.
		t.Error(r)
	}
	if r := a.docker("rm", "-f", id); r.exitCode != 0 {
		t.Error(r)
	}
	a.awaitNoPod("hermes-1a2b3c4d")
	if r := a.shellIn(id, "true"); r.exitCode != 1 || !strings.Contains(r.output, "No such container") {
		t.Error(r)
	}
	if pods := a.mustRun("get", "pods", "-o", "name"); pods != "pod/agents-0\n" {
		t.Error("something is left:", pods)
	}
	t.Log(a.mustRun("logs", "agents-0", "-c", "sandboxes"))
}

// TestTheCommandLineOfSandboxes checks hinit sandbox on a cluster: sessions, background jobs, and
// copies of files in both directions.
func TestTheCommandLineOfSandboxes(t *testing.T) {
	cluster.SkipIfShort(t)
	a := withSandboxes(t, "TERMINAL_DOCKER_IMAGE=hinit-demo", "TERMINAL_CONTAINER_MEMORY=128")
	hinit := func(words ...string) result {
		return a.run(append([]string{"exec", "agents-0", "-c", "agents", "--", "hinit", "sandbox"}, words...)...)
	}
	if r := hinit("exec", "cd /workspace && export WORD=kept && pwd"); r.output != "/workspace\n" {
		t.Error(r)
	}
	if r := hinit("exec", "pwd; echo $WORD"); r.output != "/workspace\nkept\n" {
		t.Error("the session did not continue:", r)
	}
	if r := hinit("exec", "--background", "sleep 1; echo job > /workspace/job"); r.exitCode != 0 {
		t.Error(r)
	}
	if r := hinit("ls"); r.exitCode != 0 || !strings.Contains(r.output, "hermes-") || !strings.Contains(r.output, "running") {
		t.Error(r)
	}
	if r := hinit("exec", "--timeout", "2s", "sleep 100 & sleep 100"); r.exitCode != 124 {
		t.Error("out of time:", r)
	}
	if r := hinit("exec", "ps | grep -c '[s]leep 100'"); !strings.HasPrefix(r.output, "0\n") {
		t.Error("the tree did not end with its command:", r)
	}
	a.run("exec", "agents-0", "-c", "agents", "--", "sh", "-c", "echo file > /opt/data/in; hinit sandbox cp /opt/data/in :/workspace/in; hinit sandbox cp :/workspace/job /opt/data/out")
	if text, err := os.ReadFile(a.volume + "/out"); string(text) != "job\n" {
		t.Errorf("out of the sandbox came %q, %v", text, err)
	}
	if r := hinit("exec", "cat /workspace/in"); r.output != "file\n" {
		t.Error(r)
	}
	if r := hinit("rm"); r.exitCode != 0 {
		t.Error(r)
	}
	a.eventually("removed", func() string { return a.mustRun("get", "pods", "-l", "hinit.dev/sandbox", "-o", "name") })
}

// TestAWarmSandboxIsFast compares commands in a sandbox with docker version, which starts the same
// program and sends the service one request. The two alternate, so that load affects both alike.
func TestAWarmSandboxIsFast(t *testing.T) {
	cluster.SkipIfShort(t)
	a := withSandboxes(t)
	id := a.createdID(a.runSandbox("hermes-1a2b3c4d"))
	a.shellIn(id, "true")
	docker := a.localDocker()
	timed := func(words ...string) time.Duration {
		t.Helper()
		cmd := docker(words...)
		began := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("docker %q: %v: %s", words, err, out)
		}
		return time.Since(began)
	}
	const most, least = 10 * time.Millisecond, 200
	var trips, commands []time.Duration
	for quickest := most + 1; quickest > most && len(trips) < 5*least; quickest = commands[0] - trips[0] {
		for range least {
			trips, commands = append(trips, timed("version")), append(commands, timed("exec", id, "true"))
		}
		slices.Sort(trips)
		slices.Sort(commands)
	}
	quickest, half := commands[0]-trips[0], len(trips)/2
	t.Logf("of %d, a round trip takes %v at least and %v in the middle, a command %v and %v", len(trips), trips[0], trips[half], commands[0], commands[half])
	t.Logf("beside a round trip, a command takes %v at least and %v in the middle", quickest, commands[half]-trips[half])
	if quickest > most {
		t.Errorf("beside a round trip, the quickest command takes %v, and the bound is %v", quickest, most)
	}
	for pid, line := range processes() {
		if strings.Contains(line, serving) {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // After an error, the log only lacks a line.
			_, rss, _ := strings.Cut(string(text), "VmRSS:")
			rss, _, _ = strings.Cut(rss, "\n")
			t.Log("the service has", strings.TrimSpace(rss))
		}
	}
}

// localDocker returns the agents' docker command as a process of this test, which saves the start of
// kubectl on each call.
func (a *agentPod) localDocker() func(words ...string) *exec.Cmd {
	a.t.Helper()
	pids := initPIDs()
	if len(pids) != 1 {
		a.t.Fatal("the inits of pods are", pids)
	}
	return func(words ...string) *exec.Cmd {
		cmd := exec.Command("/opt/hinit/docker", words...)
		cmd.Path, cmd.Dir = "/opt/hinit/docker", "/"
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pids[0])) // After an error, the call below fails too.
		cmd.Env = strings.Split(strings.TrimSuffix(string(environ), "\x00"), "\x00")
		as := &syscall.Credential{Uid: 10000, Gid: 10000}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: fmt.Sprintf("/proc/%d/root", pids[0]), Credential: as}
		return cmd
	}
}
