package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"hinit/sandbox"
)

// made returns the pod of a sandbox that docker knows by a name.
func made(t *testing.T, name string) corev1.Pod {
	t.Helper()
	mapped := false
	e := &Engine{
		s:    Settings{Namespace: "agents", Image: "hinit", Disk: resource.MustParse("2Gi"), CPU: resource.MustParse("10m"), Memory: resource.MustParse("64Mi")},
		core: fake.NewClientset(), kind: "Pod", userNamespaces: &mapped, why: map[string]string{},
	}
	spec := sandbox.Spec{Name: name, Image: "debian:12", Cmd: []string{"sleep", "infinity"}, User: "10000:10000"}
	id, err := e.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Create(t.Context(), spec); !errors.Is(err, sandbox.ErrTaken) {
		t.Error("a second one of the name:", err)
	}
	if c, err := e.Inspect(t.Context(), name); err != nil || c.ID != id || c.Name != name {
		t.Errorf("docker knows it as %+v, %v", c, err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := e.Start(short, id); !errors.Is(err, sandbox.ErrNoEngine) {
		t.Error("no node takes it:", err)
	}
	pods, err := e.core.CoreV1().Pods("agents").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 1 || len(pods.Items[0].Spec.SchedulingGates) != 0 {
		t.Fatalf("started is %v, %v", pods, err)
	}
	return pods.Items[0]
}

// TestASandboxTakesNoNameOfTheAgentsPods has an agent that waits until the pod of the agents is deleted. Earlier its sandbox took that name, and
// the agents did not come back.
func TestASandboxTakesNoNameOfTheAgentsPods(t *testing.T) {
	if pod := made(t, "agents-1"); pod.Name == "agents-1" || pod.Name != ObjectName("agents-1") || pod.Labels[labelName] != "agents-1" {
		t.Errorf("the pod is %s, with labels %v", pod.Name, pod.Labels)
	}
}

// TestASandboxDoesNotFillTheDiskOfItsNode: earlier a sandbox could write until the node evicted pods of others.
func TestASandboxDoesNotFillTheDiskOfItsNode(t *testing.T) {
	pod := made(t, "hermes-1")
	for _, c := range append(pod.Spec.Containers, pod.Spec.InitContainers...) {
		sure, asked := c.Resources.Requests[corev1.ResourceEphemeralStorage] // without one the limit is it
		if most := c.Resources.Limits.StorageEphemeral(); most.String() != "2Gi" || !asked || !sure.IsZero() {
			t.Errorf("%s may have %v and is sure of %v", c.Name, most, sure.String())
		}
	}
}
