package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/placement"
	"hinit/kubernetes/internal/pool"
)

// view is the state of one pool, as read at the start of a round.
type view struct {
	pool         *v1alpha1.AgentPool
	state        *poolState
	observations *observations
	now          time.Time
	template     string              // Checksum of the wanted pod template.
	statefulSet  *appsv1.StatefulSet // StatefulSet of the hosts; nil if there is none
	profiles     map[string]*v1alpha1.AgentProfile
	hosts        []placement.Host
	pods         map[string]*corev1.Pod
	podOwners    []*metav1.PartialObjectMetadata // StatefulSets and Sandboxes that create the pods of single profiles.
	ownersErr    error                           // Error that made podOwners incomplete.
	// Whether agent-sandbox is installed. It stays false while no profile has or wants its own pod.
	sandboxes bool
}

// observe reads the state of a pool from the cache. template is the checksum of the wanted pod template.
func (f *fleet) observe(ctx context.Context, p *v1alpha1.AgentPool, template string, state *poolState, now time.Time) (*view, error) {
	profiles, err := f.listProfiles(ctx, client.ObjectKeyFromObject(p), state)
	if err != nil {
		return nil, err
	}
	v := &view{pool: p, state: state, observations: &state.observations, now: now, template: template, profiles: profiles, pods: map[string]*corev1.Pod{}}
	only := []client.ListOption{client.InNamespace(p.Namespace), client.MatchingLabels{v1alpha1.PoolLabel: p.Name}}
	sets := &appsv1.StatefulSetList{}
	if err := f.api.List(ctx, sets, only...); err != nil {
		return nil, err
	}
	for i := range sets.Items {
		set := &sets.Items[i]
		if set.Name == p.Name {
			v.statefulSet = set
		} else if set.Labels[v1alpha1.ProfileLabel] != "" {
			m := &metav1.PartialObjectMetadata{ObjectMeta: set.ObjectMeta}
			m.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("StatefulSet"))
			v.podOwners = append(v.podOwners, m)
		}
	}
	beats := map[string]leaseState{} // Lease states by Lease name.
	leases := &coordinationv1.LeaseList{}
	if err := f.api.List(ctx, leases, only...); err != nil {
		return nil, err
	}
	for i := range leases.Items {
		name := leases.Items[i].Name
		beats[name] = v.evaluateLease(name, &leases.Items[i].Spec)
	}
	pods := &corev1.PodList{}
	if err := f.api.List(ctx, pods, only...); err != nil {
		return nil, err
	}
	for i := range pods.Items {
		f.observeHost(ctx, v, &pods.Items[i], beats[pool.LeaseName(pods.Items[i].Name)])
	}
	v.ownersErr = f.observeSandboxes(ctx, v, only)
	return v, nil
}

// observeHost adds a pod to the view, as a host. It ignores a pod that has the pool's label but belongs to something else.
// last is the state of the host's Lease.
func (f *fleet) observeHost(ctx context.Context, v *view, pod *corev1.Pod, last leaseState) {
	p := v.pool
	h := placement.Host{Name: pod.Name, OnlyProfile: pod.Labels[v1alpha1.ProfileLabel], NeverSeen: !last.renewed}
	var err error
	h.Ordinal, err = strconv.Atoi(strings.TrimPrefix(pod.Name, p.Name+"-"))
	if h.OnlyProfile == "" && err != nil || h.OnlyProfile != "" && pod.Name != pool.SinglePodName(p.Name, h.OnlyProfile) {
		return
	}
	v.pods[pod.Name] = pod
	h.Updated, _ = pool.Updated(p, v.template, &pod.Spec)
	node := &corev1.Node{}
	if pod.Spec.NodeName != "" && f.api.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, node) == nil {
		h.Zone = node.Labels[p.Spec.TopologyKey]
	}
	lost := notReadyReason(node)
	if lost == "" && f.nodes.isSilent(pod.Spec.NodeName, v.now) {
		lost = "does not answer"
	}
	if h.WhyUnusable = "its node " + pod.Spec.NodeName + " " + lost; lost == "" {
		h.WhyUnusable, h.Replacing = v.unusableReason(pod, last)
		h.Broken = h.WhyUnusable != "" && pod.DeletionTimestamp == nil && pod.Spec.NodeName != "" && !agentsRunning(pod)
		h.Serving = h.Replacing && agentsRunning(pod) && last.pod == string(pod.UID) && !last.silent
	}
	h.Ready = h.WhyUnusable == "" && !h.Replacing
	v.hosts = append(v.hosts, h)
}

// observeSandboxes lists the Sandboxes of a pool, if it can have any. It does not use the cache, because agent-sandbox may be
// installed or removed at any time.
func (f *fleet) observeSandboxes(ctx context.Context, v *view, only []client.ListOption) error {
	if !slices.ContainsFunc(v.hosts, func(h placement.Host) bool { return h.OnlyProfile != "" }) &&
		!slices.ContainsFunc(slices.Collect(maps.Values(v.profiles)), (*v1alpha1.AgentProfile).WantsOwnPod) {
		return nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(pool.Sandbox)
	err := f.uncached.List(ctx, list, append(only, client.HasLabels{v1alpha1.ProfileLabel})...)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil
	}
	v.sandboxes = err == nil
	for i := range list.Items {
		list.Items[i].SetGroupVersionKind(pool.Sandbox)
		v.podOwners = append(v.podOwners, &list.Items[i])
	}
	return err
}

// lostPodDelay is how long a pod may exist after its termination grace period before it counts as lost.
const lostPodDelay = 30 * time.Second

// leaseState is the state of the program hinit-fleet on a host, according to the host's Lease.
type leaseState struct {
	pod     string // UID of the pod that last renewed the Lease.
	silent  bool   // Whether the Lease is overdue by its own duration.
	renewed bool   // Whether this controller has seen a renewal.
}

// evaluateLease evaluates the Lease of a host. It only checks whether the time in the Lease changes, because that time is
// from a node's clock, which may be wrong.
func (v *view) evaluateLease(name string, l *coordinationv1.LeaseSpec) leaseState {
	if l.HolderIdentity == nil || l.RenewTime == nil {
		return leaseState{}
	}
	one := v.observations.observe("lease "+name, *l.HolderIdentity+" "+l.RenewTime.Format(time.RFC3339Nano), v.now)
	d := l.LeaseDurationSeconds
	return leaseState{pod: *l.HolderIdentity, renewed: one.changed, silent: d != nil && v.now.Sub(one.since) > time.Duration(*d)*time.Second}
}

// unusableReason returns the reason why a host can't be used although its node is healthy, or "" if it can be used. If the
// reason will pass because the host's pod is ending or starting, replacing is true.
func (v *view) unusableReason(pod *corev1.Pod, last leaseState) (reason string, replacing bool) {
	if pod.DeletionTimestamp != nil {
		limit := lostPodDelay
		if s := pod.DeletionGracePeriodSeconds; s != nil {
			limit += time.Duration(*s) * time.Second
		}
		if v.now.Sub(v.observations.observe("end "+string(pod.UID), "", v.now).since) > limit {
			return "its pod does not end", false
		}
		return "its pod is being replaced", true
	}
	switch pod.Status.Phase {
	case corev1.PodPending:
		return "its pod starts: " + pendingReason(pod), true
	case corev1.PodFailed, corev1.PodSucceeded:
		return "its pod has ended: " + cmp.Or(pod.Status.Reason, pod.Status.Message, string(pod.Status.Phase)), false
	case corev1.PodRunning, corev1.PodUnknown: // The state of the containers and the Lease decides below.
	}
	for _, c := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		switch {
		case c.ContainerID != "" && c.ContainerID == pod.Annotations[pool.ReplacedAnnotation]:
			return "its container gets a new image", true
		case c.State.Running != nil && c.Started != nil && !*c.Started:
			return fmt.Sprintf("its container %s begins", c.Name), true
		case c.State.Running != nil:
		case c.State.Terminated != nil:
			return fmt.Sprintf("its container %s has ended: %s, code %d", c.Name, cmp.Or(c.State.Terminated.Reason, "no reason"), c.State.Terminated.ExitCode), false
		case c.State.Waiting != nil:
			return fmt.Sprintf("its container %s waits: %s", c.Name, cmp.Or(c.State.Waiting.Reason, "no reason")), false
		}
	}
	if last.pod != string(pod.UID) {
		return "its hinit-fleet has not begun", true
	}
	if last.silent {
		return "its hinit-fleet does not report", false
	}
	return "", false
}

// notReadyReason returns the reason why a node is not ready. It returns "" if the node is ready or does not report.
func notReadyReason(node *corev1.Node) string {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return "is not ready (" + cmp.Or(c.Reason, string(c.Status)) + ")"
		}
	}
	return ""
}

func agentsRunning(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running != nil })
}

func pendingReason(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return cmp.Or(c.Message, c.Reason)
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Waiting != nil {
			return c.State.Waiting.Reason
		}
	}
	return "no reason"
}

const (
	// spareKey is the key of the observation "one fewer host would suffice".
	spareKey = "spare"
	// restartLimit is how long a host may take to restart. After that time it counts as lost, and a user can give up its
	// data.
	restartLimit = 10 * time.Minute
	// moveLimit is the time after which a move counts as stuck. A host that hangs, or that an attacker has taken over, may
	// never end the move.
	moveLimit = time.Hour
)

// overdue reports whether a host has been restarting for longer than restartLimit. A host without a pod counts as restarting.
func (v *view) overdue(host string) bool {
	i := slices.IndexFunc(v.hosts, func(h placement.Host) bool { return h.Name == host })
	if i >= 0 && (!v.hosts[i].Replacing || v.hosts[i].Serving) {
		return false
	}
	return v.now.Sub(v.observations.observe("away "+host, "", v.now).since) > restartLimit
}

// phasesWithData are the phases that a host reports only if it has the profile's data.
var phasesWithData = []v1alpha1.Phase{
	v1alpha1.PhaseRunning, v1alpha1.PhaseStopping, v1alpha1.PhaseStopped, v1alpha1.PhaseBackoff, v1alpha1.PhaseParked,
}

// decisionInput converts a view to the arguments of [placement.Decide].
func decisionInput(v *view) (placement.Pool, []placement.Profile) {
	p := v.pool
	in := placement.Pool{
		Name: p.Name, Min: int(p.Spec.Hosts.Min), Max: int(p.Spec.Hosts.Max), HostMemory: pool.HostMemory(p), Drain: p.Spec.Drain,
		MaxUnavailable: int(p.Spec.Rollout.MaxUnavailable), Leaving: p.Status.Leaving,
	}
	in.Replicas = in.Min
	if v.statefulSet != nil && v.statefulSet.Spec.Replicas != nil {
		in.Replicas = int(*v.statefulSet.Spec.Replicas)
		// A user may have scaled the StatefulSet up, so use the controller's own last number of hosts.
		if last, err := strconv.Atoi(path.Base(v.statefulSet.Annotations[checksumAnnotation])); err == nil {
			in.Replicas = min(in.Replicas, last)
		}
	}
	in.SpareSince = v.observations.previous[spareKey].since
	var out []placement.Profile
	overdue := map[string]bool{} // Cached results by host, because many profiles share one host.
	for _, one := range v.profiles {
		s := &one.Status
		if _, known := overdue[s.Host]; !known {
			overdue[s.Host] = s.Host != "" && v.overdue(s.Host)
		}
		q := placement.Profile{
			Name: one.Name, Owner: s.Host, Installed: one.InstalledAssignment() == s.Assignment && s.Assignment > 0 && !s.Missing, Memory: pool.ReservedMemory(p, one), Priority: one.Spec.Priority,
			Pin: one.Spec.Pin, Pod: pool.SinglePodName(p.Name, one.Name), OwnPod: one.WantsOwnPod(), Refused: v.state.refusals[one.Name], Deleting: one.DeletionTimestamp != nil,
		}
		for _, c := range s.Conditions {
			if c.Type == v1alpha1.ReachableCondition {
				q.Lost = c.Reason
			}
			if c.Type == v1alpha1.PlacedCondition {
				q.Pending = c.Message
			}
		}
		if s.Move != nil {
			since := v.observations.observe("moving "+string(one.UID), s.Move.Since.String(), v.now).since
			q.MoveTarget, q.MoveStuck = s.Move.To, v.now.Sub(since) > moveLimit
		}
		if fail := s.MoveFailure; fail != nil {
			// Use this controller's clock, because fail.At is from a node's clock.
			since := v.observations.observe("move "+string(one.UID), fail.At.String(), v.now).since
			q.LastMove = placement.LastMove{FailedTo: fail.To, MustWait: v.now.Sub(since) < placement.MoveDelay(fail.Attempts)}
		}
		if r := one.Spec.Recover; r != nil {
			q.LostHost = r.LostHost
		}
		q.Handled = equality.Semantic.DeepEqual(one.Spec.Recover, s.Recovered)
		q.Overdue = overdue[s.Host]
		q.Missing = q.Lost == "" && s.Phase == v1alpha1.PhaseLost
		q.Present = q.Lost == "" && slices.Contains(phasesWithData, s.Phase)
		out = append(out, q)
	}
	return in, out
}
