package host

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
)

// TestAnAPIServerThatNeverAnswersHoldsNoWorker checks that a worker gives up a request to the API server that is never answered. The
// server may still answer for other profiles.
func TestAnAPIServerThatNeverAnswersHoldsNoWorker(t *testing.T) {
	never := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for what, silent := range map[string]interceptor.Funcs{
		"a ConfigMap": {Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, is := o.(*corev1.ConfigMap); is {
				return never(ctx)
			}
			return c.Get(ctx, key, o, options...)
		}},
		"a finalizer": {Patch: func(ctx context.Context, _ client.WithWatch, _ client.Object, _ client.Patch, _ ...client.PatchOption) error {
			return never(ctx)
		}},
		"a policy": {Create: func(ctx context.Context, _ client.WithWatch, _ client.Object, _ ...client.CreateOption) error {
			return never(ctx)
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, _ := newVolume(t, "u1", "learnt")
			p := newCoderProfile(v1alpha1.AgentProfileStatus{Host: "me", Assignment: 1, Installed: 1})
			p.Spec.Soul = &v1alpha1.ConfigMapKey{ConfigMap: "souls", Key: "coder"}
			switch what {
			case "a finalizer":
				p.Finalizers, p.Status.Installed = nil, 0
			case "a policy":
				p.Status.Move = &v1alpha1.Move{To: "to", Since: metav1.Now()}
			}
			api := interceptor.NewClient(newFakeAPI(p), silent)
			h := newTestHost(t, "me", api, &fakeGateways{services: map[string]hinit.Service{}}, s)
			ended := make(chan bool)
			go func() { reconcileAll(t, api, h); close(ended) }()
			select {
			case <-ended:
			case <-time.After(3 * requestTimeout):
				t.Errorf("%s: the worker waits", what)
			}
		})
	}
}
