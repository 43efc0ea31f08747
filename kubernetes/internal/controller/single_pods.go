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

// leaveTime is how long the pod of a single profile is kept after the profile has moved to another host. The pod needs this time
// to delete its copy of the data.
const leaveTime = time.Minute

// maxReason limits the length of a reason in bytes, so that it fits into a status.
const maxReason = 800

// applySinglePods applies the objects for the pods of the named single profiles, and removes pods that are no longer needed. A
// maker, in this file, is the object that creates such a pod: a StatefulSet or a Sandbox.
func (f *fleet) applySinglePods(ctx context.Context, v *view, names []string, now time.Time) error {
	if v.ownersErr != nil { // a profile must not get a second pod, from a maker of the other kind
		return fmt.Errorf("cannot look at the pods of single profiles: %w", v.ownersErr)
	}
	makers := map[string]*metav1.PartialObjectMetadata{}
	var work []func() error
	remove := func(o client.Object) {
		uid := o.GetUID()
		work = append(work, func() error { return client.IgnoreNotFound(f.api.Delete(ctx, o, client.Preconditions{UID: &uid})) })
	}
	maps.DeleteFunc(v.state.refused, func(name, _ string) bool { return v.profiles[name] == nil })
	for _, m := range v.podOwners { // StatefulSets come first
		name := m.Labels[v1alpha1.ProfileLabel]
		wanted := slices.Contains(names, name)
		if wanted && makers[name] != nil { // two controllers have made a maker each, and only one of them knew of agent-sandbox
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
		if pod := v.pods[pool.Pod(v.pool.Name, name)]; pod != nil && pod.DeletionTimestamp == nil && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded) {
			remove(pod) // agent-sandbox creates no new pod while the ended one exists
		}
	}
	return runParallel(work)
}

// mustRemove reports whether the maker m must be deleted now. wanted says that its pod is still needed, and there that the pod's
// profile exists. A pod whose profile has moved is kept for leaveTime.
func (s *poolState) mustRemove(m *metav1.PartialObjectMetadata, wanted, there bool, now time.Time) bool {
	since, leaving := s.leaving[m.UID]
	switch {
	case wanted:
		delete(s.leaving, m.UID)
	case !there || leaving && now.Sub(since) >= leaveTime:
		delete(s.leaving, m.UID)
		return true
	case !leaving:
		s.leaving[m.UID] = now
	}
	return false
}

// clipReason shortens a text to maxReason.
func clipReason(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxReason)], "") }

// setRefusal records err as the reason why the pod of a profile can't be created, for the profile's status. A nil err clears it.
// Other profiles are not held up.
func (f *fleet) setRefusal(s *poolState, profile string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.refused, profile)
		return
	}
	reason := clipReason(err.Error())
	if s.refused[profile] != reason {
		f.log.Warn("pod can't be made", "profile", profile, "error", err)
	}
	s.refused[profile] = reason
}

// applySinglePod applies the objects for the pod of one profile. maker is the existing StatefulSet or Sandbox, or nil; its kind
// is kept.
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
	objects[len(objects)-1].SetAnnotations(map[string]string{checksumAnnotation: wanted}) // the last object stands for all
	for _, o := range objects {
		if err := f.applyOwn(ctx, v.pool, o); err != nil {
			return err
		}
	}
	return nil
}
