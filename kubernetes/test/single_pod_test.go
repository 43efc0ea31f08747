package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/kubernetes/internal/cluster"
	"hinit/kubernetes/internal/pool"
)

// TestAProfileGetsAPodOfItsOwnOnTheCluster moves a profile into its own pod and back, first with a
// StatefulSet and then with a Sandbox. The gateway must never run twice, and its files must move
// along.
func TestAProfileGetsAPodOfItsOwnOnTheCluster(t *testing.T) {
	cluster.SkipIfShort(t)
	b, dir := withFleet(t, 2)
	own := pool.SinglePodName("pool", "coder")
	for name, text := range map[string]string{
		"kustomization.yaml": "resources: [deploy/fleet]\nimages: [{name: hinit-demo, newName: registry.example.org/hermes-hinit, newTag: \"1\"}]\n",
		"pool.yaml": "apiVersion: agents.hinit.dev/v1alpha1\nkind: AgentPool\nmetadata: {name: pool}\n" +
			"spec: {image: \"registry.example.org/hermes-hinit:1\", hosts: {min: 1, max: 1}, resources: {memory: 256Mi, cpu: 50m}, volume: {size: 1Gi}}\n---\n" +
			"apiVersion: agents.hinit.dev/v1alpha1\nkind: AgentProfile\nmetadata: {name: coder}\nspec: {pool: pool}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.shell(dir, "kubectl apply -k . && kubectl create namespace fleet && kubectl label namespace fleet pod-security.kubernetes.io/enforce=restricted && kubectl -n fleet apply -f pool.yaml")
	b.shell(dir, "kubectl -n fleet wait agentprofile coder --for=jsonpath='{.status.ready}'=true --timeout=3m")
	const soul = "/opt/data/profiles/coder/SOUL.md"
	b.shell(dir, "kubectl -n fleet exec pool-0 -c agents -- sh -c 'echo learnt >"+soul+"'")
	place := func(where, host string) {
		t.Helper()
		began := time.Now()
		w := watchGateways("coder")
		b.mustRun("patch", "agentprofile", "coder", "--type=merge", "-p", `{"spec": {"placement": "`+where+`"}}`)
		b.eventually("coder ready on "+host, func() string {
			got := b.mustRun("get", "agentprofile", "coder", "-o", "jsonpath={.status.host} {.status.ready} {.status.move} {.status.message}")
			if strings.TrimSpace(got) == host+" true" && len(gatewayPIDs()["coder"]) == 1 {
				return ""
			}
			return got
		})
		gap, _ := w.end()
		t.Logf("%s after %.1f s, without a gateway for %.1f s", where, time.Since(began).Seconds(), gap.Seconds())
		if w.duplicates > 0 {
			t.Errorf("%d moments with two gateways", w.duplicates)
		}
		if got := b.shell(dir, "kubectl -n fleet exec "+host+" -c agents -- cat "+soul); got != "learnt\n" {
			t.Errorf("on %s the soul is %q", host, got)
		}
	}
	for _, maker := range []string{"statefulset.apps/" + strings.TrimSuffix(own, "-0"), "sandbox.agents.x-k8s.io/" + own} {
		if strings.HasPrefix(maker, "sandbox") {
			b.startController(t, false)
		}
		place("pod", own)
		if got := b.mustRun("get", maker, "-o", "name"); strings.TrimSpace(got) != maker {
			t.Errorf("there is %q and no %s", got, maker)
		}
		if got := b.shell(dir, "hinit-fleet top --once -n fleet; hinit-fleet logs coder -n fleet; hinit-fleet explain coder -n fleet"); !strings.Contains(got, "of coder alone") ||
			!strings.Contains(got, "gateway of profile coder is running") || !strings.Contains(got, "a pod of its own, "+own) {
			t.Error(got)
		}
		place("packed", "pool-0")
		b.eventually("the pod gone", func() string {
			return b.run("get", "pod", own, "--ignore-not-found", "-o", "name").output + b.run("get", maker, "--ignore-not-found", "-o", "name").output
		})
		b.mustRun("get", "pvc", "data-"+own)
	}
	// An image change works in a Sandbox's pod as in a host.
	place("pod", own)
	uid := b.pod(own).UID
	if got := b.shell(dir, "hinit-fleet rollout pool registry.example.org/hermes-hinit:2 -n fleet | tail -n 1"); !strings.Contains(got, "2 of 2 hosts have") || b.pod(own).UID != uid {
		t.Error(got)
	}
	b.eventually("coder ready with the new image", func() string {
		return strings.TrimPrefix(b.mustRun("get", "agentprofile", "coder", "-o", "jsonpath={.status.ready}"), "true")
	})
	b.mustRun("delete", "agentprofile", "coder", "--timeout=1m")
	b.eventually("the pod gone with its profile", func() string { return b.run("get", "pod", own, "--ignore-not-found", "-o", "name").output })
}
