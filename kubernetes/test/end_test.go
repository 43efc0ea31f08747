package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// keepObject keeps the object of a pod until the test ends, because its status says how the
// containers ended.
func (b *testBed) keepObject(pod string) {
	b.Helper()
	finalizers := func(list string) []string {
		return []string{"patch", "pod", pod, "--type=merge", "-p", `{"metadata":{"finalizers":` + list + `}}`}
	}
	b.mustRun(finalizers(`["hinit.dev/test"]`)...)
	b.Cleanup(func() { b.run(finalizers("null")...) }) // An error means that the pod is gone.
}

// awaitExit waits for the exit of a pod's first container.
func (b *testBed) awaitExit(pod string) (end *corev1.ContainerStateTerminated) {
	b.Helper()
	b.eventually(pod+" has ended", func() string {
		p := b.pod(pod)
		if len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Terminated == nil {
			return p.Status.String()
		}
		end = p.Status.ContainerStatuses[0].State.Terminated
		return ""
	})
	return end
}

// gatewayIn returns the pid of a profile's gateway in a pod, or 0.
func (b *testBed) gatewayIn(pod, profile string) int {
	b.Helper()
	init := b.initOf(pod)
	for _, pid := range gatewayPIDs()[profile] {
		if parentOf(pid) == init {
			return pid
		}
	}
	return 0
}

// setAnswers makes the default gateway of a pod report that it works on the given number of answers.
func (b *testBed) setAnswers(pod string, answers int) {
	b.Helper()
	edit := fmt.Sprintf(`s/"active_agents": *[0-9]*/"active_agents":%d/`, answers)
	if r := b.execInPod(pod, "sed", "-i", edit, "/opt/data/gateway_state.json"); r.exitCode != 0 {
		b.Fatal(r)
	}
}

// gracePeriod checks that the pod's grace period is the time of the preStop hook and of hinit plus two seconds, and returns it.
func (b *testBed) gracePeriod(pod string) time.Duration {
	b.Helper()
	spec := b.pod(pod).Spec
	c := spec.Containers[0]
	words := c.Lifecycle.PreStop.Exec.Command
	drain, err := time.ParseDuration(words[len(words)-1])
	if err != nil || !strings.HasPrefix(strings.Join(words, " "), "hinit drain --timeout ") {
		b.Fatal(err, words)
	}
	for _, v := range c.Env {
		if v.Name != "HINIT_STOP_TIMEOUT" {
			continue
		}
		budget, err := time.ParseDuration(v.Value)
		if grace := time.Duration(*spec.TerminationGracePeriodSeconds) * time.Second; err != nil || grace != drain+budget+2*time.Second {
			b.Errorf("the grace of %s is %s: the drain takes %s, hinit %s", pod, grace, drain, v.Value)
		}
	}
	return time.Duration(*spec.TerminationGracePeriodSeconds) * time.Second
}

// TestADeletedPodWaitsForAnswers checks that a deleted pod waits for a gateway that works on an answer, but not for one
// that never ends.
func TestADeletedPodWaitsForAnswers(t *testing.T) {
	b := withNode(t, "answers")
	b.volumes(2, corev1.ReadWriteOnce)
	b.createPodWithValues(map[string]any{"drainSeconds": 2, "stopSeconds": 5, "env": map[string]any{"AGENT_IGNORE_TERM": "1"}}, "stubborn", nil)
	b.createPod("busy", nil)
	for _, pod := range []string{"busy", "stubborn"} {
		b.awaitReady(pod)
		b.keepObject(pod)
		b.setAnswers(pod, 1)
	}
	gateway := b.gatewayIn("busy", "default")
	began := time.Now()
	b.mustRun("delete", "pod", "busy", "stubborn", "--wait=false")

	end := b.awaitExit("stubborn")
	took := time.Since(began)
	t.Logf("the pod whose gateway never ends took %s: code %d, %s", took, end.ExitCode, end.Message)
	b.gracePeriod("stubborn")
	// The kubelet's time counts, because this test hears of the end later. DeletionTimestamp is the end of the grace period.
	if limit := b.pod("stubborn").DeletionTimestamp.Time; end.FinishedAt.After(limit) {
		t.Errorf("it ended at %s, and its grace at %s", end.FinishedAt, limit)
	}
	if end.ExitCode == 137 || !strings.HasPrefix(end.Message, "exit code") || !strings.Contains(end.Message, "gateway-default: killing") {
		t.Errorf("hinit did not end it: code %d, %s", end.ExitCode, end.Message)
	}
	b.consistently(8*time.Second-time.Since(began), func() string {
		if now := b.gatewayIn("busy", "default"); now != gateway || gateway == 0 {
			return fmt.Sprintf("the gateway that works on an answer was process %d and is %d", gateway, now)
		}
		return ""
	})
	b.setAnswers("busy", 0)
	began = time.Now()
	end = b.awaitExit("busy")
	t.Logf("after the answer the pod took %s: code %d, %s", time.Since(began), end.ExitCode, end.Message)
	if took := time.Since(began); took > b.gracePeriod("busy")/2 {
		t.Errorf("it took %s after the answer", took)
	}
	alone := strings.Contains(end.Message, "gateway-default: exited with code") && !strings.Contains(strings.ToLower(end.Message), "kill")
	if end.ExitCode != 0 || !strings.HasPrefix(end.Message, "exit code 0") || !alone {
		t.Errorf("the gateway did not end by itself: code %d, %s", end.ExitCode, end.Message)
	}
}
