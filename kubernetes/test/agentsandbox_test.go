package test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// sandboxKind is the definition of the kind, as agent-sandbox has it in what its controller reads.
const sandboxKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: sandboxes.agents.x-k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, a stand-in for tests"}
spec:
  group: agents.x-k8s.io
  scope: Namespaced
  names: {kind: Sandbox, plural: sandboxes, singular: sandbox}
  versions:
  - name: v1beta1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            required: [podTemplate]
            properties:
              podTemplate:
                type: object
                required: [spec]
                properties:
                  metadata:
                    type: object
                    properties:
                      labels: {type: object, additionalProperties: {type: string}}
                      annotations: {type: object, additionalProperties: {type: string}}
                  spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
              volumeClaimTemplates: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true}}
              service: {type: boolean}
              operatingMode: {type: string, enum: [Running, Suspended], default: Running}
              shutdownTime: {type: string, format: date-time}
              shutdownPolicy: {type: string, enum: [Retain, Delete], default: Retain}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

var sandboxResource = schema.GroupVersionResource{Group: "agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxes"}

// controller stands in for agent-sandbox's: it makes the pod of a Sandbox, removes it while the Sandbox is suspended, and ends what has expired.
type controller struct {
	objects  dynamic.NamespaceableResourceInterface
	core     kubernetes.Interface
	extended *extensions // nil without them
}

// startController defines the kinds and runs the controller until the end of the test.
func (b *bench) startController(t *testing.T, extended bool) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", b.Config)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1 // by default it asks five times a second
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	c := &controller{objects: objects.Resource(sandboxResource), core: core}
	kinds, definitions := []string{"crd/sandboxes.agents.x-k8s.io"}, sandboxKind
	if extended {
		c.extended = newExtensions(c, objects)
		for name, spec := range extensionKinds {
			kinds, definitions = append(kinds, "crd/"+name+".extensions.agents.x-k8s.io"), definitions+definition(name, spec)
		}
	}
	if r := b.feed(definitions, "apply", "-f", "-"); r.code != 0 {
		t.Fatal(r)
	}
	b.must(append([]string{"wait", "--for=condition=Established", "--timeout=1m"}, kinds...)...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
		b.must(append([]string{"delete", "--timeout=2m"}, kinds...)...)
	})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if c.extended != nil {
				c.extended.all(ctx)
			}
			c.all(ctx)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
}

func (c *controller) all(ctx context.Context) {
	list, err := c.objects.List(ctx, metav1.ListOptions{})
	if err != nil {
		return // the next round tries again
	}
	for i := range list.Items {
		if o := &list.Items[i]; o.GetDeletionTimestamp() == nil {
			ready, reason := c.one(ctx, o)
			c.report(ctx, o, ready, reason)
		}
	}
}

// one brings the pod of a Sandbox to what it should be.
func (c *controller) one(ctx context.Context, o *unstructured.Unstructured) (isReady bool, reason string) {
	pods := c.core.CoreV1().Pods(o.GetNamespace())
	pod, err := pods.Get(ctx, o.GetName(), metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return false, "ReconcilerError"
	}
	mode, _, _ := unstructured.NestedString(o.Object, "spec", "operatingMode")
	policy, _, _ := unstructured.NestedString(o.Object, "spec", "shutdownPolicy")
	text, has, _ := unstructured.NestedString(o.Object, "spec", "shutdownTime")
	end, err := time.Parse(time.RFC3339, text)
	expired := has && err == nil && time.Now().After(end)
	if expired && policy == "Delete" {
		_ = c.objects.Namespace(o.GetNamespace()).Delete(ctx, o.GetName(), metav1.DeleteOptions{})
	}
	switch {
	case (expired || mode == "Suspended") && !missing:
		if pod.DeletionTimestamp == nil {
			_ = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{})
		}
		return false, "SandboxSuspended"
	case expired:
		return false, "SandboxExpired"
	case mode == "Suspended":
		return false, "SandboxSuspended"
	case missing:
		return false, c.makePod(ctx, o)
	case c.copyMetadata(ctx, o, pod):
		return false, "DependenciesNotReady"
	case pod.Status.Phase == corev1.PodSucceeded:
		return false, "PodSucceeded"
	case pod.Status.Phase == corev1.PodFailed:
		return false, "PodFailed"
	case !ready(pod):
		return false, "DependenciesNotReady"
	}
	return true, "DependenciesReady"
}

func (c *controller) makePod(ctx context.Context, o *unstructured.Unstructured) (reason string) {
	template, _, _ := unstructured.NestedMap(o.Object, "spec", "podTemplate")
	var pod corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, &pod); err != nil {
		return "ReconcilerError"
	}
	yes := true
	pod.Name = o.GetName()
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "agents.x-k8s.io/v1beta1", Kind: "Sandbox", Name: o.GetName(), UID: o.GetUID(), Controller: &yes, BlockOwnerDeletion: &yes}}
	if _, err := c.core.CoreV1().Pods(o.GetNamespace()).Create(ctx, &pod, metav1.CreateOptions{}); err != nil {
		return "ReconcilerError"
	}
	return "DependenciesNotReady"
}

// copyMetadata copies the labels and annotations of the template to the pod, as the controller does whenever they change.
func (c *controller) copyMetadata(ctx context.Context, o *unstructured.Unstructured, pod *corev1.Pod) (changed bool) {
	for field, has := range map[string]map[string]string{"labels": pod.Labels, "annotations": pod.Annotations} {
		wanted, _, _ := unstructured.NestedStringMap(o.Object, "spec", "podTemplate", "metadata", field)
		for name, value := range wanted {
			changed = changed || has[name] != value
		}
	}
	if !changed {
		return false
	}
	meta, _, _ := unstructured.NestedMap(o.Object, "spec", "podTemplate", "metadata")
	patch, err := json.Marshal(map[string]any{"metadata": meta})
	if err == nil {
		_, _ = c.core.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}) // the next round tries again
	}
	return true
}

func (c *controller) report(ctx context.Context, o *unstructured.Unstructured, ready bool, reason string) {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	if len(list) > 0 && list[0].(map[string]any)["reason"] == reason {
		return
	}
	word := map[bool]string{true: "True", false: "False"}[ready]
	now := time.Now().UTC().Format(time.RFC3339)
	_ = unstructured.SetNestedSlice(o.Object, []any{map[string]any{"type": "Ready", "status": word, "reason": reason, "message": "", "lastTransitionTime": now}}, "status", "conditions")
	_, _ = c.objects.Namespace(o.GetNamespace()).UpdateStatus(ctx, o, metav1.UpdateOptions{}) // the next round tries again
}

// TestASandboxOfTheClustersKind: where agent-sandbox is installed, the docker command makes Sandboxes. They are suspended when they are idle, come
// back, and expire where no service looks after them.
func TestASandboxOfTheClustersKind(t *testing.T) {
	b := withServer(t)
	b.startController(t, false)
	a := withSandboxes(t, "HINIT_SANDBOX_KUBERNETES_IDLE=10s", "HINIT_SANDBOX_KUBERNETES_EXPIRE=1m")
	const name = "hermes-0000000c"
	began := time.Now()
	id := a.made(a.run(name))
	t.Logf("made in %v", time.Since(began))
	mode := func() string {
		return a.must("get", "sandboxes.agents.x-k8s.io", name, "-o", "jsonpath={.spec.operatingMode} {.spec.shutdownPolicy}")
	}
	if r := a.sh(id, "echo kept > file; echo gone > /tmp/file"); r.code != 0 || mode() != "Running Delete" {
		t.Error(r, mode())
	}
	a.must("delete", "pod", name)
	a.until("the cluster has made another pod", func() string {
		if r := a.sh(id, "cat file"); r.out != "kept\n" {
			a.docker("start", id)
			return r.String()
		}
		return ""
	})
	if r := a.docker("stop", id); r.code != 0 || mode() != "Suspended Delete" {
		t.Error(r, mode())
	}
	a.gone(name)
	if r := a.sh(id, "true"); r.code != 1 || !strings.Contains(r.out, "is not running (the sandbox is suspended)") {
		t.Error(r)
	}
	began = time.Now()
	if r := a.docker("start", id); r.code != 0 {
		t.Fatal(r)
	}
	t.Logf("resumed in %v", time.Since(began))
	if r := a.sh(id, "cat file; ls /tmp/file"); r.code == 0 || !strings.Contains(r.out, "kept\n") {
		t.Error(r)
	}
	first := a.must("get", "sandboxes.agents.x-k8s.io", name, "-o", "jsonpath={.spec.shutdownTime}")
	if r := a.sh(id, "sleep 12; echo over"); r.out != "over\n" || mode() != "Running Delete" {
		t.Error("a command runs, and the sandbox counts as idle:", r, mode())
	}
	a.until("idle and suspended", func() string {
		if m := mode(); m != "Suspended Delete" {
			return m
		}
		return ""
	})
	a.gone(name)
	if r := a.docker("start", id); r.code != 0 {
		t.Error(r)
	}
	a.until("its end has moved", func() string {
		if now := a.must("get", "sandboxes.agents.x-k8s.io", name, "-o", "jsonpath={.spec.shutdownTime}"); now > first {
			return ""
		}
		return first
	})
	a.must("delete", "statefulset", "agents") // the service is gone for good, and nothing owns up to the sandbox
	until, err := time.Parse(time.RFC3339, a.must("get", "sandboxes.agents.x-k8s.io", name, "-o", "jsonpath={.spec.shutdownTime}"))
	if left := time.Until(until); err != nil || left > time.Minute {
		t.Errorf("it expires in %v: %v", left, err)
	}
	a.must("patch", "sandboxes.agents.x-k8s.io", name, "--type=merge", "-p", `{"spec": {"shutdownTime": "`+time.Now().UTC().Format(time.RFC3339)+`"}}`) // it expires now
	a.until("expired", func() string { return a.must("get", "sandboxes.agents.x-k8s.io", "-o", "name") })
	a.gone(name)
}
