package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/pool"
)

// TestNamesOfPoolsThatDoNotExistCostNothingLater checks that the controller stops reconciling a
// pool that never existed once no profile names it. Users can create any number of such profiles.
func TestNamesOfPoolsThatDoNotExistCostNothingLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		lists := 0
		c.fleet.uncached = interceptor.NewClient(c.api.(client.WithWatch), interceptor.Funcs{
			List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				lists++
				return api.List(ctx, list, options...)
			},
		})
		for i := range 20 {
			p := newProfile("coder", v1alpha1.AgentProfileStatus{})
			p.Finalizers, p.Spec.Pool = nil, fmt.Sprint("nowhere", i)
			key := client.ObjectKey{Namespace: "agents", Name: p.Spec.Pool}
			if err := c.api.Create(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				time.Sleep(minRoundInterval)
				if _, err := c.reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
					t.Fatal(err)
				}
			}
			if st := c.profile("coder").Status; st.Phase != v1alpha1.PhasePending || !strings.Contains(st.Message, "there is no AgentPool") {
				t.Fatalf("%+v", st)
			}
			if err := c.api.Delete(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			time.Sleep(minRoundInterval)
			if again, err := c.reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil || again != (reconcile.Result{}) {
				t.Fatalf("there is another round: %v, %v", again, err)
			}
		}
		if lists > 0 || len(c.pools) > 0 {
			t.Errorf("the API server is asked %d times, and %d pools are remembered", lists, len(c.pools))
		}
	})
}

// TestProfilesThatComeAndGoFillNoMemory checks that the controller forgets profiles that are deleted. A profile without
// a host has no finalizer, so the controller never sees that it is being deleted.
func TestProfilesThatComeAndGoFillNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, newPool())
		c.refusedKind = pool.Sandbox.Kind // A quota refuses Sandboxes.
		for i := range 10 {
			p := newProfile(fmt.Sprint("coder", i), v1alpha1.AgentProfileStatus{})
			p.Finalizers, p.Spec.Placement = nil, v1alpha1.PlacementPod
			if err := c.api.Create(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			time.Sleep(minRoundInterval)
			_ = c.reconcileOnce() // The API server refuses this profile's pod.
			if c.profile(p.Name).Status.Phase != v1alpha1.PhasePending {
				t.Fatalf("%+v", c.profile(p.Name).Status)
			}
			if err := c.api.Delete(t.Context(), c.profile(p.Name)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(minRoundInterval)
		_ = c.reconcileOnce()
		s := c.stateOf(client.ObjectKeyFromObject(newPool()))
		if len(s.phases)+len(s.refusals)+len(s.written.profiles) > 0 {
			t.Errorf("%d phases, %d refusals and %d objects are remembered", len(s.phases), len(s.refusals), len(s.written.profiles))
		}
	})
}

// TestALongReasonOfTheSchedulerIsReported checks that the controller shortens a reason that is too
// long for a status. Otherwise the API server refuses the status and the profile seems to be
// Running.
func TestALongReasonOfTheSchedulerIsReported(t *testing.T) {
	pod, beat := newHost("pool-0")
	pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodPending, nil
	pod.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/900 nodes are available: " + strings.Repeat("1 node had an untolerated taint, ", 100),
	}}
	c := newCluster(t, newPool(), pod, beat, newProfile("coder", v1alpha1.AgentProfileStatus{Host: "pool-0", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning}))
	if err := c.reconcileOnce(); err != nil {
		t.Fatal(err)
	}
	if st := c.profile("coder").Status; st.Phase != v1alpha1.PhaseWaiting || len(st.Message) > 1024 {
		t.Errorf("%s, with %d bytes", st.Phase, len(st.Message))
	}
}

// TestALongMessageOfAnAgentMakesAnEvent checks that an event's text has at most 1024 bytes. The API
// server refuses longer texts, so a crash loop caused no event.
func TestALongMessageOfAnAgentMakesAnEvent(t *testing.T) {
	said := events.NewFakeRecorder(10)
	f := newFleet(nil, nil, said, nil)
	v := &view{state: &poolState{}, profiles: map[string]*v1alpha1.AgentProfile{"coder": newProfile("coder", v1alpha1.AgentProfileStatus{})}}
	f.recordEvents(v)
	long := strings.Repeat("x", 1000)
	v.profiles["coder"] = newProfile("coder", v1alpha1.AgentProfileStatus{Phase: v1alpha1.PhaseBackoff, Cause: long, Message: long})
	f.recordEvents(v)
	if one := <-said.Events; len(one) > 1024 || !strings.Contains(one, "CrashLoop") {
		t.Errorf("an event of %d bytes", len(one))
	}
}

// TestAnErrorThatStaysDelaysNoRound checks that reconciliation keeps its interval while the API
// server always refuses an object. With growing delays, the controller would notice a lost host up
// to 17 minutes late.
func TestAnErrorThatStaysDelaysNoRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rounds := 0
		options := controllerOptions()
		options.Reconciler = reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			rounds++
			return reconcile.Result{RequeueAfter: resyncInterval}, errors.New("refused")
		})
		options.LogConstructor = func(*reconcile.Request) logr.Logger { return logr.FromSlogHandler(slog.DiscardHandler) }
		c, err := controller.NewUnmanaged("pools", options)
		if err != nil {
			t.Fatal(err)
		}
		news := make(chan event.GenericEvent, 1)
		news <- event.GenericEvent{Object: newProfile("coder", v1alpha1.AgentProfileStatus{})}
		if err := c.Watch(source.Channel(news, handler.EnqueueRequestsFromMapFunc(poolRequests))); err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Start(ctx) }()
		time.Sleep(time.Hour)
		end()
		if err := <-ended; err != nil || rounds < int(time.Hour/resyncInterval) {
			t.Errorf("%d rounds in an hour, %v", rounds, err)
		}
	})
}

// TestABrokenKindOfAnotherProjectHoldsNoProfile checks that a pool notices a lost host although the
// API server can't list Sandboxes, for example because agent-sandbox's webhook is down.
func TestABrokenKindOfAnotherProjectHoldsNoProfile(t *testing.T) {
	alone := newProfile("alone", v1alpha1.AgentProfileStatus{})
	alone.Spec.Placement = v1alpha1.PlacementPod
	c := newCluster(t, newPool(), alone, newProfile("coder", v1alpha1.AgentProfileStatus{Host: "pool-0", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning, Ready: true}))
	c.fleet.uncached = interceptor.NewClient(c.api.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if strings.HasPrefix(list.GetObjectKind().GroupVersionKind().Kind, pool.Sandbox.Kind) {
				return errors.New("conversion webhook failed")
			}
			return api.List(ctx, list, options...)
		},
	})
	if err := c.reconcileOnce(); err == nil || !strings.Contains(err.Error(), "conversion webhook failed") {
		t.Errorf("the round ends with %v", err)
	}
	if st := c.profile("coder").Status; st.Phase != v1alpha1.PhaseWaiting || st.Ready {
		t.Errorf("the profile is %+v", st)
	}
	for _, o := range c.applied {
		if o.GetLabels()[v1alpha1.ProfileLabel] != "" {
			t.Errorf("%s %s is made", o.GetKind(), o.GetName())
		}
	}
}
