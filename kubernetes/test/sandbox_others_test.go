package test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hinit/kubernetes/internal/cluster"
	"hinit/sandbox"
)

// createOther creates a container like the one of the pod like, but with other docker labels. It returns
// the container's ID.
func (a *agentPod) createOther(number int, like *corev1.Pod, change func(labels map[string]string)) string {
	a.t.Helper()
	id, name := fmt.Sprintf("%08x%024x", 0xabcdef00+number, number), fmt.Sprintf("victim-%d", number)
	var spec sandbox.Spec
	if err := json.Unmarshal([]byte(like.Annotations["hinit.dev/spec"]), &spec); err != nil {
		a.t.Fatal(err)
	}
	spec.Name = name
	change(spec.Labels)
	note, err := json.Marshal(spec)
	if err != nil {
		a.t.Fatal(err)
	}
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Spec: like.Spec}
	pod.Name, pod.Labels, pod.Annotations = objectName(name), map[string]string{}, map[string]string{"hinit.dev/spec": string(note)}
	maps.Copy(pod.Labels, like.Labels)
	pod.Labels["hinit.dev/sandbox"], pod.Labels["hinit.dev/name"] = id, name
	a.apply(pod)
	a.awaitReady(pod.Name)
	return id
}

// TestAnAgentReachesNoSandboxOfAnother checks that an agent can't see sandboxes of other profiles,
// users and installations, or pods that are no sandboxes.
func TestAnAgentReachesNoSandboxOfAnother(t *testing.T) {
	cluster.SkipIfShort(t)
	a := withSandboxes(t)
	own := a.createdID(a.runSandbox("hermes-0000001a"))
	like := a.pod(objectName("hermes-0000001a"))
	victims := []string{
		a.createOther(1, like, func(labels map[string]string) { labels["hermes-profile"] = "other" }),
		a.createOther(2, like, func(labels map[string]string) { labels["hinit-owner"] = "54321" }),
		a.createOther(3, like, func(labels map[string]string) { labels[sandbox.LabelVolume] = "0123456789abcdef" }),
		a.createOther(4, like, func(labels map[string]string) { clear(labels) }),
	}
	before := a.mustRun("get", "pods", "-l", "hinit.dev/sandbox", "-o", podIdentities)
	refs := []string{"agents-0", string(a.pod("agents-0").UID), objectName("hermes-0000001a")}
	for i, id := range victims {
		refs = append(refs, id, id[:12], fmt.Sprintf("victim-%d", i+1))
	}
	var calls, tools [][]string
	for _, ref := range refs {
		calls = append(calls, []string{"exec", ref, "true"}, []string{"start", ref}, []string{"stop", "-t", "0", ref},
			[]string{"rm", ref}, []string{"inspect", "--format", "{{.State.FinishedAt}}", ref})
		tools = append(tools, []string{"exec", "--in", ref, "true"}, []string{"rm", ref}, []string{"stop", ref},
			[]string{"show", ref}, []string{"logs", ref}, []string{"shell", "--in", ref})
	}
	for _, r := range a.dockerEach(calls) {
		if r.exitCode == 0 || !strings.Contains(r.output, "No such container") && !strings.Contains(r.output, "No such object") {
			t.Error(r)
		}
	}
	for _, r := range a.runEach("hinit sandbox", tools) {
		if r.exitCode == 0 || !strings.Contains(r.output, "no such") && !strings.Contains(r.output, "there is no") {
			t.Error(r)
		}
	}
	for _, r := range a.dockerEach([][]string{{"exec", "--privileged", own, "id"}, {"exec", "--user", "0:0", own, "id", "-u"}}) {
		if r.exitCode == 0 && strings.TrimSpace(r.output) != "10000" {
			t.Error(r)
		}
	}
	if r := a.docker(append([]string{"rm", "-f"}, victims...)...); r.exitCode != 0 || strings.Count(r.output, "No such container") != len(victims) {
		t.Error("what is not there can't be removed:", r)
	}
	if r := a.docker("ps", "-a", "--filter", "label=hermes-agent=1", "--format", "{{.ID}}", "--no-trunc"); r.output != own+"\n" {
		t.Error("it sees", r)
	}
	if after := a.mustRun("get", "pods", "-l", "hinit.dev/sandbox", "-o", podIdentities); after != before {
		t.Errorf("there were\n%sand are\n%s", before, after)
	}
}

// podIdentities prints each pod's uid, its restarts, and whether it is being deleted.
const podIdentities = `jsonpath={range .items[*]}{.metadata.uid} {.status.phase} ` +
	`{.status.containerStatuses[0].restartCount} {.metadata.deletionTimestamp}{"\n"}{end}`
