package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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

	"hinit/internal/pause"
	"hinit/sandbox"
	"hinit/sandbox/gate"
)

// Resources of agent-sandbox's extensions. A warm pool keeps started Sandboxes ready, which are made from a template. A claim
// takes one Sandbox out of the pool, so that no pod has to be started.
var (
	extensions       = schema.GroupVersion{Group: "extensions.agents.x-k8s.io", Version: "v1beta1"}
	claimKind        = extensions.WithResource("sandboxclaims")
	poolKind         = extensions.WithResource("sandboxwarmpools")
	templateResource = extensions.WithResource("sandboxtemplates")
)

// maxWarmPools limits the warm pools. Each pod spec needs its own pool, and agents can make containers with any number of
// different specs.
const maxWarmPools = 4

// createClaim creates a claim for a container if a warm pool has a ready Sandbox with the same pod spec. Otherwise it returns
// false, and the caller must create a new Sandbox. In that case, createClaim also makes a pool for later containers with this
// spec, if a pool can serve them.
func (e *Engine) createClaim(ctx context.Context, r *record, pod *corev1.Pod) (bool, error) {
	if e.settings.WarmSandboxes == 0 || slices.ContainsFunc(r.spec.Mounts, func(m sandbox.Mount) bool { return m.Type != "tmpfs" && m.Source != gateVolume }) {
		return false, nil // A running pod can't get more mounts, so there is no claim.
	}
	name, err := poolName(r, pod)
	if err != nil {
		return false, err
	}
	pool, err := e.objects.Resource(poolKind).Namespace(e.settings.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		err = e.makePool(ctx, name, pod)
	}
	if err != nil || pool == nil {
		if err != nil {
			e.logf("cannot keep sandboxes ready: %v", err)
		}
		return false, nil
	}
	e.markUsed(name)
	if waits, _, _ := unstructured.NestedInt64(pool.Object, "status", "readyReplicas"); waits == 0 {
		return false, nil
	}
	var made sandbox.Spec
	if err := decode(pool.GetAnnotations()[annotationSpec], &made); err != nil {
		return false, err
	}
	// In the pool's pods, the helper is at the path in the pool's template.
	r.spec.Mounts, r.spec.Entrypoint = made.Mounts, made.Entrypoint
	note, err := json.Marshal(r.spec)
	if err != nil {
		return false, err
	}
	body := map[string]any{"warmPoolRef": map[string]any{"name": name}}
	if e.settings.ExpireAfter > 0 {
		body["lifecycle"] = map[string]any{"shutdownTime": e.expiryTime(), "shutdownPolicy": "Delete"}
	}
	notes := maps.Clone(pod.Annotations)
	notes[annotationSpec] = string(note)
	return true, e.createObject(ctx, claimKind, "SandboxClaim", pod.Name, body, pod.Labels, notes, pod.OwnerReferences)
}

// poolName returns the name of the warm pool for a container. Containers whose pods differ only in names and labels share a
// pool.
func poolName(r *record, pod *corev1.Pod) (string, error) {
	text, err := json.Marshal(pod.Spec)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(pod.Labels[labelNetwork] + strings.ReplaceAll(string(text), helperDir(r), gate.DirPrefix)))
	return "hinit-sandbox-" + hex.EncodeToString(sum[:8]), nil
}

// makePool makes a warm pool and its template, unless the cluster already has maxWarmPools pools.
func (e *Engine) makePool(ctx context.Context, name string, pod *corev1.Pod) error {
	pools, err := e.objects.Resource(poolKind).Namespace(e.settings.Namespace).List(ctx, metav1.ListOptions{LabelSelector: labelPool})
	if err != nil || len(pools.Items) >= maxWarmPools {
		return err
	}
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&pod.Spec)
	if err != nil {
		return err
	}
	labels := map[string]string{labelNetwork: pod.Labels[labelNetwork], managedBy: pod.Labels[managedBy]}
	form := map[string]any{
		"podTemplate":             map[string]any{"metadata": map[string]any{"labels": toAnyMap(labels)}, "spec": spec},
		"networkPolicyManagement": "Unmanaged", // don't make NetworkPolicies: the policies in the manifests apply
	}
	pool := map[string]any{"replicas": int64(e.settings.WarmSandboxes), "sandboxTemplateRef": map[string]any{"name": name}}
	labels[labelPool] = "true"
	notes := map[string]string{annotationSpec: pod.Annotations[annotationSpec]}
	err = e.createObject(ctx, templateResource, "SandboxTemplate", name, form, labels, nil, pod.OwnerReferences)
	if err == nil || apierrors.IsAlreadyExists(err) {
		err = e.createObject(ctx, poolKind, "SandboxWarmPool", name, pool, labels, notes, pod.OwnerReferences)
	}
	return err
}

// waitingClaims returns the containers whose claims have no Sandbox yet.
func (e *Engine) waitingClaims(ctx context.Context, selector string) ([]*record, error) {
	if e.settings.WarmSandboxes == 0 {
		return nil, nil
	}
	list, err := e.objects.Resource(claimKind).Namespace(e.settings.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if apierrors.IsNotFound(err) { // The cluster lacks agent-sandbox's extensions.
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []*record
	for i := range list.Items {
		if r, ok := recordOf(&list.Items[i]); ok {
			r.claim = &list.Items[i]
			out = append(out, r)
		}
	}
	return out, nil
}

// claimOf returns the claim to which a Sandbox belongs. ok is false if the engine created the Sandbox without a claim.
func claimOf(object *unstructured.Unstructured) (claim metav1.OwnerReference, ok bool) {
	owners := object.GetOwnerReferences()
	at := slices.IndexFunc(owners, func(o metav1.OwnerReference) bool { return o.Kind == "SandboxClaim" })
	if at < 0 {
		return claim, false
	}
	return owners[at], true
}

// bind waits until a claim has a Sandbox, and labels the Sandbox with the container's id. The controller of agent-sandbox
// copies the label to the pod.
func (e *Engine) bind(ctx context.Context, r *record) error {
	name := ""
	for name == "" {
		o, err := e.objects.Resource(claimKind).Namespace(e.settings.Namespace).Get(ctx, r.claim.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if name, _, _ = unstructured.NestedString(o.Object, "status", "sandbox", "name"); name == "" && !pause.For(ctx, 20*time.Millisecond) {
			return errors.Join(context.Cause(ctx), fmt.Errorf("the claim %s has no Sandbox: %s", r.claim.GetName(), objectReason(o)))
		}
	}
	notes := r.claim.GetAnnotations()
	meta := map[string]any{"labels": r.claim.GetLabels(), "annotations": map[string]string{annotationSpec: notes[annotationSpec], annotationCreated: notes[annotationCreated]}}
	patch, err := json.Marshal(map[string]any{"metadata": meta, "spec": map[string]any{"podTemplate": map[string]any{"metadata": meta}}})
	if err != nil {
		return err
	}
	_, err = e.objects.Resource(sandboxResource).Namespace(e.settings.Namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// postponeClaimExpiry postpones the expiry of a claim and its Sandbox, if they expire soon.
func (e *Engine) postponeClaimExpiry(ctx context.Context, name string) error {
	ask, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	o, err := e.objects.Resource(claimKind).Namespace(e.settings.Namespace).Get(ask, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if text, _, _ := unstructured.NestedString(o.Object, "spec", "lifecycle", "shutdownTime"); !e.expiresSoon(text) {
		return nil
	}
	return e.patch(ctx, claimKind, name, nil, map[string]any{"lifecycle": map[string]any{"shutdownTime": e.expiryTime(), "shutdownPolicy": "Delete"}})
}

// deleteUnusedPools deletes each warm pool from which no container was made during the idle time. since is the start of this
// process, before which uses are unknown.
func (e *Engine) deleteUnusedPools(ctx context.Context, since time.Time) error {
	if e.settings.WarmSandboxes == 0 || e.settings.IdleTime == 0 || time.Since(since) < e.settings.IdleTime {
		return nil
	}
	defer withRequestTimeout(&ctx)()
	pools, err := e.objects.Resource(poolKind).Namespace(e.settings.Namespace).List(ctx, metav1.ListOptions{LabelSelector: labelPool})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, pool := range pools.Items {
		if time.Since(e.lastUse(pool.GetName())) < e.settings.IdleTime {
			continue
		}
		for _, of := range []schema.GroupVersionResource{poolKind, templateResource} {
			if gone := e.objects.Resource(of).Namespace(e.settings.Namespace).Delete(ctx, pool.GetName(), metav1.DeleteOptions{}); !apierrors.IsNotFound(gone) {
				err = errors.Join(err, gone)
			}
		}
	}
	return err
}
