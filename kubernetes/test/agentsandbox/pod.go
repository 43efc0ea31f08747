package agentsandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// errManyPods means that a Sandbox owns several pods. The controller then changes none of them.
var errManyPods = errors.New("multiple Pods are controlled by this Sandbox")

// find returns the pod of a Sandbox, or nil if it has none. A pod that the Sandbox owns takes precedence over the pod that
// the annotation names.
func (c *Controller) find(ctx context.Context, o *unstructured.Unstructured) (*corev1.Pod, error) {
	pods := c.core.CoreV1().Pods(o.GetNamespace())
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: NameHash + "=" + HashOf(o.GetName())})
	if err != nil {
		return nil, err
	}
	owned := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !metav1.IsControlledBy(&p, o) })
	if len(owned) > 1 {
		return nil, errManyPods
	}
	named := o.GetAnnotations()[PodName]
	pod, err := pods.Get(ctx, cmp.Or(named, o.GetName()), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		pod, err = nil, nil
		if named != "" {
			c.forgetPodName(ctx, o)
		}
	}
	if len(owned) == 1 && (pod == nil || pod.Name != owned[0].Name) {
		return &owned[0], nil
	}
	return pod, err
}

// forgetPodName removes the annotation PodName from a Sandbox.
func (c *Controller) forgetPodName(ctx context.Context, o *unstructured.Unstructured) {
	patch := []byte(`{"metadata":{"annotations":{"` + PodName + `":null}}}`)
	// Ignore the error: the next round tries again.
	_, _ = c.Objects.Namespace(o.GetNamespace()).Patch(ctx, o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
}

// reconcilePod makes, keeps or removes the pod of a Sandbox as its spec demands. It does not change a pod that has ended.
func (c *Controller) reconcilePod(ctx context.Context, o *unstructured.Unstructured, want sandboxSpec) (*corev1.Pod, error) {
	pod, err := c.find(ctx, o)
	switch {
	case err != nil:
		return nil, err
	case want.OperatingMode == "Suspended" && pod != nil && metav1.IsControlledBy(pod, o):
		if pod.DeletionTimestamp == nil {
			err = c.core.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})
		}
		return pod, err
	case want.OperatingMode == "Suspended":
		if o.GetAnnotations()[PodName] != "" {
			c.forgetPodName(ctx, o)
		}
		return pod, nil
	case pod == nil:
		return c.makePod(ctx, o, want)
	}
	return c.adopt(ctx, o, want, pod)
}

// isReservedName reports whether only the controller may set a label or annotation, so that a template can't set it.
func isReservedName(name string) bool {
	return strings.HasPrefix(name, "agents.x-k8s.io/") || strings.HasPrefix(name, "extensions.agents.x-k8s.io/")
}

// metadata returns the labels and annotations that the pod of a Sandbox gets from its template.
func metadata(o *unstructured.Unstructured, want sandboxSpec) (labels, annotations map[string]string) {
	labels, annotations = map[string]string{NameHash: HashOf(o.GetName())}, map[string]string{}
	for into, from := range map[*map[string]string]map[string]string{&labels: want.PodTemplate.Labels, &annotations: want.PodTemplate.Annotations} {
		for name, value := range from {
			if !isReservedName(name) {
				(*into)[name] = value
			}
		}
	}
	return labels, annotations
}

func (c *Controller) makePod(ctx context.Context, o *unstructured.Unstructured, want sandboxSpec) (*corev1.Pod, error) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: o.GetName(), OwnerReferences: owner(o)}, Spec: want.PodTemplate.Spec}
	pod.Labels, pod.Annotations = metadata(o, want)
	for _, claim := range want.VolumeClaimTemplates {
		source := corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name + "-" + o.GetName()}
		pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == claim.Name })
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &source}})
	}
	return c.core.CoreV1().Pods(o.GetNamespace()).Create(ctx, pod, metav1.CreateOptions{})
}

// adopt copies the labels and annotations of the template to the pod, as agent-sandbox's controller does whenever they change. If
// a pod without an owner has the label of the Sandbox, the Sandbox becomes its owner.
func (c *Controller) adopt(ctx context.Context, o *unstructured.Unstructured, want sandboxSpec, pod *corev1.Pod) (*corev1.Pod, error) {
	labels, notes := metadata(o, want)
	switch by := metav1.GetControllerOf(pod); {
	case by != nil && by.UID != o.GetUID():
		return nil, fmt.Errorf("pod %q is owned by %s/%s", pod.Name, by.Kind, by.Name)
	case by == nil && pod.Labels[NameHash] != labels[NameHash]:
		return nil, fmt.Errorf("cannot adopt unowned pod %q", pod.Name)
	}
	changed := !metav1.IsControlledBy(pod, o)
	for has, wants := range map[*map[string]string]map[string]string{&pod.Labels: labels, &pod.Annotations: notes} {
		for name, value := range wants {
			changed = changed || (*has)[name] != value
		}
	}
	if !changed {
		return pod, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels, "annotations": notes, "ownerReferences": owner(o)}})
	if err != nil {
		return nil, err
	}
	return c.core.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
}

func condition(kind string, is bool, reason, message string) metav1.Condition {
	status := map[bool]metav1.ConditionStatus{true: metav1.ConditionTrue, false: metav1.ConditionFalse}[is]
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

// conditionsOf returns the conditions of a Sandbox. podErr is the error of finding its pod, and failed is any other error.
func conditionsOf(o *unstructured.Unstructured, want sandboxSpec, pod *corev1.Pod, podErr, failed error) []metav1.Condition {
	mine := pod != nil && metav1.IsControlledBy(pod, o)
	out := []metav1.Condition{suspendedOf(want, pod, podErr, mine)}
	if reason := withExit(pod); mine && reason != "" {
		out = append(out, condition("Finished", true, reason, ""))
	}
	switch {
	case pod == nil && podErr != nil:
		out = append(out, metav1.Condition{Type: "PodScheduled", Status: metav1.ConditionUnknown, Reason: "PodSchedulingUnknown"})
	case mine:
		at := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
		scheduled := metav1.Condition{Type: "PodScheduled", Status: metav1.ConditionUnknown, Reason: "PodSchedulingUnknown"}
		if at >= 0 {
			has := pod.Status.Conditions[at]
			scheduled.Status, scheduled.Reason, scheduled.Message = metav1.ConditionStatus(has.Status), cmp.Or(has.Reason, "PodScheduled"), has.Message
		}
		out = append(out, scheduled)
	}
	return append(out, readyOf(want, pod, failed))
}

func suspendedOf(want sandboxSpec, pod *corev1.Pod, podErr error, owned bool) metav1.Condition {
	switch {
	case want.OperatingMode != "Suspended":
		return condition("Suspended", false, "NotSuspended", "Sandbox is not suspended")
	case pod == nil && podErr != nil:
		return metav1.Condition{Type: "Suspended", Status: metav1.ConditionUnknown, Reason: "PodStateUnknown"}
	case pod == nil:
		return condition("Suspended", true, "PodTerminated", "Sandbox is suspended")
	case !owned:
		return condition("Suspended", false, "PodNotOwned", "Refused to delete pod because it is not owned by this sandbox")
	}
	return condition("Suspended", false, "PodTerminating", "Sandbox is suspending")
}

func readyOf(want sandboxSpec, pod *corev1.Pod, failed error) metav1.Condition {
	switch {
	case errors.Is(failed, errManyPods):
		return condition("Ready", false, "MultiplePods", failed.Error())
	case failed != nil:
		return condition("Ready", false, "ReconcilerError", failed.Error())
	case want.OperatingMode == "Suspended":
		return condition("Ready", false, "SandboxSuspended", "Sandbox is suspended")
	case withExit(pod) != "":
		return condition("Ready", false, withExit(pod), "")
	case pod == nil || !isPodReady(pod):
		return condition("Ready", false, "DependenciesNotReady", "")
	}
	return condition("Ready", true, "DependenciesReady", "Pod is Ready")
}

// withExit returns the reason for the condition Finished of a pod that has withExit.
func withExit(pod *corev1.Pod) string {
	if pod == nil {
		return ""
	}
	return map[corev1.PodPhase]string{corev1.PodSucceeded: "PodSucceeded", corev1.PodFailed: "PodFailed"}[pod.Status.Phase]
}

func isPodReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Conditions returns the conditions in the status of a Sandbox.
func Conditions(o *unstructured.Unstructured) (out []metav1.Condition) {
	var status struct {
		Conditions []metav1.Condition `json:"conditions"`
	}
	fields, _, _ := unstructured.NestedMap(o.Object, "status")
	// Ignore the error: a Sandbox without a status has no conditions.
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &status)
	return status.Conditions
}

// report writes the conditions of a Sandbox if they have changed. It removes Finished and PodScheduled if they are not in
// now. It keeps the other old conditions.
func (c *Controller) report(ctx context.Context, o *unstructured.Unstructured, now []metav1.Condition) {
	all, changed := Conditions(o), false
	for _, one := range now {
		one.ObservedGeneration, one.LastTransitionTime = o.GetGeneration(), metav1.Time{}
		changed = meta.SetStatusCondition(&all, one) || changed
	}
	for _, kind := range []string{"Finished", "PodScheduled"} {
		if meta.FindStatusCondition(now, kind) == nil {
			changed = meta.RemoveStatusCondition(&all, kind) || changed
		}
	}
	if !changed {
		return
	}
	list := []any{}
	for _, one := range all {
		list = append(list, map[string]any{
			"type": one.Type, "status": string(one.Status), "reason": one.Reason, "message": one.Message, "observedGeneration": one.ObservedGeneration,
			"lastTransitionTime": one.LastTransitionTime.UTC().Format(time.RFC3339),
		})
	}
	_ = unstructured.SetNestedSlice(o.Object, list, "status", "conditions")
	// Ignore the error: the next round tries again.
	_, _ = c.Objects.Namespace(o.GetNamespace()).UpdateStatus(ctx, o, metav1.UpdateOptions{})
}
