package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"hinit/sandbox"
)

// sandboxResource is the resource Sandbox of the project agent-sandbox, whose controller creates the pods.
var sandboxResource = schema.GroupVersionResource{Group: "agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxes"}

const (
	modeRunning   = "Running"
	modeSuspended = "Suspended"

	annotationStopped = "hinit.dev/stopped" // Annotation with the time at which the engine suspended a started Sandbox.
	expireSoon        = 2                   // The engine postpones an expiry when less than 1/expireSoon of the time remains.
)

// objectKind returns the kind of object for new containers: Sandbox if the cluster has that kind, otherwise Pod.
func (e *Engine) objectKind(ctx context.Context) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.kind != "" {
		return e.kind, nil
	}
	err := e.core.Discovery().RESTClient().Get().AbsPath("/apis", sandboxResource.Group, sandboxResource.Version).Do(ctx).Error()
	switch {
	case err == nil:
		e.kind = "Sandbox"
	case apierrors.IsNotFound(err):
		e.kind = "Pod"
	default:
		return "", err
	}
	return e.kind, nil
}

func (e *Engine) expiryTime() string {
	return time.Now().Add(e.settings.ExpireAfter).UTC().Format(time.RFC3339)
}

// createSandbox creates a suspended Sandbox with pod as its template.
func (e *Engine) createSandbox(ctx context.Context, pod *corev1.Pod) error {
	template, err := templateOf(pod)
	if err != nil {
		return err
	}
	body := map[string]any{"podTemplate": template, "operatingMode": modeSuspended}
	if e.settings.ExpireAfter > 0 {
		body["shutdownTime"], body["shutdownPolicy"] = e.expiryTime(), "Delete"
	}
	return e.createObject(ctx, sandboxResource, "Sandbox", pod.Name, body, pod.Labels, pod.Annotations, pod.OwnerReferences)
}

func (e *Engine) createObject(ctx context.Context, of schema.GroupVersionResource, kind, name string, spec map[string]any, labels, notes map[string]string,
	owner []metav1.OwnerReference,
) error {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": of.GroupVersion().String(), "kind": kind, "spec": spec}}
	o.SetName(name)
	o.SetLabels(labels)
	o.SetAnnotations(notes)
	o.SetOwnerReferences(owner)
	_, err := e.objects.Resource(of).Namespace(e.settings.Namespace).Create(ctx, o, metav1.CreateOptions{})
	return err
}

func templateOf(pod *corev1.Pod) (map[string]any, error) {
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&pod.Spec)
	meta := map[string]any{"labels": toAnyMap(pod.Labels), "annotations": toAnyMap(pod.Annotations)}
	return map[string]any{"metadata": meta, "spec": spec}, err
}

func toAnyMap(in map[string]string) map[string]any {
	out := map[string]any{}
	for name, value := range in {
		out[name] = value
	}
	return out
}

// sandboxes returns the containers that are Sandboxes or claims, without their pods.
func (e *Engine) sandboxes(ctx context.Context, selector string) ([]*record, error) {
	kind, err := e.objectKind(ctx)
	if err != nil || kind != "Sandbox" {
		return nil, err
	}
	list, err := e.objects.Resource(sandboxResource).Namespace(e.settings.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	out, err := e.waitingClaims(ctx, selector)
	for i := range list.Items {
		r, ok := recordOf(&list.Items[i])
		if !ok {
			continue
		}
		r.object = &list.Items[i]
		if at := slices.IndexFunc(out, func(claim *record) bool { return claim.id == r.id }); at >= 0 {
			out[at] = r
		} else {
			out = append(out, r)
		}
	}
	return out, err
}

func isSuspended(object *unstructured.Unstructured) bool {
	mode, _, _ := unstructured.NestedString(object.Object, "spec", "operatingMode")
	return mode == modeSuspended
}

// objectReason returns the reason why a Sandbox is not Ready, as its controller reports it.
func objectReason(object *unstructured.Unstructured) string {
	list, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, one := range list {
		c, _ := one.(map[string]any)
		if c["type"] == "Ready" && c["status"] != "True" {
			return strings.TrimSpace(fmt.Sprint(c["reason"], " ", c["message"]))
		}
	}
	return "its controller has not said why"
}

// patch changes the annotations (notes) and the spec of an object of agent-sandbox.
func (e *Engine) patch(ctx context.Context, of schema.GroupVersionResource, name string, annotations, spec map[string]any) error {
	defer withRequestTimeout(&ctx)()
	body := map[string]any{"spec": spec}
	if annotations != nil { // Omit the key, because null would remove all annotations.
		body["metadata"] = map[string]any{"annotations": annotations}
	}
	patch, err := json.Marshal(body)
	if err == nil {
		_, err = e.objects.Resource(of).Namespace(e.settings.Namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return err
}

// resume sets a Sandbox to running. If its pod has ended, resume first suspends the Sandbox, which removes the pod. The next
// pod has the helper at another path. The owner knows the old path, and with a link in a mount could redirect another mount
// to it.
func (e *Engine) resume(ctx context.Context, r *record, c sandbox.Container) error {
	again := r.pod == nil && r.object.GetAnnotations()[annotationStopped] != ""
	if r.pod != nil && (c.State == sandbox.Exited || isSuspended(r.object)) {
		if err := e.suspend(ctx, r); err != nil {
			return err
		}
		again = true
	}
	spec, notes := map[string]any{"operatingMode": modeRunning}, map[string]any{annotationStopped: nil}
	_, claimed := claimOf(r.object) // A Sandbox of a claim has no mounts that a link could redirect.
	if e.settings.ExpireAfter > 0 && !claimed {
		spec["shutdownTime"] = e.expiryTime()
	}
	if again && !claimed {
		renewHelperPath(r)
		pod, err := e.buildPod(ctx, r)
		if err != nil {
			return err
		}
		if spec["podTemplate"], err = templateOf(pod); err != nil {
			return err
		}
		notes[annotationSpec] = pod.Annotations[annotationSpec]
	}
	return e.patch(ctx, sandboxResource, r.object.GetName(), notes, spec)
}

// suspend sets a Sandbox to suspended, and waits until its pod is gone.
func (e *Engine) suspend(ctx context.Context, r *record) error {
	err := e.patch(ctx, sandboxResource, r.object.GetName(), map[string]any{annotationStopped: time.Now().UTC().Format(time.RFC3339Nano)}, map[string]any{"operatingMode": modeSuspended})
	if err != nil {
		return err
	}
	return e.await(ctx, "", labelID+"="+r.id, func(pod *corev1.Pod) (bool, error) { return pod == nil, nil })
}

// removeSandbox deletes a Sandbox and waits until its pod is gone.
func (e *Engine) removeSandbox(ctx context.Context, r *record) error {
	ask, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	of, name, uid, policy := sandboxResource, "", types.UID(""), metav1.DeletePropagationBackground
	if r.claim != nil {
		of, name, uid = claimKind, r.claim.GetName(), r.claim.GetUID()
	} else if claim, claimed := claimOf(r.object); claimed { // Delete the claim, because it would replace a deleted Sandbox.
		of, name, uid = claimKind, claim.Name, claim.UID
	} else {
		name, uid = r.object.GetName(), r.object.GetUID()
	}
	err := e.objects.Resource(of).Namespace(e.settings.Namespace).Delete(ask, name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &policy,
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	return e.await(ctx, "", labelID+"="+r.id, func(pod *corev1.Pod) (bool, error) { return pod == nil, nil })
}

// postponeExpiry postpones the expiry of a Sandbox. If the service has crashed or was removed, the expiry is no longer
// postponed, and the cluster deletes the Sandbox.
func (e *Engine) postponeExpiry(ctx context.Context, r *record) error {
	if r.object == nil || e.settings.ExpireAfter == 0 {
		return nil
	}
	if claim, claimed := claimOf(r.object); claimed {
		return e.postponeClaimExpiry(ctx, claim.Name)
	}
	text, _, _ := unstructured.NestedString(r.object.Object, "spec", "shutdownTime")
	if !e.expiresSoon(text) {
		return nil
	}
	return e.patch(ctx, sandboxResource, r.object.GetName(), nil, map[string]any{"shutdownTime": e.expiryTime()})
}

// expiresSoon reports whether the time in text is so near that the expiry must be postponed.
func (e *Engine) expiresSoon(text string) bool {
	end, err := time.Parse(time.RFC3339, text)
	return err != nil || time.Until(end) <= e.settings.ExpireAfter/expireSoon
}
