package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/pool"
)

// leaveTime is the time for which a single-profile pod is kept after its profile has moved to another host. The pod needs this
// time to delete its copy of the data.
const leaveTime = time.Minute

// maxReason limits the length of a reason in bytes, so that it fits into a status.
const maxReason = 800

// applySinglePods applies the objects of the single-profile pods for the named profiles. It removes single-profile pods that are
// not needed any more. A maker, in this file, is the object that creates a single-profile pod: a StatefulSet or a Sandbox.
func (f *fleet) applySinglePods(ctx context.Context, v *view, names []string, now time.Time) error {
	makers := map[string]*metav1.PartialObjectMetadata{}
	var work []func() error
	remove := func(o client.Object) {
		uid := o.GetUID()
		work = append(work, func() error { return client.IgnoreNotFound(f.api.Delete(ctx, o, client.Preconditions{UID: &uid})) })
	}
	for _, m := range v.podOwners { // StatefulSets come first
		name := m.Labels[v1alpha1.ProfileLabel]
		wanted := slices.Contains(names, name)
		if wanted && makers[name] != nil { // two controllers have made one maker each: only one of them knew of agent-sandbox
			remove(makers[name])
		}
		if wanted {
			makers[name] = m
		}
		if f.mustRemove(m, wanted, v.profiles[name] != nil, now) {
			remove(m)
		}
	}
	for _, name := range names {
		work = append(work, func() error {
			f.refuse(v.profiles[name], f.applySinglePod(ctx, v, v.profiles[name], makers[name]))
			return nil
		})
		if pod := v.pods[pool.Pod(v.pool.Name, name)]; pod != nil && pod.DeletionTimestamp == nil && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded) {
			remove(pod) // agent-sandbox creates no new pod while the ended pod exists
		}
	}
	return runParallel(work)
}

// mustRemove reports whether the maker m of a single-profile pod must be deleted now. The parameter wanted is true if the pod is
// still needed, and there is true if the pod's profile exists. A pod whose profile has moved is kept for leaveTime.
func (f *fleet) mustRemove(m *metav1.PartialObjectMetadata, wanted, there bool, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	since, leaving := f.leaving[m.UID]
	switch {
	case wanted:
		delete(f.leaving, m.UID)
	case !there || leaving && now.Sub(since) >= leaveTime:
		delete(f.leaving, m.UID)
		return true
	case !leaving:
		f.leaving[m.UID] = now
	}
	return false
}

// cut shortens a text to maxReason.
func cut(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxReason)], "") }

// refuse records err as the reason why the pod of a profile can't be created. A nil err clears the reason. The profile's status
// shows the reason, and other profiles are not held up.
func (f *fleet) refuse(p *v1alpha1.AgentProfile, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.refused, p.UID)
		return
	}
	reason := cut(err.Error())
	if f.refused[p.UID] != reason {
		f.log.Warn("pod can't be made", "profile", p.Name, "error", err)
	}
	f.refused[p.UID] = reason
}

// applySinglePod applies the objects for the pod of one profile. The parameter maker is the existing StatefulSet or Sandbox, or
// nil if there is none. applySinglePod does not change the kind of an existing maker.
func (f *fleet) applySinglePod(ctx context.Context, v *view, profile *v1alpha1.AgentProfile, maker *metav1.PartialObjectMetadata) error {
	wanted := fmt.Sprintf("%s/%d/%s", v.template, v.pool.Generation, profile.Spec.OnDelete)
	sandbox := v.sandboxes
	if maker != nil {
		if maker.Annotations[sumAnnotation] == wanted {
			return nil
		}
		sandbox = maker.Kind == pool.Sandbox.Kind
	}
	objects, err := pool.SinglePodObjects(v.pool, profile, sandbox)
	if err != nil {
		return err
	}
	objects[len(objects)-1].SetAnnotations(map[string]string{sumAnnotation: wanted}) // the last annotation covers all objects
	for _, o := range objects {
		if err := f.apply(ctx, o); err != nil {
			return err
		}
	}
	return nil
}
