package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// hasStarted reports whether the startup probe of a pod's first container has passed.
func hasStarted(p *corev1.Pod) bool {
	return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].Started != nil && *p.Status.ContainerStatuses[0].Started
}

// lastTermination returns how the previous container of a pod ended, or nil.
func lastTermination(p *corev1.Pod) *corev1.ContainerStateTerminated {
	if len(p.Status.ContainerStatuses) == 0 {
		return nil
	}
	return p.Status.ContainerStatuses[0].LastTerminationState.Terminated
}

// failedProbes returns the messages of failed probes of a pod.
func (b *testBed) failedProbes(pod string) (messages string) {
	b.Helper()
	var events corev1.EventList
	if err := b.Get(b.Context(), "/api/v1/namespaces/"+b.ns+"/events", &events); err != nil {
		return err.Error()
	}
	for _, e := range events.Items {
		if e.InvolvedObject.Name == pod && e.Reason == "Unhealthy" {
			messages += e.Message + "\n"
		}
	}
	return messages
}

// TestASlowBootRestartsNoPod checks that no probe restarts a pod whose boot hook takes longer than the liveness and
// readiness probes wait.
func TestASlowBootRestartsNoPod(t *testing.T) {
	const hook, least = 9 * time.Second, 8 * time.Second
	b := withNode(t, "slow")
	b.volumes(2, corev1.ReadWriteOnce)
	config := fmt.Sprintf("boot: {hooks: [{command: [sleep, %q]}]}\n", fmt.Sprint(hook.Seconds()))
	b.createPodWithValues(map[string]any{"config": config}, "patient", nil)
	// BootSeconds 10 allows five failed probes; here a probe runs each second.
	b.createPodWithValues(map[string]any{"config": config, "bootSeconds": 10}, "hasty", nil)
	b.eventually("the hook runs", func() string {
		if output := b.failedProbes("patient"); !strings.Contains(output, "Startup probe failed: not started: the container is booting") {
			return "said of its probes: " + output
		}
		return ""
	})
	if p := b.pod("patient"); hasStarted(p) || isPodReady(p) {
		t.Errorf("the hook runs, and the pod is started: %v, Ready: %v", hasStarted(p), isPodReady(p))
	}
	p := b.awaitReady("patient")
	if runs := p.Status.ContainerStatuses[0].State.Running; runs == nil || time.Since(runs.StartedAt.Time) < least {
		t.Errorf("Ready before the hook ended: %+v", runs)
	}
	if output := b.failedProbes("patient"); restarts(p) != 0 || strings.Contains(output, "Liveness") {
		t.Errorf("%d restarts of the pod whose boot took %s; its probes: %s", restarts(p), hook, output)
	}
	b.eventually("the boot that takes too long begins again", func() string {
		if p := b.pod("hasty"); restarts(p) == 0 || lastTermination(p) == nil {
			return p.Status.String()
		}
		return ""
	})
	if end := lastTermination(b.pod("hasty")); !strings.Contains(end.Message, "hook 1 of 1 (sleep), ") {
		t.Errorf("its last words do not name the hook: %s", end.Message)
	}
}
