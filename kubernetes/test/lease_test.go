package test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hinit/kubernetes/internal/cluster"
)

// TestAStandbyTakesOverByALease checks the component standby: two restricted pods on two nodes, and a Lease that
// decides which of them serves.
func TestAStandbyTakesOverByALease(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withNode(t, manifestNamespace)
	b.startSecondNode()
	b.volumes(1, corev1.ReadWriteMany)
	b.mustRun("apply", "-k", b.kustomization("standby"))
	var serves, waits string
	pair := func() string {
		serves, waits = "", ""
		for _, name := range []string{"agents-0", "agents-1"} {
			p := b.pod(name)
			switch {
			case isPodReady(p):
				serves = name
			case p.Status.Phase == corev1.PodRunning && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Started != nil && *p.Status.ContainerStatuses[0].Started:
				waits = name
			}
		}
		if serves == "" || waits == "" {
			return "serves: " + serves + ", waits: " + waits
		}
		return ""
	}
	b.eventually("one serves and one waits", pair)
	holder := func() string { return b.mustRun("get", "lease", "agents", "-o", "jsonpath={.spec.holderIdentity}") }
	if has := holder(); has != string(b.pod(serves).UID) {
		t.Errorf("%s has the Lease, and %s serves", has, serves)
	}
	if r := b.execInPod(waits, "hinit", "status"); r.exitCode != 0 || !strings.Contains(r.output, "is held by another hinit, by its lease "+string(b.pod(serves).UID)) {
		t.Error(r)
	}
	if r := b.run("auth", "can-i", "--list", "--as=system:serviceaccount:agents:agents"); strings.Contains(r.output, "secrets") || strings.Contains(r.output, "pods") || !strings.Contains(r.output, "leases.coordination.k8s.io") {
		t.Error("the token of the pods may do this:", r)
	}
	for _, no := range [][]string{{"get", "leases/other"}, {"delete", "leases/agents"}, {"list", "leases"}, {"get", "secrets"}} {
		if r := b.run("auth", "can-i", no[0], no[1], "--as=system:serviceaccount:agents:agents"); !strings.HasPrefix(r.output, "no") {
			t.Error(r)
		}
	}
	for _, end := range []struct {
		what string
		most time.Duration
		do   func(name string)
	}{
		{"delete", 10 * time.Second, func(name string) { b.mustRun("delete", "pod", name) }},
		{"a program that is stopped", 17 * time.Second, func(name string) {
			init := b.initOf(name)
			for pid, command := range processes() {
				if strings.HasPrefix(command, "hinit-lease-kubernetes") && parentOf(pid) == init {
					if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
						t.Fatal(err)
					}
					// Kill only the stopped program; process 1 ends with its pod.
					t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
				}
			}
		}},
	} {
		b.eventually("one serves and one waits", pair)
		old, next := serves, waits
		w := watchGateways("default")
		end.do(old)
		b.eventually(next+" serves after "+end.what, func() string {
			if p := b.pod(next); !isPodReady(p) {
				return p.Status.String()
			}
			return ""
		})
		gap, many := w.end()
		t.Logf("%s of the pod that serves: %v without a gateway", end.what, gap)
		if gap > end.most || many > 1 {
			t.Errorf("%s: %v without a gateway, and %d at once", end.what, gap, many)
		}
		if has := holder(); has != string(b.pod(next).UID) {
			t.Errorf("%s has the Lease, and %s serves", has, next)
		}
	}
}
