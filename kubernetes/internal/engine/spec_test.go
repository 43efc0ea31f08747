package engine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"hinit/sandbox"
)

// newOfflineEngine returns an engine without a cluster, for containers of the given kind.
func newOfflineEngine(kind string) *Engine {
	mapped := false
	return &Engine{
		settings: Settings{Namespace: "agents", Image: "hinit", Disk: resource.MustParse("2Gi"), CPU: resource.MustParse("10m"), Memory: resource.MustParse("64Mi")},
		core:     fake.NewClientset(), kind: kind, userNamespaces: &mapped, goneReasons: map[string]string{}, lastUsed: map[string]time.Time{},
	}
}

// buildTestPod returns the pod that the engine builds for a sandbox with this docker name.
func buildTestPod(t *testing.T, name string) corev1.Pod {
	t.Helper()
	e := newOfflineEngine("Pod")
	spec := sandbox.Spec{Name: name, Image: "debian:12", Cmd: []string{"sleep", "infinity"}, User: "10000:10000"}
	id, err := e.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Create(t.Context(), spec); !errors.Is(err, sandbox.ErrNameTaken) {
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

// TestASandboxTakesNoNameOfTheAgentsPods checks that a sandbox's pod can't have the name of an
// agents' pod. Otherwise a sandbox could block the replacement of that pod.
func TestASandboxTakesNoNameOfTheAgentsPods(t *testing.T) {
	if pod := buildTestPod(t, "agents-1"); pod.Name == "agents-1" || pod.Name != ObjectName("agents-1") || pod.Labels[labelName] != "agents-1" {
		t.Errorf("the pod is %s, with labels %v", pod.Name, pod.Labels)
	}
}

// TestASandboxDoesNotFillTheDiskOfItsNode checks that each container of a sandbox has a limit of disk space. Without
// it, the node would evict pods of others.
func TestASandboxDoesNotFillTheDiskOfItsNode(t *testing.T) {
	pod := buildTestPod(t, "hermes-1")
	for _, c := range append(pod.Spec.Containers, pod.Spec.InitContainers...) {
		// Without a request, Kubernetes uses the limit as the request.
		sure, asked := c.Resources.Requests[corev1.ResourceEphemeralStorage]
		if most := c.Resources.Limits.StorageEphemeral(); most.String() != "2Gi" || !asked || !sure.IsZero() {
			t.Errorf("%s may have %v and is sure of %v", c.Name, most, sure.String())
		}
	}
}

// TestASandboxThatStartsAgainHasItsProgramElsewhere checks that the helper's directory changes at
// each start. Otherwise an agent could replace the helper through a link in a mount.
func TestASandboxThatStartsAgainHasItsProgramElsewhere(t *testing.T) {
	e := newOfflineEngine("Sandbox")
	kinds := map[schema.GroupVersionResource]string{sandboxResource: "SandboxList"}
	e.objects = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	spec := sandbox.Spec{
		Name: "hermes-1", Image: "debian:12", Cmd: []string{"sleep", "infinity"}, User: "10000:10000", Entrypoint: []string{"/.hinit-x/gate", "gate-init", "/"},
		Mounts: []sandbox.Mount{{Type: "volume", Source: gateVolume, Target: "/.hinit-x", ReadOnly: true}},
	}
	id, err := e.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	// start starts the Sandbox and returns the helper's directory, from the pod template and from the
	// engine's record.
	start := func() (template, record string) {
		t.Helper()
		short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := e.Start(short, id); !errors.Is(err, sandbox.ErrNoEngine) {
			t.Fatal("no controller makes its pod:", err)
		}
		o, err := e.objects.Resource(sandboxResource).Namespace("agents").Get(t.Context(), ObjectName("hermes-1"), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var spec corev1.PodSpec
		fields, _, _ := unstructured.NestedMap(o.Object, "spec", "podTemplate", "spec")
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &spec); err != nil {
			t.Fatal(err)
		}
		r, ok := recordOf(o)
		if mode, _, _ := unstructured.NestedString(o.Object, "spec", "operatingMode"); !ok || mode != modeRunning {
			t.Fatalf("it is %v", o)
		}
		where := spec.Containers[0].VolumeMounts[0].MountPath
		if program := spec.Containers[0].Command[0]; program != where+"/gate" {
			t.Errorf("the program is %s, in %s", program, where)
		}
		return where, helperDir(r)
	}
	first, known := start()
	if err := e.Stop(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	second, now := start()
	if first != known || second != now || first == second {
		t.Errorf("it was in %s (%s), and is in %s (%s)", first, known, second, now)
	}
}

// TestASandboxWhosePodIsDeletedWhileItStartsIsNotAwaited checks that docker run fails at once if a
// user deletes the pod during the start.
func TestASandboxWhosePodIsDeletedWhileItStartsIsNotAwaited(t *testing.T) {
	e := newOfflineEngine("Pod")
	id, err := e.Create(t.Context(), sandbox.Spec{Name: "hermes-1", Image: "debian:12", Cmd: []string{"sleep", "infinity"}, User: "10000:10000"})
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() {
		short, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		started <- e.Start(short, id)
	}()
	pods := e.core.CoreV1().Pods("agents")
	for waits := true; waits; time.Sleep(time.Millisecond) {
		pod, err := pods.Get(t.Context(), ObjectName("hermes-1"), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		waits = len(pod.Spec.SchedulingGates) > 0
	}
	if err := pods.Delete(t.Context(), ObjectName("hermes-1"), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-started; !errors.Is(err, sandbox.ErrGone) || !strings.Contains(err.Error(), "its pod was deleted") {
		t.Error("it said", err)
	}
}
