package controller

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	registry "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"hinit/kubernetes/api/v1alpha1"
)

// Settings are the settings of a controller, see [Run].
type Settings struct {
	API       *rest.Config
	Namespace string // namespace of the Lease for the leader election
	Metrics   string // address for metrics, HOST:PORT; "" for none
	Log       *slog.Logger
}

// Times of the leader election. The leader renews its Lease every ten seconds. If it vanishes, another controller takes over
// after half a minute. A leader that shuts down releases the Lease. Two leaders at the same time do no harm, because each
// write is a compare-and-swap.
const (
	leaseDuration = 30 * time.Second
	renewDeadline = 20 * time.Second
	retryPeriod   = 10 * time.Second
)

// Run waits until this process is the leader, and then controls the pools of the cluster until ctx ends. It returns an error
// if it stops being the leader.
func Run(ctx context.Context, s Settings) error {
	logger := logr.FromSlogHandler(s.Log.Handler())
	ctrl.SetLogger(logger)
	ours, err := labels.NewRequirement(v1alpha1.PoolLabel, selection.Exists, nil)
	if err != nil {
		return err
	}
	pools := cache.ByObject{Label: labels.NewSelector().Add(*ours)}
	lease, renew, retry, once := leaseDuration, renewDeadline, retryPeriod, true
	options := ctrl.Options{
		Scheme: v1alpha1.Scheme(), Logger: logger,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Pod{}: pools, &coordinationv1.Lease{}: pools, &appsv1.StatefulSet{}: pools,
				&corev1.Node{}: {Transform: pruneNode},
			},
		},
		Metrics:        server.Options{BindAddress: cmp.Or(s.Metrics, "0")},
		LeaderElection: true, LeaderElectionID: "hinit-fleet-controller", LeaderElectionNamespace: s.Namespace, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: &lease, RenewDeadline: &renew, RetryPeriod: &retry,
		Controller: config.Controller{SkipNameValidation: &once},
	}
	m, err := ctrl.NewManager(s.API, options)
	if err != nil {
		return fmt.Errorf("cannot begin to control: %w", err)
	}
	if s.Metrics != "" {
		if err := registry.Registry.Register(metrics{m.GetCache(), s.Log}); err != nil {
			return fmt.Errorf("cannot serve the metrics: %w", err)
		}
	}
	nodes := newNodes(m.GetCache(), s.Log)
	if err := m.Add(nodes); err != nil {
		return fmt.Errorf("cannot begin to control: %w", err)
	}
	f := newFleet(m.GetClient(), m.GetAPIReader(), m.GetEventRecorder("hinit-fleet"), s.Log)
	f.nodes = nodes
	err = ctrl.NewControllerManagedBy(m).Named("pools").
		For(&v1alpha1.AgentPool{}).
		Owns(&appsv1.StatefulSet{}).
		Watches(&v1alpha1.AgentProfile{}, handler.EnqueueRequestsFromMapFunc(poolRequests)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(poolRequests)).
		Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(poolRequests)).
		WatchesRawSource(source.Channel(nodes.podEvents, handler.EnqueueRequestsFromMapFunc(poolRequests))).
		WithOptions(controllerOptions()).
		Complete(reconcile.Func(f.reconcile))
	if err != nil {
		return fmt.Errorf("cannot begin to control: %w", err)
	}
	return m.Start(ctx)
}

// controllerOptions sets a constant retry delay. An object that the API server always refuses must
// not delay the detection of other faults.
func controllerOptions() controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: 2, RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minRoundInterval, resyncInterval),
	}
}

// poolRequests returns a request to reconcile the pool to which an object belongs.
func poolRequests(_ context.Context, o client.Object) []reconcile.Request {
	name := o.GetLabels()[v1alpha1.PoolLabel]
	if p, is := o.(*v1alpha1.AgentProfile); is {
		name = p.Spec.Pool
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: o.GetNamespace(), Name: name}}}
}

// pruneNode removes the fields of a Node that the controller does not use, to save memory in the cache.
func pruneNode(o any) (any, error) {
	n, is := o.(*corev1.Node)
	if !is {
		return o, nil
	}
	out := &corev1.Node{ObjectMeta: n.ObjectMeta}
	out.ManagedFields, out.Annotations = nil, nil
	out.Status.Addresses, out.Status.DaemonEndpoints = n.Status.Addresses, n.Status.DaemonEndpoints
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, Reason: c.Reason}}
		}
	}
	return out, nil
}
