// Package agentsandbox imitates the controller of the project agent-sandbox in tests, because its Go module can't be downloaded.
// It owns no goroutine.
package agentsandbox

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// Definition is the CustomResourceDefinition of the kind Sandbox, with the fields that agent-sandbox's controller reads.
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

// Resource is the Sandbox resource.
var Resource = schema.GroupVersionResource{Group: "agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxes"}

// PodName is an annotation of a Sandbox with the name of its pod, if that name differs from the
// Sandbox's. NameHash is a label of a Sandbox's pods, see [HashOf].
const (
	PodName  = "agents.x-k8s.io/pod-name"
	NameHash = "agents.x-k8s.io/sandbox-name-hash"
)

// HashOf returns the value of the label NameHash for a Sandbox.
func HashOf(name string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // ignore the error: writing to a hash never fails
	return fmt.Sprintf("%08x", h.Sum32())
}

// Controller imitates agent-sandbox's controller. It makes the claims, the Service and the pod of each Sandbox. It removes
// the pod while the Sandbox is suspended, and ends expired Sandboxes.
type Controller struct {
	Objects dynamic.NamespaceableResourceInterface
	core    kubernetes.Interface
}

// New returns a controller. The cluster must have [Definition] already.
func New(objects dynamic.Interface, core kubernetes.Interface) *Controller {
	return &Controller{Objects: objects.Resource(Resource), core: core}
}

// ReconcileAll makes one round: it changes the objects of all Sandboxes as their specs demand.
func (c *Controller) ReconcileAll(ctx context.Context) {
	list, err := c.Objects.List(ctx, metav1.ListOptions{})
	if err != nil {
		return // The next round tries again.
	}
	for i := range list.Items {
		if o := &list.Items[i]; o.GetDeletionTimestamp() == nil {
			c.reconcileOne(ctx, o)
		}
	}
}

// sandboxSpec is the spec of a Sandbox.
type sandboxSpec struct {
	PodTemplate          corev1.PodTemplateSpec         `json:"podTemplate"`
	VolumeClaimTemplates []corev1.PersistentVolumeClaim `json:"volumeClaimTemplates"`
	Service              *bool                          `json:"service"`
	OperatingMode        string                         `json:"operatingMode"`
	ShutdownTime         *metav1.Time                   `json:"shutdownTime"`
	ShutdownPolicy       string                         `json:"shutdownPolicy"`
}

// reconcileOne reconciles the objects of one Sandbox, and reports its conditions.
func (c *Controller) reconcileOne(ctx context.Context, o *unstructured.Unstructured) {
	var want sandboxSpec
	spec, _, _ := unstructured.NestedMap(o.Object, "spec")
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &want); err != nil {
		c.report(ctx, o, []metav1.Condition{condition("Ready", false, "ReconcilerError", err.Error())})
		return
	}
	if want.ShutdownTime != nil && time.Now().After(want.ShutdownTime.Time) {
		c.expire(ctx, o, want)
		return
	}
	var failed error
	if err := c.createClaims(ctx, o, want); err != nil {
		failed = err
	}
	pod, podErr := c.reconcilePod(ctx, o, want)
	if podErr != nil {
		failed = podErr
	}
	if err := c.createService(ctx, o, want); err != nil {
		failed = err
	}
	c.report(ctx, o, conditionsOf(o, want, pod, podErr, failed))
}

// expire removes the pod and the Service of an expired Sandbox, and the Sandbox itself if its policy is Delete.
func (c *Controller) expire(ctx context.Context, o *unstructured.Unstructured, want sandboxSpec) {
	c.report(ctx, o, []metav1.Condition{condition("Ready", false, "SandboxExpired", "Sandbox has expired")})
	if pod, err := c.find(ctx, o); err == nil && pod != nil && metav1.IsControlledBy(pod, o) && pod.DeletionTimestamp == nil {
		// Ignore the error: the next round tries again.
		_ = c.core.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})
	}
	// Ignore the error: the Sandbox may have no Service.
	_ = c.core.CoreV1().Services(o.GetNamespace()).Delete(ctx, o.GetName(), metav1.DeleteOptions{})
	if want.ShutdownPolicy == "Delete" {
		// Ignore the error: the next round tries again.
		_ = c.Objects.Namespace(o.GetNamespace()).Delete(ctx, o.GetName(), metav1.DeleteOptions{})
	}
}

// owner returns the owner reference for the objects of a Sandbox.
func owner(o *unstructured.Unstructured) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(o, Resource.GroupVersion().WithKind("Sandbox"))}
}

// createClaims makes the PersistentVolumeClaims of a Sandbox.
func (c *Controller) createClaims(ctx context.Context, o *unstructured.Unstructured, want sandboxSpec) error {
	for _, claim := range want.VolumeClaimTemplates {
		claim.Name, claim.OwnerReferences = claim.Name+"-"+o.GetName(), owner(o)
		_, err := c.core.CoreV1().PersistentVolumeClaims(o.GetNamespace()).Create(ctx, &claim, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// createService makes the headless Service of a Sandbox whose spec asks for one.
func (c *Controller) createService(ctx context.Context, o *unstructured.Unstructured, want sandboxSpec) error {
	if want.Service == nil || !*want.Service {
		return nil
	}
	hash := map[string]string{NameHash: HashOf(o.GetName())}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: o.GetName(), Labels: hash, OwnerReferences: owner(o)},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: hash},
	}
	if _, err := c.core.CoreV1().Services(o.GetNamespace()).Create(ctx, service, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}
