package test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// initOf returns the pid of a pod's init, outside of the pod.
func (b *testBed) initOf(pod string) int {
	b.Helper()
	for _, pid := range initPIDs() {
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err == nil && strings.Contains("\x00"+string(environ), "\x00HOSTNAME="+pod+"\x00") {
			return pid
		}
	}
	b.Fatalf("no init of the pod %s", pod)
	return 0
}

// TestKubectlInAPod checks the kubectl commands for a pod: logs, exec, cp, debug and port-forward.
func TestKubectlInAPod(t *testing.T) {
	b := withNode(t, "tools")
	volume := b.volumes(1, corev1.ReadWriteOnce)[0]
	b.createPod("one", func(s *corev1.PodSpec) {
		s.Containers[0].Env = append(s.Containers[0].Env, corev1.EnvVar{Name: "HINIT_WEB", Value: "1"})
	})
	b.awaitReady("one")
	if r := b.execInPod("one", "hermes", "profile", "create", "coder"); r.exitCode != 0 {
		t.Fatal(r)
	}
	if r := b.execInPod("one", "hermes", "chat", "-q", "hello"); r.exitCode != 0 || !strings.Contains(r.output, "echo: hello") {
		t.Error(r)
	}
	if out := b.mustRun("logs", "one"); !strings.Contains(out, "[hinit]") {
		t.Error("the log of the pod:", out)
	}
	local := filepath.Join(t.TempDir(), "SOUL.md")
	if err := os.WriteFile(local, []byte("a poet\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.mustRun("cp", local, "one:/opt/data/profiles/coder/SOUL.md")
	if text, err := os.ReadFile(filepath.Join(volume, "profiles/coder/SOUL.md")); string(text) != "a poet\n" {
		t.Error("copied:", string(text), err)
	}
	b.mustRun("cp", "one:/opt/data/profiles/coder/SOUL.md", local+"2")

	r := b.run("debug", "one", "--image=hinit-demo", "--image-pull-policy=IfNotPresent", "--target=agents", "--profile=restricted", "--custom="+b.debugUser(), "-c=look", "--", "hinit", "status")
	if r.exitCode != 0 {
		t.Fatal(r)
	}
	b.eventually("hinit in the debug container has answered", func() string {
		out := b.run("logs", "one", "-c", "look").output
		if !strings.Contains(out, "gateway-default") {
			return out
		}
		return ""
	})
	b.withPortForward("one", 9120, func(url string) {
		answer, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || !strings.Contains(strings.ToLower(string(text)), "<html") {
			t.Errorf("the status page: %s, %v\n%.300s", answer.Status, err, text)
		}
	})
}

// debugUser writes a profile for kubectl debug that sets the container's user, and returns its
// path.
func (b *testBed) debugUser() string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "user.yaml")
	if err := os.WriteFile(path, []byte("securityContext: {runAsUser: 10000, runAsGroup: 10000}\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	return path
}

// withPortForward calls do with a URL that leads to a port of a pod.
func (b *testBed) withPortForward(pod string, port int, do func(url string)) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := b.Kubectl(ctx, "--namespace", b.ns, "port-forward", "pod/"+pod, ":"+strconv.Itoa(port))
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	found := regexp.MustCompile(`127\.0\.0\.1:[0-9]+`).FindString(line)
	if found == "" {
		b.Fatalf("port-forward says %q, %v", line, err)
	}
	do("http://" + found + "/")
}

// TestTheLastWords checks the termination message of a pod that exits by itself.
func TestTheLastWords(t *testing.T) {
	b := withNode(t, "words")
	b.volumes(1, corev1.ReadWriteOnce)
	b.createPod("one", func(s *corev1.PodSpec) {
		s.Containers[0].Args = []string{"sh", "-c", "sleep 2; echo the disk is on fire >&2; exit 3"}
		s.RestartPolicy = corev1.RestartPolicyNever
	})
	var end *corev1.ContainerStateTerminated
	b.eventually("ended", func() string {
		p := b.pod("one")
		if len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Terminated == nil {
			return string(p.Status.Phase)
		}
		end = p.Status.ContainerStatuses[0].State.Terminated
		return ""
	})
	if end.ExitCode != 3 || !strings.HasPrefix(end.Message, "exit code 3") {
		t.Errorf("exit code %d, message %q", end.ExitCode, end.Message)
	}
	if out := b.mustRun("describe", "pod", "one"); !strings.Contains(out, "exit code 3, after:") {
		t.Error(out)
	}
}
