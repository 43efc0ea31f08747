// Package agentsandbox stands in for the controller of agent-sandbox in tests, whose module can't be had. It owns no goroutine.
package agentsandbox

import (
	"context"
	"encoding/json"
	"slices"
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
)

// Definition is the definition of the kind, as agent-sandbox has it in what its controller reads.
const Definition = `
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

// Resource is the kind.
var Resource = schema.GroupVersionResource{Group: "agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxes"}

// Controller stands in for agent-sandbox's: it makes the pod of a Sandbox, removes it while the Sandbox is suspended, and ends
// expired Sandboxes.
type Controller struct {
	Objects dynamic.NamespaceableResourceInterface
	core    kubernetes.Interface
}

// New returns a controller. Its definition has to be applied.
func New(objects dynamic.Interface, core kubernetes.Interface) *Controller {
	return &Controller{Objects: objects.Resource(Resource), core: core}
}

// All reconciles the pods of all Sandboxes with their specs.
func (c *Controller) All(ctx context.Context) {
	list, err := c.Objects.List(ctx, metav1.ListOptions{})
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
func (c *Controller) one(ctx context.Context, o *unstructured.Unstructured) (isReady bool, reason string) {
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
		_ = c.Objects.Namespace(o.GetNamespace()).Delete(ctx, o.GetName(), metav1.DeleteOptions{})
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

func (c *Controller) makePod(ctx context.Context, o *unstructured.Unstructured) (reason string) {
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
func (c *Controller) copyMetadata(ctx context.Context, o *unstructured.Unstructured, pod *corev1.Pod) (changed bool) {
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

func (c *Controller) report(ctx context.Context, o *unstructured.Unstructured, ready bool, reason string) {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	if len(list) > 0 && list[0].(map[string]any)["reason"] == reason {
		return
	}
	word := map[bool]string{true: "True", false: "False"}[ready]
	now := time.Now().UTC().Format(time.RFC3339)
	_ = unstructured.SetNestedSlice(o.Object, []any{map[string]any{"type": "Ready", "status": word, "reason": reason, "message": "", "lastTransitionTime": now}}, "status", "conditions")
	_, _ = c.Objects.Namespace(o.GetNamespace()).UpdateStatus(ctx, o, metav1.UpdateOptions{}) // the next round tries again
}

func ready(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
