package test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hinit/kubernetes/internal/cluster"
)

const (
	base = "../deploy/base"

	// maxGap is how long a gateway may be missing. On a quiet machine it is a few seconds.
	maxGap = time.Minute
)

// TestTheServerTakesTheManifests checks that the API server accepts the base and each component, with its defaults and
// admission. It needs no node.
func TestTheServerTakesTheManifests(t *testing.T) {
	b := withServer(t)
	b.ns = manifestNamespace
	b.mustRun("apply", "-f", base+"/namespace.yaml")
	components, err := filepath.Glob("../deploy/components/*")
	if err != nil || len(components) == 0 {
		t.Fatal(err, components)
	}
	for _, component := range append(components, "") {
		dir := b.kustomization(component)
		if strings.HasSuffix(component, "/metrics") {
			continue // The server lacks the kind PodMonitor of the Prometheus Operator.
		}
		out := b.mustRun("apply", "-k", dir, "--dry-run=server", "--validate=strict")
		if !strings.Contains(out, "statefulset.apps/agents created (server dry run)") || strings.Contains(out, "Warning") {
			t.Errorf("component %q:\n%s", component, out)
		}
	}
	r := b.runWithInput(`
apiVersion: v1
kind: Pod
metadata: {name: wrong, namespace: agents}
spec: {hostPID: true, containers: [{name: c, image: x}]}
`, "apply", "--dry-run=server", "-f", "-")
	if r.exitCode == 0 || !strings.Contains(r.output, "violates PodSecurity") {
		t.Error("a pod with the host's processes was taken:", r)
	}
}

// kustomization writes a kustomization of the base with components, which commas separate ("" for none), and returns its
// directory.
func (b *testBed) kustomization(component string, more ...string) string {
	b.Helper()
	dir := b.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS("../deploy")); err != nil {
		b.Fatal(err)
	}
	text := "resources: [deploy/base]\n" + strings.Join(more, "\n") + "\n"
	if component != "" {
		text += "components: [deploy/components/" + strings.ReplaceAll(filepath.Base(component), ",", ", deploy/components/") + "]\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	return dir
}

// TestApplyAndNothingElse checks that the tutorial's commands suffice, and that the StatefulSet's
// pod has no unexpected events.
func TestApplyAndNothingElse(t *testing.T) {
	b := withNode(t, manifestNamespace)
	volume := b.volumes(1, corev1.ReadWriteOnce)[0]
	began := time.Now()
	b.mustRun("apply", "-k", base)
	b.mustRun("rollout", "status", "statefulset/agents", "--timeout=3m")
	t.Logf("node Ready after %v; from apply to Ready: %v", b.readyTime.Round(10*time.Millisecond), time.Since(began).Round(10*time.Millisecond))
	pod := b.awaitReady("agents-0")
	for _, words := range [][]string{{"hermes", "profile", "create", "coder"}, {"hermes", "profile", "create", "writer"}, {"hinit", "start", "coder", "writer"}} {
		if r := b.execInPod("agents-0", words...); r.exitCode != 0 {
			t.Fatal(r)
		}
	}
	profiles := []string{"default", "coder", "writer"}
	running := func() string {
		seen := gatewayPIDs()
		for _, p := range profiles {
			if len(seen[p]) != 1 {
				return "gateway of " + p
			}
		}
		return ""
	}
	b.eventually("all gateways run", running)
	secret := filepath.Join(volume, "profiles/coder/.env")
	if err := os.WriteFile(secret, []byte("TOKEN=x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(secret, 10000, 10000); err != nil {
		t.Fatal(err)
	}

	lost := func(what string, most time.Duration, do func()) {
		t.Helper()
		w := watchGateways(profiles...)
		do()
		b.eventually("all gateways run after "+what, running)
		gap, many := w.end()
		t.Logf("%s: %v without a gateway (%v)", what, gap, w)
		if many > 1 {
			t.Errorf("%s: %d gateways of one profile", what, many)
		}
		if gap > most {
			t.Errorf("%s: %v without a gateway", what, gap)
		}
	}
	lost("deleting the pod", maxGap, func() {
		b.mustRun("delete", "pod", "agents-0")
		pod = b.awaitReady("agents-0", pod)
	})
	lost("kill -9 of PID 1", maxGap, func() {
		for _, pid := range initPIDs() {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		b.eventually("restarted", func() string {
			if p := b.pod("agents-0"); restarts(p) != 1 || !isPodReady(p) {
				return p.Status.String()
			}
			return ""
		})
	})
	if last := b.pod("agents-0").Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || !strings.HasPrefix(last.Message, "killed from outside") {
		t.Errorf("the last words are %+v", last)
	}
	lost("an upgrade", maxGap, func() {
		b.mustRun("set", "image", "statefulset/agents", "agents="+cluster.NextImage)
		b.mustRun("rollout", "status", "statefulset/agents", "--timeout=3m")
		pod = b.awaitReady("agents-0", pod)
	})
	lost("a rollback", maxGap, func() {
		b.mustRun("rollout", "undo", "statefulset/agents")
		b.mustRun("rollout", "status", "statefulset/agents", "--timeout=3m")
		pod = b.awaitReady("agents-0", pod)
	})
	if info, err := os.Stat(secret); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of a profile's .env is not 0600 any more: %v, %v", info.Mode(), err)
	}
}
