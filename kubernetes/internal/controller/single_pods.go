package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/pool"
)

// movedPodRetention is how long the pod of a single profile is kept after the profile has moved to another host. The pod needs this time
// to delete its copy of the data.
const movedPodRetention = time.Minute

// maxReasonBytes limits the length of a reason in bytes, so that the reason fits into a status.
const maxReasonBytes = 800

// applySinglePods applies the objects for the pods of the named profiles, which have their own pods. It removes pods that are
// no longer needed. In this file, a maker is the object that creates such a pod: a StatefulSet or a Sandbox.
func (f *fleet) applySinglePods(ctx context.Context, v *view, names []string, now time.Time) error {
	if v.ownersErr != nil { // Change nothing: a profile could get a second pod from a maker of the other kind.
		return fmt.Errorf("cannot look at the pods of single profiles: %w", v.ownersErr)
	}
	makers := map[string]*metav1.PartialObjectMetadata{}
	var work []func() error
	remove := func(o client.Object) {
		uid := o.GetUID()
		work = append(work, func() error { return client.IgnoreNotFound(f.api.Delete(ctx, o, client.Preconditions{UID: &uid})) })
	}
	maps.DeleteFunc(v.state.refusals, func(name, _ string) bool { return v.profiles[name] == nil })
	for _, m := range v.podOwners { // StatefulSets come first in the list.
		name := m.Labels[v1alpha1.ProfileLabel]
		wanted := slices.Contains(names, name)
		// Two controllers have created a maker each; only one of them knew that agent-sandbox is installed.
		if wanted && makers[name] != nil {
			remove(makers[name])
		}
		if wanted {
			makers[name] = m
		}
		if v.state.mustRemove(m, wanted, v.profiles[name] != nil, now) {
			remove(m)
		}
	}
	for _, name := range names {
		work = append(work, func() error {
			f.setRefusal(v.state, name, f.applySinglePod(ctx, v, v.profiles[name], makers[name]))
			return nil
		})
		if pod := v.pods[pool.SinglePodName(v.pool.Name, name)]; pod != nil && pod.DeletionTimestamp == nil && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded) {
			remove(pod) // Remove the ended pod, because agent-sandbox creates no new pod while the old one exists.
		}
	}
	return runParallel(work)
}

// mustRemove reports whether the maker m must be deleted now. wanted is true if its pod is still
// needed, and exists is true if the pod's profile exists. A pod whose profile has moved is kept for
// movedPodRetention.
func (s *poolState) mustRemove(m *metav1.PartialObjectMetadata, wanted, exists bool, now time.Time) bool {
	since, leaving := s.leaving[m.UID]
	switch {
	case wanted:
		delete(s.leaving, m.UID)
	case !exists || leaving && now.Sub(since) >= movedPodRetention:
		delete(s.leaving, m.UID)
		return true
	case !leaving:
		s.leaving[m.UID] = now
	}
	return false
}

// clipReason cuts a text to at most maxReasonBytes bytes.
func clipReason(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxReasonBytes)], "")
}

// setRefusal records err as the reason why the pod of a profile can't be created. The profile's status shows it, and other
// profiles are not delayed. A nil err clears the reason.
func (f *fleet) setRefusal(s *poolState, profile string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.refusals, profile)
		return
	}
	reason := clipReason(err.Error())
	if s.refusals[profile] != reason {
		f.log.Warn("pod can't be made", "profile", profile, "error", err)
	}
	s.refusals[profile] = reason
}

// applySinglePod applies the objects for the pod of one profile. maker is the existing StatefulSet or Sandbox, or nil.
// applySinglePod keeps the maker's kind.
func (f *fleet) applySinglePod(ctx context.Context, v *view, profile *v1alpha1.AgentProfile, maker *metav1.PartialObjectMetadata) error {
	wanted := fmt.Sprintf("%s/%d/%s", v.template, v.pool.Generation, profile.Spec.OnDelete)
	sandbox := v.sandboxes
	if maker != nil {
		if maker.Annotations[checksumAnnotation] == wanted {
			return nil
		}
		sandbox = maker.Kind == pool.Sandbox.Kind
	}
	objects, err := pool.SinglePodObjects(v.pool, profile, sandbox)
	if err != nil {
		return err
	}
	// The annotation of the last object shows that all were applied.
	objects[len(objects)-1].SetAnnotations(map[string]string{checksumAnnotation: wanted})
	for _, o := range objects {
		if err := f.applyOwn(ctx, v.pool, o); err != nil {
			return err
		}
	}
	return nil
}
