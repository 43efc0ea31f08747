package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/placement"
	"hinit/kubernetes/internal/pool"
)

const (
	// minRoundInterval is the shortest time between the starts of two rounds of a pool. In a round, the controller reads the state
	// of the pool, decides and acts. One round handles all changes since the last one.
	minRoundInterval = 500 * time.Millisecond
	// resyncInterval is the interval of rounds while no change is reported. Some faults can be seen only because time has
	// passed.
	resyncInterval = 5 * time.Second
	// applyInterval is how often the objects of a pool are applied again although the pool has not changed. A user may have
	// deleted or changed one of them.
	applyInterval = 10 * time.Minute
	// maxParallelWrites is the maximum number of writes that a round runs at the same time.
	maxParallelWrites = 16
)

type fleet struct {
	api      client.Client // Client that reads from a cache and writes to the API server.
	uncached client.Reader // Client that reads directly from the API server.
	events   events.EventRecorder
	log      *slog.Logger
	nodes    *nodes

	mu    sync.Mutex
	pools map[client.ObjectKey]*poolState
}

// poolState holds the data that this controller keeps about a pool between two rounds. Only one
// round of a pool runs at a time. The state is forgotten when the pool is deleted and no profile
// names it, because users can make any number of pools and profiles.
type poolState struct {
	roundStart   time.Time    // Start of the last reconciliation round.
	observations observations // Observed values of the pool, each with the time of its last change.
	// Status of each profile in the last round; recordEvents compares it with the current one.
	phases        map[types.UID]v1alpha1.AgentProfileStatus
	grantedRights string    // Rights that the controller last granted to the hosts.
	lastApplied   time.Time // Time of the last application of all objects.
	// When the profile of a single pod was first seen on another host, by the UID of the object that creates the pod.
	leaving  map[types.UID]time.Time
	written  writtenProfiles
	mu       sync.Mutex
	refusals map[string]string // Error that prevents the creation of a single profile's pod, by profile name.
}

func newFleet(api client.Client, fresh client.Reader, recorder events.EventRecorder, log *slog.Logger) *fleet {
	return &fleet{api: api, uncached: fresh, events: recorder, log: log, pools: map[client.ObjectKey]*poolState{}}
}

// reconcile makes one round for a pool: it reads the state, decides, and carries the decision out.
func (f *fleet) reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	now := time.Now()
	state := f.stateOf(r.NamespacedName)
	if wait := minRoundInterval - now.Sub(state.roundStart); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	state.roundStart = now
	p := &v1alpha1.AgentPool{}
	if err := f.api.Get(ctx, r.NamespacedName, p); err != nil {
		if apierrors.IsNotFound(err) {
			return f.handleOrphans(ctx, r.NamespacedName)
		}
		return reconcile.Result{}, err
	}
	if p.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	_, template, err := pool.Objects(p, 0)
	if err != nil {
		return reconcile.Result{}, err
	}
	state.observations.begin()
	v, err := f.observe(ctx, p, template, state, now)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("cannot look at pool %q: %w", p.Name, err)
	}
	in, profiles := decisionInput(v)
	plan := placement.Decide(in, profiles, v.hosts, now)
	if !plan.SpareSince.IsZero() {
		v.observations.observe(spareKey, "", now)
	}
	v.observations.end()
	if plan.Replicas < in.Replicas {
		if plan.Replicas, err = f.confirmEmpty(ctx, v, in.Replicas); err != nil {
			return reconcile.Result{}, err
		}
	}
	err = f.applyAll(ctx, v, plan.Replicas)
	if err != nil { // Continue after an error: an object that the API server refuses must not delay the profiles.
		plan.Doing = clipReason("can't keep its objects: " + err.Error())
	}
	err = errors.Join(err, f.applySinglePods(ctx, v, plan.SinglePods, now), f.prepare(ctx, v), f.carryOut(ctx, v, plan.Actions))
	f.recordEvents(v)
	err = errors.Join(err, f.report(ctx, v, plan))
	return reconcile.Result{RequeueAfter: resyncInterval}, ignoreConflicts(err)
}

func (f *fleet) stateOf(pool client.ObjectKey) *poolState {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pools[pool] == nil {
		f.pools[pool] = &poolState{
			leaving: map[types.UID]time.Time{}, refusals: map[string]string{}, written: writtenProfiles{profiles: map[types.UID]*v1alpha1.AgentProfile{}},
		}
	}
	return f.pools[pool]
}

func (f *fleet) forget(pool client.ObjectKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pools, pool)
}

// ignoreConflicts drops the errors of writes to an object that has changed or is gone, because the next round sees the new state.
func ignoreConflicts(err error) error {
	if joined, is := err.(interface{ Unwrap() []error }); is {
		var rest []error
		for _, one := range joined.Unwrap() {
			rest = append(rest, ignoreConflicts(one))
		}
		return errors.Join(rest...)
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// prepare removes the finalizer from deleted profiles that have no host. It adds the finalizer to a profile with data whose
// finalizer a user has removed.
func (f *fleet) prepare(ctx context.Context, v *view) error {
	var work []func() error
	for _, p := range v.profiles {
		has := controllerutil.ContainsFinalizer(p, v1alpha1.Finalizer)
		lacks := !has && p.DeletionTimestamp == nil && p.Status.Host != "" && p.InstalledAssignment() == p.Status.Assignment
		if released := has && p.DeletionTimestamp != nil && p.Status.Host == ""; !lacks && !released {
			continue
		}
		work = append(work, func() error {
			next := p.DeepCopy()
			if lacks {
				controllerutil.AddFinalizer(next, v1alpha1.Finalizer)
			} else {
				controllerutil.RemoveFinalizer(next, v1alpha1.Finalizer)
			}
			err := f.api.Patch(ctx, next, client.MergeFromWithOptions(p, client.MergeFromWithOptimisticLock{}))
			v.state.written.record(next, err)
			if err != nil {
				return fmt.Errorf("cannot write profile %q: %w", p.Name, err)
			}
			return nil
		})
	}
	return runParallel(work)
}

// runParallel runs all functions in work, at most writers at a time. It returns when all have returned, with their joined
// errors.
func runParallel(work []func() error) error {
	todo := make(chan func() error)
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for range min(maxParallelWrites, len(work)) {
		all.Go(func() {
			for one := range todo {
				if err := one(); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, one := range work {
		todo <- one
	}
	close(todo)
	all.Wait()
	return errors.Join(errs...)
}

func (f *fleet) report(ctx context.Context, v *view, plan placement.Plan) error {
	next := v.pool.DeepCopy()
	s := &next.Status
	*s = v1alpha1.AgentPoolStatus{
		ObservedGeneration: v.pool.Generation, Wanted: int32(plan.Replicas + len(plan.SinglePods)), Hosts: int32(len(v.hosts)), Profiles: int32(len(v.profiles)),
		Doing: plan.Doing, Leaving: plan.Leaving,
	}
	for _, h := range v.hosts {
		if h.WhyUnusable == "" {
			s.Reachable++
		}
		if h.Updated {
			s.Updated++
		}
	}
	for _, p := range v.profiles {
		switch {
		case p.Status.Ready:
			s.Ready++
		case p.Status.Host == "":
			s.Pending++
		case p.Status.Phase == v1alpha1.PhaseLost:
			s.Lost++
		}
	}
	if equality.Semantic.DeepEqual(next.Status, v.pool.Status) {
		return nil
	}
	if err := f.api.Status().Patch(ctx, next, client.MergeFrom(v.pool)); err != nil {
		return fmt.Errorf("cannot report on pool %q: %w", v.pool.Name, err)
	}
	return nil
}

// recordEvents creates Kubernetes Events for the changes of profiles since the last round.
func (f *fleet) recordEvents(v *view) {
	before := v.state.phases
	v.state.phases = map[types.UID]v1alpha1.AgentProfileStatus{}
	for _, p := range v.profiles {
		now := p.Status
		old, known := before[p.UID]
		if p.DeletionTimestamp == nil {
			v.state.phases[p.UID] = v1alpha1.AgentProfileStatus{Phase: now.Phase, Host: now.Host, Cause: now.Cause, LastExit: now.LastExit, MoveFailure: now.MoveFailure}
		}
		if !known {
			continue
		}
		say := func(kind, reason, format string, args ...any) {
			// Cut the text, because the API server refuses a longer event.
			f.events.Eventf(p, nil, kind, reason, "Supervise", "%s", clipReason(fmt.Sprintf(format, args...)))
		}
		switch {
		case old.Phase == now.Phase:
		case now.Phase == v1alpha1.PhaseBackoff:
			say(corev1.EventTypeWarning, "CrashLoop", "the gateway has ended (%s) and waits for its next start: %s", now.Cause, now.Message)
		case now.Phase == v1alpha1.PhaseParked:
			say(corev1.EventTypeWarning, "Parked", "the gateway is parked (%s): %s", now.Cause, now.Message)
		case now.Phase == v1alpha1.PhaseFailed:
			say(corev1.EventTypeWarning, "Failed", "the gateway can't be started: %s", now.Message)
		case now.Phase == v1alpha1.PhaseLost:
			say(corev1.EventTypeWarning, "Lost", "%s", now.Message)
		}
		if old.Host != now.Host && old.Host != "" && now.Host != "" {
			say(corev1.EventTypeNormal, "Moved", "moved from host %s to %s", old.Host, now.Host)
		}
		if now.MoveFailure != nil && (old.MoveFailure == nil || !old.MoveFailure.At.Equal(&now.MoveFailure.At)) {
			say(corev1.EventTypeWarning, "MoveFailed", "%s", now.MoveFailure.Message)
		}
		if x := now.LastExit; x != nil && (old.LastExit == nil || !old.LastExit.At.Equal(&x.At)) && (x.Cause == "shed" || x.Cause == "oom") {
			say(corev1.EventTypeWarning, "Shed", "the gateway was ended for its memory (%s)", x.Cause)
		}
	}
}

// listProfiles returns the profiles of a pool by name, each in the newest version that this controller knows.
func (f *fleet) listProfiles(ctx context.Context, pool client.ObjectKey, state *poolState) (map[string]*v1alpha1.AgentProfile, error) {
	list := &v1alpha1.AgentProfileList{}
	if err := f.api.List(ctx, list, client.InNamespace(pool.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	out := map[string]*v1alpha1.AgentProfile{}
	for i := range list.Items {
		if one := &list.Items[i]; one.Spec.Pool == pool.Name {
			out[one.Name] = state.written.newest(one)
		}
	}
	state.written.retainOnly(out)
	return out, nil
}

// writtenProfiles holds the profiles that this controller has written, until the cache shows the same versions. Otherwise a
// round could decide with a state from before its own last write.
type writtenProfiles struct {
	mu       sync.Mutex
	profiles map[types.UID]*v1alpha1.AgentProfile
}

// record records the result of a write of the profile p. After a conflict it forgets p, because it is not the newest version:
// another client has written the profile, or etcd was restored with lower version numbers.
func (w *writtenProfiles) record(p *v1alpha1.AgentProfile, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case apierrors.IsConflict(err), err == nil && p.DeletionTimestamp != nil && len(p.Finalizers) == 0:
		delete(w.profiles, p.UID)
	case err == nil:
		w.profiles[p.UID] = p
	}
}

// retainOnly forgets all profiles that are not in exist.
func (w *writtenProfiles) retainOnly(exist map[string]*v1alpha1.AgentProfile) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.profiles, func(uid types.UID, p *v1alpha1.AgentProfile) bool {
		return exist[p.Name] == nil || exist[p.Name].UID != uid
	})
}

// newest returns the profile p from the cache, or the version that this controller has written if that is newer.
func (w *writtenProfiles) newest(p *v1alpha1.AgentProfile) *v1alpha1.AgentProfile {
	w.mu.Lock()
	defer w.mu.Unlock()
	own := w.profiles[p.UID]
	if own == nil {
		return p
	}
	a, err := strconv.ParseUint(own.ResourceVersion, 10, 64)
	b, err2 := strconv.ParseUint(p.ResourceVersion, 10, 64)
	if err == nil && err2 == nil && a > b {
		return own
	}
	delete(w.profiles, p.UID)
	return p
}
