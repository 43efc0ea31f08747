package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/placement"
	"hinit/kubernetes/internal/pool"
)

// carryOut performs the planned actions, several at the same time.
func (f *fleet) carryOut(ctx context.Context, v *view, actions []placement.Action) error {
	var work []func() error
	for _, a := range actions {
		work = append(work, func() error { return f.carryOutOne(ctx, v, a) })
	}
	return runParallel(work)
}

func (f *fleet) carryOutOne(ctx context.Context, v *view, a placement.Action) error {
	switch a := a.(type) {
	case placement.Assign:
		return f.updateStatus(ctx, v, a.Profile, func(st *v1alpha1.AgentProfileStatus) {
			st.Host, st.Phase, st.Message = a.Host, v1alpha1.PhaseStarting, "waits for host "+a.Host
			st.Assignment++
			meta.RemoveStatusCondition(&st.Conditions, v1alpha1.PlacedCondition)
		})
	case placement.MarkPending:
		return f.updateStatus(ctx, v, a.Profile, func(st *v1alpha1.AgentProfileStatus) {
			setPhase(st, v1alpha1.PhasePending, a.Reason)
			meta.SetStatusCondition(&st.Conditions, metav1.Condition{Type: v1alpha1.PlacedCondition, Status: metav1.ConditionFalse, Reason: "NoHost", Message: a.Reason})
		})
	case placement.MarkUnreachable:
		return f.updateStatus(ctx, v, a.Profile, func(st *v1alpha1.AgentProfileStatus) {
			word := v1alpha1.PhaseLost
			if a.Condition == placement.HostRestarts {
				word = v1alpha1.PhaseWaiting
			}
			setPhase(st, word, a.Reason)
			meta.SetStatusCondition(&st.Conditions, metav1.Condition{Type: v1alpha1.ReachableCondition, Status: metav1.ConditionFalse, Reason: a.Condition, Message: a.Reason})
		})
	case placement.MarkReachable:
		return f.updateStatus(ctx, v, a.Profile, func(st *v1alpha1.AgentProfileStatus) {
			setPhase(st, v1alpha1.PhaseStarting, "host "+st.Host+" is back")
			meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ReachableCondition)
		})
	case placement.StartMove:
		return f.updateStatus(ctx, v, a.Profile, func(st *v1alpha1.AgentProfileStatus) {
			st.Move = &v1alpha1.Move{To: a.To, Reason: a.Reason, Since: metav1.Now()}
		})
	case placement.CancelMove:
		return f.updateStatus(ctx, v, a.Profile, func(st *v1alpha1.AgentProfileStatus) { st.Move, st.Message = nil, a.Reason })
	case placement.GiveUp:
		return f.updateStatus(ctx, v, a.Profile, func(st *v1alpha1.AgentProfileStatus) {
			st.Host, st.Installed, st.Missing, st.Receipt, st.Move, st.Applied = "", 0, false, nil, nil, ""
			st.Assignment++
			st.Recovered = v.profiles[a.Profile].Spec.Recover.DeepCopy()
			setPhase(st, v1alpha1.PhasePending, "the data on host "+a.Owner+" was given up")
			meta.RemoveStatusCondition(&st.Conditions, v1alpha1.ReachableCondition)
		})
	case placement.HandleRecovery:
		p := v.profiles[a.Profile]
		if a.Ignored != "" {
			f.events.Eventf(p, nil, corev1.EventTypeWarning, "RecoverIgnored", "Recover", "%s; remove it before you set it again", a.Ignored)
		}
		return f.updateStatus(ctx, v, a.Profile, func(st *v1alpha1.AgentProfileStatus) { st.Recovered = p.Spec.Recover.DeepCopy() })
	case placement.Replace:
		return f.replace(ctx, v, v.pods[a.Host])
	}
	return fmt.Errorf("cannot carry out an action of type %T", a)
}

func setPhase(st *v1alpha1.AgentProfileStatus, word v1alpha1.Phase, message string) {
	since := metav1.NewTime(time.Now().Truncate(time.Second))
	st.Phase, st.Ready, st.Message, st.Since = word, false, clipReason(message), &since
}

// updateStatus changes the status of a profile with the function change, and writes it by compare-and-swap.
func (f *fleet) updateStatus(ctx context.Context, v *view, name string, change func(*v1alpha1.AgentProfileStatus)) error {
	old := v.state.written.newest(v.profiles[name])
	next := old.DeepCopy()
	change(&next.Status)
	err := f.api.Status().Patch(ctx, next, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{}))
	v.state.written.record(next, err)
	if err != nil {
		return fmt.Errorf("cannot write the status of profile %q: %w", name, err)
	}
	return nil
}

// replace updates a host to the pool's image and pod template. If only the image differs and the container runs, it changes
// the image in the running pod. Otherwise it deletes the pod. It never deletes a newer pod of the same name.
func (f *fleet) replace(ctx context.Context, v *view, pod *corev1.Pod) error {
	if pod == nil || pod.DeletionTimestamp != nil {
		return nil
	}
	f.log.Info("host is replaced", "host", pod.Name)
	_, imageOnly := pool.Updated(v.pool, v.template, &pod.Spec)
	if statuses := pod.Status.ContainerStatuses; imageOnly && len(statuses) == 1 && statuses[0].State.Running != nil {
		next := pod.DeepCopy()
		pool.SetImage(&next.Spec, v.pool.Spec.Image)
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, pool.ReplacedAnnotation, statuses[0].ContainerID)
		if err := f.api.Patch(ctx, next, client.StrategicMergeFrom(pod, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("cannot change the image of host %q: %w", pod.Name, err)
		}
		return nil
	}
	return client.IgnoreNotFound(f.api.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}))
}

// confirmEmpty makes sure that no profile is on the last host or moves to it. It asks the API server, because the cache may
// be outdated. It returns hosts-1 if the host is empty, and hosts otherwise.
func (f *fleet) confirmEmpty(ctx context.Context, v *view, hosts int) (int, error) {
	last := fmt.Sprintf("%s-%d", v.pool.Name, hosts-1)
	for _, field := range []string{"status.host", "status.move.to"} {
		found := &v1alpha1.AgentProfileList{}
		if err := f.uncached.List(ctx, found, client.InNamespace(v.pool.Namespace), client.MatchingFields{field: last}, client.Limit(1)); err != nil {
			return hosts, fmt.Errorf("cannot look for profiles on host %q: %w", last, err)
		}
		if len(found.Items) > 0 {
			return hosts, nil
		}
	}
	f.log.Info("host is removed", "host", last)
	return hosts - 1, nil
}

// checksumAnnotation identifies the last applied version of an object, so that an unchanged object is not written again. On
// the StatefulSet of the hosts, it ends with the number of hosts.
const checksumAnnotation = v1alpha1.Group + "/applied"

// applyAll applies the objects of a pool with the given number of hosts, and the rights of these hosts. It writes only
// changed objects, but all objects once in each applyInterval.
func (f *fleet) applyAll(ctx context.Context, v *view, hosts int) error {
	all := v.now.Sub(v.state.lastApplied) > applyInterval
	err := errors.Join(f.applyRights(ctx, v, all), f.applyPool(ctx, v, hosts, all))
	if err == nil && all {
		v.state.lastApplied = v.now
	}
	return err
}

// applyPool applies the objects of a pool with the given number of hosts. Unless all is true, it does so only if they have
// changed.
func (f *fleet) applyPool(ctx context.Context, v *view, hosts int, all bool) error {
	wanted := fmt.Sprintf("%s/%d/%d", v.template, v.pool.Generation, hosts)
	// Compare the number of hosts too, because a user may have scaled the StatefulSet.
	if !all && v.statefulSet != nil && v.statefulSet.Annotations[checksumAnnotation] == wanted && v.statefulSet.Spec.Replicas != nil && int(*v.statefulSet.Spec.Replicas) == hosts {
		return nil
	}
	objects, _, err := pool.Objects(v.pool, hosts)
	if err != nil {
		return err
	}
	for _, o := range objects { // The StatefulSet comes last, so its annotation shows that all objects were applied.
		if o.GetKind() == "StatefulSet" {
			o.SetAnnotations(map[string]string{checksumAnnotation: wanted})
		}
		if err := f.applyOwn(ctx, v.pool, o); err != nil {
			return err
		}
	}
	return nil
}

// applyOwn applies an object of a pool, or of one of its profiles. If another owner has an object of that name, applyOwn
// changes nothing and returns an error. Otherwise it would change that object, which would be deleted together with the pool.
// Two profiles whose pods have the same name would also share a volume.
func (f *fleet) applyOwn(ctx context.Context, p *v1alpha1.AgentPool, o *unstructured.Unstructured) error {
	old := &metav1.PartialObjectMetadata{}
	old.SetGroupVersionKind(o.GroupVersionKind())
	err := f.uncached.Get(ctx, client.ObjectKeyFromObject(o), old)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("cannot read %s %q: %w", o.GetKind(), o.GetName(), err)
	case old.Labels[v1alpha1.PoolLabel] != p.Name && !metav1.IsControlledBy(old, p):
		return fmt.Errorf("cannot apply %s %q: there is one that is not of pool %q; give the pool another name, or delete that %[1]s", o.GetKind(), o.GetName(), p.Name)
	case old.Labels[v1alpha1.ProfileLabel] != o.GetLabels()[v1alpha1.ProfileLabel]:
		return fmt.Errorf("cannot apply %s %q: there is one of profile %q; give this profile another name", o.GetKind(), o.GetName(), old.Labels[v1alpha1.ProfileLabel])
	}
	return f.apply(ctx, o)
}

func (f *fleet) apply(ctx context.Context, o *unstructured.Unstructured) error {
	err := f.api.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("hinit-fleet"), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("cannot apply %s %q: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// hostRole is the ClusterRole that the controller grants to the hosts. The manifests define it.
const hostRole = "hinit-fleet-host"

// applyRights applies the ServiceAccount of a pool's hosts and grants its rights. The hosts may read only the ConfigMaps and
// Secrets that a profile of the pool names. Unless all is true, it does nothing if the rights have not changed since the last
// call.
func (f *fleet) applyRights(ctx context.Context, v *view, all bool) error {
	configMaps, secrets, leftOut := pool.Sources(maps.Values(v.profiles))
	wanted := fmt.Sprintf("%s %q %q", v.pool.UID, configMaps, secrets)
	if v.state.grantedRights == wanted && !all {
		return nil
	}
	if leftOut > 0 {
		f.log.Warn("profiles name too many ConfigMaps and Secrets, and their hosts may not read these", "pool", v.pool.Name, "profiles", leftOut)
	}
	for _, o := range rightsObjects(v.pool, configMaps, secrets) {
		if err := f.apply(ctx, o); err != nil {
			return err
		}
	}
	v.state.grantedRights = wanted
	return nil
}

// rightsObjects returns the objects that give the hosts of a pool their rights: the ServiceAccount, its roles and their bindings.
func rightsObjects(p *v1alpha1.AgentPool, configMaps, secrets []string) []*unstructured.Unstructured {
	account := pool.ServiceAccountName(p.Name)
	object := func(api, kind, name string, more map[string]any) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": api, "kind": kind}}
		maps.Copy(u.Object, more)
		u.SetName(name)
		u.SetLabels(map[string]string{"app.kubernetes.io/part-of": "hinit"})
		u.SetNamespace(p.Namespace)
		u.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(p, v1alpha1.GroupVersion.WithKind("AgentPool"))})
		return u
	}
	bind := func(kind, role string) map[string]any {
		return map[string]any{
			"roleRef":  map[string]any{"apiGroup": rbacv1.GroupName, "kind": kind, "name": role},
			"subjects": []any{map[string]any{"kind": rbacv1.ServiceAccountKind, "name": account, "namespace": p.Namespace}},
		}
	}
	rules := []any{}
	read := func(resource string, names []string) {
		if len(names) > 0 { // A rule without names would allow access to all objects, so leave it out.
			rules = append(rules, map[string]any{"apiGroups": []any{""}, "resources": []any{resource}, "verbs": []any{"get"}, "resourceNames": names})
		}
	}
	read("configmaps", configMaps)
	read("secrets", secrets)
	rbac := rbacv1.SchemeGroupVersion.String()
	return []*unstructured.Unstructured{
		object("v1", "ServiceAccount", account, nil),
		object(rbac, "Role", account, map[string]any{"rules": rules}),
		object(rbac, "RoleBinding", account, bind("Role", account)),
		object(rbac, "RoleBinding", account+".profiles", bind("ClusterRole", hostRole)),
	}
}

// handleOrphans handles the profiles of a pool that does not exist. It reports in their status that the pool is missing. It
// releases deleted profiles, but one that has a host only when all pods of the pool are gone. While it waits for these pods,
// handleOrphans requests another round. At other times, only a change of an object causes a round.
func (f *fleet) handleOrphans(ctx context.Context, key client.ObjectKey) (reconcile.Result, error) {
	state := f.stateOf(key)
	profiles, err := f.listProfiles(ctx, key, state)
	if err != nil {
		return reconcile.Result{}, err
	}
	if len(profiles) == 0 {
		f.forget(key)
		return reconcile.Result{}, nil
	}
	v := &view{state: state, profiles: profiles}
	reason := fmt.Sprintf("there is no AgentPool %q", key.Name)
	var work []func() error
	for _, p := range profiles {
		if p.Status.Host == "" && p.DeletionTimestamp == nil && p.Status.Message != reason {
			work = append(work, func() error { return f.carryOutOne(ctx, v, placement.MarkPending{Profile: p.Name, Reason: reason}) })
		}
	}
	again, err := f.abandon(ctx, v, key, reason)
	result := reconcile.Result{}
	if again {
		result.RequeueAfter = resyncInterval
	}
	return result, ignoreConflicts(errors.Join(err, runParallel(work), f.prepare(ctx, v)))
}

// abandon handles the profiles with a host when no pod of their pool is left. It marks them as lost. It clears the host of
// the deleted ones, so that the next round releases them. Their data stays on the volumes. again is true until nothing is
// left to do.
func (f *fleet) abandon(ctx context.Context, v *view, key client.ObjectKey, reason string) (again bool, err error) {
	var work []func() error
	for _, p := range v.profiles {
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ReachableCondition)
		switch {
		case p.Status.Host == "":
		case p.DeletionTimestamp != nil:
			work = append(work, func() error {
				return f.updateStatus(ctx, v, p.Name, func(st *v1alpha1.AgentProfileStatus) { st.Host, st.Move = "", nil })
			})
		case c == nil || c.Reason != placement.HostLost:
			work = append(work, func() error {
				return f.carryOutOne(ctx, v, placement.MarkUnreachable{Profile: p.Name, Condition: placement.HostLost, Reason: reason})
			})
		}
	}
	if len(work) == 0 {
		return false, nil
	}
	pods := &corev1.PodList{}
	err = f.uncached.List(ctx, pods, client.InNamespace(key.Namespace), client.MatchingLabels{v1alpha1.PoolLabel: key.Name}, client.Limit(1))
	if err != nil || len(pods.Items) > 0 {
		return true, err
	}
	return true, runParallel(work)
}
