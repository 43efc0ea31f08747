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
	askEvery = 2 * time.Second
	askTime  = 2 * time.Second // for one connection
	// mostSilent is how many connections may fail before a node is told to be silent.
	mostSilent = 3
	// believed is how long silence counts. Then Kubernetes has judged: a node that it holds for ready can't be reached from here alone.
	believed = 90 * time.Second
)

// nodes connects to the kubelets of the nodes that have hosts. Kubernetes tells after 50 seconds that a node has vanished. A connection that is
// refused is an answer of the machine. Where none ever worked, the network forbids them, and nothing counts.
type nodes struct {
	api  client.Reader // of a cache
	log  *slog.Logger
	news chan event.GenericEvent // a pod of each node that begins to be silent, or ends it

	mu sync.Mutex
	by map[string]*node
}

type node struct {
	answered time.Time // the last time; zero for never
	failed   int       // connections since then
}

func newNodes(api client.Reader, log *slog.Logger) *nodes {
	return &nodes{api: api, log: log, news: make(chan event.GenericEvent), by: map[string]*node{}}
}

// silent reports whether a node has answered, and does not any more.
func (n *nodes) silent(name string, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	one := n.by[name]
	return one != nil && one.failed >= mostSilent && now.Sub(one.answered) < believed
}

// Start asks until ctx ends. Only the controller that leads asks.
func (n *nodes) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		next := time.After(askEvery)
		n.ask(ctx)
		select {
		case <-ctx.Done():
		case <-next:
		}
	}
	return nil
}

// ask connects to each node once.
func (n *nodes) ask(ctx context.Context) {
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
	for name := range n.by {
		if on[name] == nil {
			delete(n.by, name)
		}
	}
	n.mu.Unlock()
	var all sync.WaitGroup
	for name, hosts := range on {
		all.Go(func() {
			if n.note(name, n.answers(ctx, name)) {
				for _, pod := range hosts {
					select {
					case n.news <- event.GenericEvent{Object: pod}:
					case <-ctx.Done():
					}
				}
			}
		})
	}
	all.Wait()
}

// answers reports whether the machine of a node answers.
func (n *nodes) answers(ctx context.Context, name string) bool {
	one := &corev1.Node{}
	if n.api.Get(ctx, client.ObjectKey{Name: name}, one) != nil {
		return false
	}
	port := strconv.Itoa(int(one.Status.DaemonEndpoints.KubeletEndpoint.Port))
	for _, a := range one.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		conn, err := (&net.Dialer{Timeout: askTime}).DialContext(ctx, "tcp", net.JoinHostPort(a.Address, port))
		if err == nil {
			_ = conn.Close()
		}
		if err == nil || errors.Is(err, unix.ECONNREFUSED) {
			return true
		}
	}
	return false
}

// note takes in whether a node answers. It reports whether that makes it silent, or ends it.
func (n *nodes) note(name string, answers bool) (news bool) {
	now := time.Now()
	was := n.silent(name, now)
	n.mu.Lock()
	one := n.by[name]
	switch {
	case answers:
		n.by[name] = &node{answered: now}
	case one != nil:
		one.failed++
	}
	n.mu.Unlock()
	is := n.silent(name, now)
	if is != was {
		n.log.Info("node", "name", name, "silent", is)
	}
	return is != was
}
