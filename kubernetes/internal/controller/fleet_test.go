package controller

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/placement"
	"hinit/kubernetes/internal/pool"
)

// cluster is an API server with a controller. It records what the controller applies.
type cluster struct {
	*fleet
	t           *testing.T
	applied     []*unstructured.Unstructured
	refusedKind string // Kind of object that the fake API server refuses.
}

func newCluster(t *testing.T, objects ...client.Object) *cluster {
	c := &cluster{t: t}
	api := fake.NewClientBuilder().WithScheme(v1alpha1.Scheme()).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.AgentProfile{}, &v1alpha1.AgentPool{}).Build()
	recorded := interceptor.NewClient(api, interceptor.Funcs{
		Apply: func(_ context.Context, _ client.WithWatch, o runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
			text, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
			one := &unstructured.Unstructured{Object: text}
			if err == nil && one.GetKind() == c.refusedKind {
				err = apierrors.NewForbidden(schema.GroupResource{Resource: c.refusedKind}, one.GetName(), nil)
			}
			c.applied = append(c.applied, one)
			return err
		},
	})
	log := slog.New(slog.DiscardHandler)
	c.fleet = newFleet(recorded, recorded, events.NewFakeRecorder(100), log)
	c.nodes = newNodes(recorded, log)
	return c
}

func (c *cluster) reconcileOnce() error {
	_, err := c.reconcile(c.t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "agents", Name: "pool"}})
	return err
}

func (c *cluster) profile(name string) *v1alpha1.AgentProfile {
	c.t.Helper()
	p := &v1alpha1.AgentProfile{}
	if err := c.api.Get(c.t.Context(), client.ObjectKey{Namespace: "agents", Name: name}, p); err != nil {
		c.t.Fatal(err)
	}
	return p
}

// takeAppliedKinds returns the kinds of the objects that the controller applied since the last call.
func (c *cluster) takeAppliedKinds() (out []string) {
	for _, o := range c.applied {
		out = append(out, o.GetKind())
	}
	c.applied = nil
	return out
}

func newPool() *v1alpha1.AgentPool {
	return &v1alpha1.AgentPool{ObjectMeta: metav1.ObjectMeta{Name: "pool", Namespace: "agents", UID: "pool", Generation: 1}, Spec: v1alpha1.AgentPoolSpec{
		Image: "agent:1", Hosts: v1alpha1.HostRange{Min: 1, Max: 3}, MemoryBound: 80, TopologyKey: "zone", ProfileMemory: resource.MustParse("64Mi"),
		Resources: v1alpha1.HostResources{Memory: resource.MustParse("1Gi"), CPU: resource.MustParse("1")},
	}}
}

func newProfile(name string, status v1alpha1.AgentProfileStatus) *v1alpha1.AgentProfile {
	return &v1alpha1.AgentProfile{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "agents", UID: types.UID("u-" + name), Finalizers: []string{v1alpha1.Finalizer}},
		Spec:       v1alpha1.AgentProfileSpec{Pool: "pool"}, Status: status,
	}
}

func newHost(name string) (*corev1.Pod, *coordinationv1.Lease) {
	labels := map[string]string{v1alpha1.PoolLabel: "pool", v1alpha1.Group + "/host": name}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "agents", UID: types.UID("u-" + name), Labels: labels}}
	p.Spec.Containers = []corev1.Container{{Name: "agents", Image: "agent:1"}}
	p.Status.Phase = corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agents", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	return p, newLease(name, string(p.UID), labels)
}

func newLease(host, holder string, labels map[string]string) *coordinationv1.Lease {
	now, seconds := metav1.NowMicro(), int32(270)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "hinit-fleet." + host, Namespace: "agents", Labels: labels},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
}

// TestAHostDoesNotSpeakForAnother checks that a Lease which another host has labelled with the name of this host is
// ignored. The admission policy permits a host any label on its own Lease. Otherwise the labelled host would seem to
// restart, and be lost after ten minutes.
func TestAHostDoesNotSpeakForAnother(t *testing.T) {
	pod, own := newHost("pool-0")
	forged := newLease("strange-7", "u-strange-7", own.Labels)
	c := newCluster(t, newPool(), pod, own, forged)
	state := c.stateOf(client.ObjectKeyFromObject(newPool()))
	state.observations.begin()
	v, err := c.observe(t.Context(), newPool(), "", state, time.Now())
	if err != nil || len(v.hosts) != 1 || v.hosts[0].WhyUnusable != "" {
		t.Errorf("%v, %+v", err, v.hosts)
	}
}

// scaledByHand returns the StatefulSet of a pool to which the controller gave two hosts. A user has then set the given number of
// hosts.
func scaledByHand(t *testing.T, p *v1alpha1.AgentPool, hosts int32) *appsv1.StatefulSet {
	t.Helper()
	_, template, err := pool.Objects(p, 2)
	if err != nil {
		t.Fatal(err)
	}
	return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{
		Name: "pool", Namespace: "agents", Labels: map[string]string{v1alpha1.PoolLabel: "pool"}, Annotations: map[string]string{checksumAnnotation: template + "/1/2"},
	}, Spec: appsv1.StatefulSetSpec{Replicas: &hosts}}
}

// TestAPoolThatSomebodyScaledToZeroComesBack checks that the controller restores the number of
// hosts after a user scales the StatefulSet to zero.
func TestAPoolThatSomebodyScaledToZeroComesBack(t *testing.T) {
	p := newPool()
	set := scaledByHand(t, p, 0)
	c := newCluster(t, p, set, newProfile("coder", v1alpha1.AgentProfileStatus{Host: "pool-1", Assignment: 1, Installed: 1}))
	c.stateOf(client.ObjectKeyFromObject(p)).lastApplied = time.Now()
	if err := c.reconcileOnce(); err != nil {
		t.Fatal(err)
	}
	for _, o := range c.applied {
		if o.GetKind() == "StatefulSet" {
			if n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); n != 2 {
				t.Errorf("it is scaled to %d", n)
			}
			return
		}
	}
	t.Errorf("the StatefulSet is not scaled, only %q are applied", c.takeAppliedKinds())
}

// TestObjectsThatSomebodyDeletedComeBack checks that objects that were deleted by mistake, such as
// a NetworkPolicy or a Role, are recreated without a change of the pool.
func TestObjectsThatSomebodyDeletedComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool()
		c := newCluster(t, p)
		if err := c.reconcileOnce(); err != nil {
			t.Fatal(err)
		}
		all := c.takeAppliedKinds()
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "pool", Namespace: "agents", Labels: map[string]string{v1alpha1.PoolLabel: "pool"}}}
		_, template, err := pool.Objects(p, 1)
		one := int32(1)
		set.Annotations, set.Spec.Replicas = map[string]string{checksumAnnotation: template + "/1/1"}, &one
		if err != nil || c.api.Create(t.Context(), set) != nil {
			t.Fatal(err)
		}
		for range 10 { // A fleet at rest causes no writes.
			time.Sleep(resyncInterval)
			if err := c.reconcileOnce(); err != nil || len(c.applied) > 0 {
				t.Fatalf("%v, %q are applied again", err, c.takeAppliedKinds())
			}
		}
		time.Sleep(applyInterval)
		if err := c.reconcileOnce(); err != nil {
			t.Fatal(err)
		}
		if again := c.takeAppliedKinds(); len(all) < 8 || !slices.Equal(again, all) {
			t.Errorf("%q are applied, and at first %q", again, all)
		}
	})
}

// TestARefusedObjectHoldsNoProfile checks that the controller still marks a lost host's profiles as
// lost if the API server refuses a NetworkPolicy of the pool. The pool's status must name the
// refusal.
func TestARefusedObjectHoldsNoProfile(t *testing.T) {
	c := newCluster(t, newPool(), newProfile("coder", v1alpha1.AgentProfileStatus{Host: "pool-0", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning, Ready: true}))
	c.refusedKind = "NetworkPolicy"
	if err := c.reconcileOnce(); !apierrors.IsForbidden(err) {
		t.Errorf("the round ends with %v", err)
	}
	if slices.Contains(c.takeAppliedKinds(), "StatefulSet") {
		t.Error("pods are made without their NetworkPolicy")
	}
	if st := c.profile("coder").Status; st.Phase != v1alpha1.PhaseWaiting || st.Ready {
		t.Errorf("the profile is %+v", st)
	}
	p := &v1alpha1.AgentPool{}
	if err := c.api.Get(t.Context(), client.ObjectKeyFromObject(newPool()), p); err != nil || !strings.Contains(p.Status.Doing, `can't keep its objects: cannot apply NetworkPolicy "pool"`) {
		t.Errorf("%v, the pool %q", err, p.Status.Doing)
	}
}

// TestAProfileOfADeletedPoolIsLost checks that the profile of a deleted pool does not stay "Running" and ready.
func TestAProfileOfADeletedPoolIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod, _ := newHost("pool-0")
		c := newCluster(t, pod, newProfile("coder", v1alpha1.AgentProfileStatus{Host: "pool-0", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning, Ready: true}))
		if err := c.reconcileOnce(); err != nil || !c.profile("coder").Status.Ready {
			t.Fatalf("while its pod runs: %v, %+v", err, c.profile("coder").Status)
		}
		if err := c.api.Delete(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		time.Sleep(resyncInterval)
		if err := c.reconcileOnce(); err != nil {
			t.Fatal(err)
		}
		st := c.profile("coder").Status
		if st.Phase != v1alpha1.PhaseLost || st.Ready || st.Host != "pool-0" || !strings.Contains(st.Message, `there is no AgentPool "pool"`) {
			t.Errorf("%+v", st)
		}
		if condition := meta.FindStatusCondition(st.Conditions, v1alpha1.ReachableCondition); condition == nil || condition.Reason != placement.HostLost {
			t.Errorf("a controller can't say that it is back: %+v", condition)
		}
	})
}

// TestARestoredEtcdIsWrittenToAgain checks that the controller can write after an operator restores
// etcd from an older backup, whose resource versions are lower.
func TestARestoredEtcdIsWrittenToAgain(t *testing.T) {
	p := newProfile("coder", v1alpha1.AgentProfileStatus{})
	c := newCluster(t, p)
	later := c.profile("coder")
	later.ResourceVersion = "100000"
	state := c.stateOf(client.ObjectKeyFromObject(newPool()))
	state.written.record(later, nil)
	write := func() error {
		v := &view{state: state, profiles: map[string]*v1alpha1.AgentProfile{"coder": c.profile("coder")}}
		return c.updateStatus(t.Context(), v, "coder", func(st *v1alpha1.AgentProfileStatus) { st.Host = "pool-0" })
	}
	if err := write(); !apierrors.IsConflict(err) {
		t.Fatalf("the first write: %v", err)
	}
	if err := write(); err != nil || c.profile("coder").Status.Host != "pool-0" {
		t.Errorf("the next write: %v", err)
	}
	gone := c.profile("coder")
	now := metav1.Now()
	gone.DeletionTimestamp, gone.Finalizers = &now, nil
	if state.written.record(gone, nil); len(state.written.profiles) > 0 {
		t.Error("a deleted profile stays in memory")
	}
}

// TestAFailedMoveWaitsWhateverTheClockOfItsHostSays checks that a failed move is not tried again at once, although the
// clock of its host is two days off.
func TestAFailedMoveWaitsWhateverTheClockOfItsHostSays(t *testing.T) {
	for _, off := range []time.Duration{-48 * time.Hour, 0, 48 * time.Hour} {
		v := &view{pool: newPool(), state: &poolState{}, observations: &observations{}, now: time.Now()}
		fail := &v1alpha1.MoveFailure{Attempts: 1, To: "pool-1", At: metav1.NewTime(v.now.Add(off))}
		v.profiles = map[string]*v1alpha1.AgentProfile{"coder": newProfile("coder", v1alpha1.AgentProfileStatus{Host: "pool-0", MoveFailure: fail})}
		for _, c := range []struct {
			after time.Duration
			waits bool
		}{{0, true}, {4 * time.Minute, true}, {2 * time.Minute, false}} {
			v.now = v.now.Add(c.after)
			v.observations.begin()
			_, profiles := decisionInput(v)
			v.observations.end()
			if profiles[0].LastMove.MustWait != c.waits {
				t.Errorf("a clock that is off by %v: after %v it waits: %t", off, c.after, !c.waits)
			}
		}
	}
}
