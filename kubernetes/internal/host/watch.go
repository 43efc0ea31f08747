package host

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/kubernetes/api/v1alpha1"
)

// Field selectors of the two watches: for the profiles that are placed on this host, and for the profiles that move to it.
// When a move ends, the profile leaves one watch and enters the other, in any order.
const (
	ownField  = "status.host"
	moveField = "status.move.to"
)

// watch follows the profiles whose field contains the name of this host.
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

// handleEvent handles an event from the watch with the given field selector. exists is false if the
// profile is no longer in the watch.
func (h *host) handleEvent(field string, o any, exists bool) {
	if gone, is := o.(cache.DeletedFinalStateUnknown); is {
		o = gone.Obj
	}
	p, is := o.(*v1alpha1.AgentProfile)
	if !is {
		return
	}
	h.mu.Lock()
	if exists {
		h.watched[field][p.Name] = p
	} else {
		delete(h.watched[field], p.Name)
	}
	h.mu.Unlock()
	h.queue.Add(p.Name)
}

// cached returns a profile from the watch caches, or nil if neither has it. It must not be modified.
func (h *host) cached(name string) *v1alpha1.AgentProfile {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.watched[ownField][name]; p != nil {
		return p
	}
	return h.watched[moveField][name]
}
