package host

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/internal/pause"
	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/pool"
)

// Field selectors of the two watches on profiles: those placed on this host, and those moving to it. When a move ends, the
// profile leaves one watch and enters the other, in any order.
const (
	ownField  = "status.host"
	moveField = "status.move.to"
)

// watch follows the profiles whose field is the name of this host.
func (h *host) watch(ctx context.Context, field string) {
	only := client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector(field, h.settings.Name)}
	options := func(o metav1.ListOptions) *client.ListOptions {
		return &client.ListOptions{Namespace: h.settings.Namespace, FieldSelector: only.Selector, Raw: &o}
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := &v1alpha1.AgentProfileList{}
			return list, h.settings.API.List(ctx, list, options(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			return h.settings.API.Watch(ctx, &v1alpha1.AgentProfileList{}, options(o))
		},
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source, ObjectType: &v1alpha1.AgentProfile{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { h.handleEvent(field, o, true) },
			UpdateFunc: func(_, o any) { h.handleEvent(field, o, true) },
			DeleteFunc: func(o any) { h.handleEvent(field, o, false) },
		},
		Transform: func(o any) (any, error) {
			if p, is := o.(*v1alpha1.AgentProfile); is {
				p.ManagedFields = nil
			}
			return o, nil
		},
	})
	informer.RunWithContext(ctx)
}

// handleEvent handles an event from the watch with the given field selector. there is false if the profile has left the watch.
func (h *host) handleEvent(field string, o any, there bool) {
	if gone, is := o.(cache.DeletedFinalStateUnknown); is {
		o = gone.Obj
	}
	p, is := o.(*v1alpha1.AgentProfile)
	if !is {
		return
	}
	h.mu.Lock()
	if there {
		h.seen[field][p.Name] = p
	} else {
		delete(h.seen[field], p.Name)
	}
	h.mu.Unlock()
	h.queue.Add(p.Name)
}

// cached returns a profile from the watch caches, or nil if neither has it. It must not be modified.
func (h *host) cached(name string) *v1alpha1.AgentProfile {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.seen[ownField][name]; p != nil {
		return p
	}
	return h.seen[moveField][name]
}

// renewLeaseLoop renews the Lease of the host until ctx ends. The Lease tells the controller that the host is alive, and in which
// pod. It tells other hosts the certificate of this one.
func (h *host) renewLeaseLoop(ctx context.Context) {
	for {
		err := h.renewLease(ctx)
		if err != nil && ctx.Err() == nil {
			h.settings.Log.Warn("the Lease of the host can't be renewed", "error", err)
		}
		wait := h.settings.Beat*3/4 + rand.N(h.settings.Beat/2) // random, because all hosts of a pool may have been started together
		if err != nil {
			wait = min(wait, 5*time.Second)
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// renewLease renews the host's Lease for three beats, and makes the Lease if it is missing.
func (h *host) renewLease(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	sum := h.offers.identity.sum
	now, seconds := metav1.NowMicro(), int32(3*h.settings.Beat/time.Second)
	spec := coordinationv1.LeaseSpec{HolderIdentity: &h.settings.UID, LeaseDurationSeconds: &seconds, RenewTime: &now}
	l := &coordinationv1.Lease{}
	err := h.settings.API.Get(ctx, client.ObjectKey{Namespace: h.settings.Namespace, Name: pool.Lease(h.settings.Name)}, l)
	switch {
	case apierrors.IsNotFound(err):
		l.Namespace, l.Name, l.Spec = h.settings.Namespace, pool.Lease(h.settings.Name), spec
		l.Labels = map[string]string{v1alpha1.PoolLabel: h.settings.Pool}
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, pool.CertificateAnnotation, sum)
		err = h.settings.API.Create(ctx, l)
	case err == nil:
		l.Spec = spec
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, pool.CertificateAnnotation, sum)
		err = h.settings.API.Update(ctx, l)
	}
	if err != nil {
		return fmt.Errorf("cannot renew Lease %q: %w", pool.Lease(h.settings.Name), err)
	}
	return nil
}
