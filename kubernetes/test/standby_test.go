package test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"hinit/kubernetes/internal/cluster"
)

// TestAStandbyTakesOver checks standby-without-lease with two pods and one volume. The test ends
// the serving pod in three ways, and the other must take over.
func TestAStandbyTakesOver(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withNode(t, manifestNamespace)
	b.startSecondNode()
	b.volumes(1, corev1.ReadWriteMany)
	b.mustRun("apply", "-k", b.kustomization("standby-without-lease"))
	serving := func() (serves, waits string) {
		for _, name := range []string{"agents-0", "agents-1"} {
			switch p := b.pod(name); {
			case isPodReady(p):
				serves = name
			case condition(p, corev1.ContainersReady):
			case p.Status.Phase == corev1.PodRunning && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Started != nil && *p.Status.ContainerStatuses[0].Started:
				waits = name
			}
		}
		return serves, waits
	}
	var serves, waits string
	pair := func() string {
		if serves, waits = serving(); serves == "" || waits == "" {
			return "serves: " + serves + ", waits: " + waits
		}
		return ""
	}
	b.eventually("one serves and one waits", pair)
	began := b.pod(waits)
	b.consistently(15*time.Second, func() string { // A shared check for both probes killed a standby after 12 s.
		if p := b.pod(waits); restarts(p) != 0 || isPodReady(p) || p.UID != began.UID {
			return fmt.Sprintf("the standby: %d restarts, Ready %v", restarts(p), isPodReady(p))
		}
		return ""
	})
	if r := b.execInPod(waits, "hinit", "status"); r.exitCode != 0 || !strings.Contains(r.output, "is held by another hinit") {
		t.Error(r)
	}
	for what, end := range map[string]func(string){
		"delete": func(name string) { b.mustRun("delete", "pod", name) },
		"kill -9 of PID 1": func(name string) {
			if err := syscall.Kill(b.initOf(name), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
	} {
		b.eventually("one serves and one waits", pair)
		old, next := serves, waits
		w := watchGateways("default")
		end(old)
		b.eventually(next+" serves after "+what, func() string {
			if s, _ := serving(); s != next {
				return "serves: " + s
			}
			return ""
		})
		gap, many := w.end()
		t.Logf("%s of the pod that serves: %v without a gateway", what, gap)
		if gap > maxGap || many > 1 {
			t.Errorf("%s: %v without a gateway, and %d at once", what, gap, many)
		}
	}
}

// TestADrainedNode checks that the pod moves to the other node when its node is drained.
func TestADrainedNode(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withNode(t, manifestNamespace)
	b.startSecondNode()
	b.volumes(1, corev1.ReadWriteOnce)
	b.mustRun("apply", "-k", base)
	pod := b.awaitReady("agents-0")
	w := watchGateways("default")
	t.Cleanup(func() { b.mustRun("uncordon", pod.Spec.NodeName) })
	b.mustRun("drain", pod.Spec.NodeName, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=app.kubernetes.io/name=agents", "--timeout=3m")
	moved := b.awaitReady("agents-0", pod)
	gap, many := w.end()
	t.Logf("a drained node: %v without a gateway", gap)
	if moved.Spec.NodeName == pod.Spec.NodeName || many > 1 || gap > maxGap {
		t.Errorf("from %s to %s, %v without a gateway, %d at once", pod.Spec.NodeName, moved.Spec.NodeName, gap, many)
	}
}

// TestALostKubelet checks that a container keeps running while the kubelet is down.
func TestALostKubelet(t *testing.T) {
	cluster.SkipIfShort(t)
	b := withNode(t, "lost")
	b.volumes(1, corev1.ReadWriteOnce)
	b.createPod("one", func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"kubernetes.io/hostname": "node1"} })
	pod := b.awaitReady("one")
	w := watchGateways("default")
	b.nodes[1].KillKubelet()
	if err := b.nodes[1].StartKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.eventually("Ready again", func() string {
		if p := b.pod("one"); !isPodReady(p) || p.UID != pod.UID || restarts(p) != 0 {
			return p.Status.String()
		}
		return ""
	})
	if gap, many := w.end(); gap > time.Second || many > 1 {
		t.Errorf("%v without a gateway, %d at once", gap, many)
	}
}
