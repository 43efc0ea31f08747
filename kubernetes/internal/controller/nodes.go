package controller

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"hinit/kubernetes/api/v1alpha1"
)

const (
	probeInterval  = 2 * time.Second
	connectTimeout = 2 * time.Second
	// maxSilent is how many connections in a row must fail before a node counts as silent.
	maxSilent = 3
	// silentLimit is how long after its last answer a node can count as silent. By then, Kubernetes has marked a vanished
	// node as not ready. If the node is still ready, it is unreachable only for the controller.
	silentLimit = 90 * time.Second
)

// nodes finds vanished nodes by connecting to their kubelets, because Kubernetes needs about 50 seconds for that. A refused
// connection also shows that the machine runs. A node that has never answered does not count as vanished, because the network
// may forbid the connections.
type nodes struct {
	api       client.Reader
	log       *slog.Logger
	podEvents chan event.GenericEvent // Channel that receives every pod of a node that became silent or answers again.

	mu     sync.Mutex
	byName map[string]*node
}

type node struct {
	lastAnswer time.Time
	failures   int // number of failed connections in a row since the last answer
}

func newNodes(api client.Reader, log *slog.Logger) *nodes {
	return &nodes{api: api, log: log, podEvents: make(chan event.GenericEvent), byName: map[string]*node{}}
}

// isSilent reports whether a node that has answered before has stopped answering.
func (n *nodes) isSilent(name string, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	one := n.byName[name]
	return one != nil && one.failures >= maxSilent && now.Sub(one.lastAnswer) < silentLimit
}

// Start implements controller-runtime's manager.Runnable. It connects to all nodes every two seconds until ctx ends. It runs only
// in the leading controller.
func (n *nodes) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		next := time.After(probeInterval)
		n.probeAll(ctx)
		select {
		case <-ctx.Done():
		case <-next:
		}
	}
	return nil
}

// probeAll connects once to each node that has pods of a pool. When a node becomes silent or answers again, probeAll sends
// the node's pods to n.podEvents.
func (n *nodes) probeAll(ctx context.Context) {
	pods := &corev1.PodList{}
	if err := n.api.List(ctx, pods, client.HasLabels{v1alpha1.PoolLabel}, client.UnsafeDisableDeepCopy); err != nil {
		n.log.Warn("hosts can't be listed", "error", err)
		return
	}
	on := map[string][]*corev1.Pod{}
	for i := range pods.Items {
		if name := pods.Items[i].Spec.NodeName; name != "" {
			on[name] = append(on[name], &pods.Items[i])
		}
	}
	n.mu.Lock()
	for name := range n.byName {
		if on[name] == nil {
			delete(n.byName, name)
		}
	}
	n.mu.Unlock()
	var all sync.WaitGroup
	for name, hosts := range on {
		all.Go(func() {
			if n.recordAnswer(name, n.probe(ctx, name)) {
				for _, pod := range hosts {
					select {
					case n.podEvents <- event.GenericEvent{Object: pod}:
					case <-ctx.Done():
					}
				}
			}
		})
	}
	all.Wait()
}

// probe reports whether a node's machine accepts or refuses a connection. Both show that it runs.
func (n *nodes) probe(ctx context.Context, name string) bool {
	one := &corev1.Node{}
	if n.api.Get(ctx, client.ObjectKey{Name: name}, one) != nil {
		return false
	}
	port := strconv.Itoa(int(one.Status.DaemonEndpoints.KubeletEndpoint.Port))
	for _, a := range one.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		conn, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, "tcp", net.JoinHostPort(a.Address, port))
		if err == nil {
			_ = conn.Close()
		}
		if err == nil || errors.Is(err, unix.ECONNREFUSED) {
			return true
		}
	}
	return false
}

// recordAnswer records whether a node has answered. news is true if the node has just become silent, or answers again.
func (n *nodes) recordAnswer(name string, answers bool) (news bool) {
	now := time.Now()
	was := n.isSilent(name, now)
	n.mu.Lock()
	one := n.byName[name]
	switch {
	case answers:
		n.byName[name] = &node{lastAnswer: now}
	case one != nil:
		one.failures++
	}
	n.mu.Unlock()
	is := n.isSilent(name, now)
	if is != was {
		n.log.Info("node", "name", name, "silent", is)
	}
	return is != was
}
