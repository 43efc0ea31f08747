package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
)

// Init is the hinit of the pod, see package dial.
type Init interface {
	Watch(ctx context.Context, fn func(hinit.StatusChange) error) error
	Service(ctx context.Context, name string) (hinit.Service, error)
	Start(ctx context.Context, name string, wait hinit.Wait) (hinit.Service, error)
	Stop(ctx context.Context, name string, wait hinit.Wait) (hinit.Service, error)
	Restart(ctx context.Context, name string, wait hinit.Wait) (hinit.Service, error)
	Rescan(ctx context.Context) error
}

// Settings are what a host is.
type Settings struct {
	Name, UID string // of the pod
	Namespace string
	Pool      string
	Home      string           // the volume, as hinit has it
	Address   string           // where it listens for other hosts, HOST:PORT
	API       client.WithWatch // without a cache: a read is fresh
	Init      Init
	// Create makes a profile without data. It runs no program of the agents: one could read the tokens.
	Create func(ctx context.Context, name string) error
	// Token returns a token of this pod for other hosts, and Judge says which pod such a token is of.
	Token func() (string, error)
	Judge Judge
	Log   *slog.Logger
	Beat  time.Duration // how often the host says that it is alive; 0 is [Beat]
}

const (
	// Beat is the default time between two renewals of a host's Lease. Fifty hosts make five writes in nine seconds.
	Beat    = 90 * time.Second
	resync  = 2 * time.Minute
	workers = 4
)

// host is a running host.
type host struct {
	set     Settings
	store   *Store
	sources *sources
	offers  *offers
	queue   workqueue.TypedRateLimitingInterface[string]

	mu       sync.Mutex
	seen     map[string]map[string]*v1alpha1.AgentProfile // by the field that is watched and by name
	services map[string]hinit.Service                     // gateways by profile
	heard    map[string]uint64                            // how often hinit has told of a gateway
	known    bool                                         // hinit has said what it has
}

// Run works for a pod until ctx ends. An error means that it can't begin.
func Run(ctx context.Context, s Settings) error {
	store, err := OpenStore(s.Home)
	if err != nil {
		return err
	}
	if s.Beat == 0 {
		s.Beat = Beat
	}
	h := &host{
		set: s, store: store, seen: map[string]map[string]*v1alpha1.AgentProfile{ownField: {}, moveField: {}}, services: map[string]hinit.Service{}, heard: map[string]uint64{},
		sources: &sources{api: s.API, namespace: s.Namespace, seen: map[string]source{}},
		offers:  &offers{store: store, judge: s.Judge, log: s.Log, host: s.Address, by: map[string]*offer{}},
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](200*time.Millisecond, 30*time.Second)),
	}
	var all sync.WaitGroup
	all.Go(func() { h.beat(ctx) })
	all.Go(func() { h.watchInit(ctx) })
	for _, field := range []string{ownField, moveField} {
		all.Go(func() { h.watch(ctx, field) })
	}
	all.Go(func() { h.resync(ctx) })
	for range workers {
		all.Go(func() { h.work(ctx) })
	}
	<-ctx.Done()
	h.queue.ShutDown()
	all.Wait()
	h.offers.close()
	return nil
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// watchInit follows the status of hinit.
func (h *host) watchInit(ctx context.Context) {
	for ctx.Err() == nil {
		err := h.set.Init.Watch(ctx, func(c hinit.StatusChange) error {
			h.hear(c)
			return nil
		})
		h.mu.Lock()
		h.known = false
		h.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			h.set.Log.Warn("hinit does not answer", "error", err)
		}
		pause(ctx, time.Second)
	}
}

// hear takes in a line of the status that is followed.
func (h *host) hear(c hinit.StatusChange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c.Whole {
		h.services = map[string]hinit.Service{}
	}
	h.known = !c.Init.Booting && !c.Init.Stopping // a booting or ending container does not report the gateways' lasting state
	for _, s := range c.Services {
		if s.Kind == hinit.KindGateway {
			h.services[s.Profile] = s
			h.heard[s.Profile]++
			h.queue.Add(s.Profile)
		}
	}
}

// order gives an order about a gateway and takes in the answer, unless hinit has told of the gateway meanwhile: an answer may come late.
func (h *host) order(profile string, give func() (hinit.Service, error)) error {
	h.mu.Lock()
	heard := h.heard[profile]
	h.mu.Unlock()
	s, err := give()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil && h.heard[profile] == heard {
		h.services[profile] = s
	}
	return err
}

// service returns what hinit has said last of a gateway, and whether it has said anything.
func (h *host) service(profile string) (*hinit.Service, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s, there := h.services[profile]; there {
		return &s, h.known
	}
	return nil, h.known
}

// resync looks at everything that the volume has, and at all objects, from time to time: watches are hints.
func (h *host) resync(ctx context.Context) {
	for {
		names, err := h.store.Known()
		if err != nil {
			h.set.Log.Warn("the store can't be read", "error", err)
		}
		for name := range names {
			h.queue.Add(name)
		}
		h.mu.Lock()
		for _, names := range h.seen {
			for name := range names {
				h.queue.Add(name)
			}
		}
		h.mu.Unlock()
		if !pause(ctx, resync/2+rand.N(resync)) {
			return
		}
	}
}

// work takes names from the queue until that is shut down.
func (h *host) work(ctx context.Context) {
	for {
		name, down := h.queue.Get()
		if down {
			return
		}
		err := h.settle(ctx, name)
		switch {
		case err == nil:
			h.queue.Forget(name)
		case ctx.Err() == nil:
			h.trouble(name, err)
			h.queue.AddRateLimited(name)
		}
		h.queue.Done(name)
	}
}

// trouble logs a fault that is none of everyday life.
func (h *host) trouble(name string, err error) {
	if errors.Is(err, errAgain) {
		return
	}
	level := slog.LevelWarn
	if strings.Contains(err.Error(), "the object has been modified") {
		level = slog.LevelDebug
	}
	h.set.Log.Log(context.Background(), level, "profile has not settled", "profile", name, "error", err)
}

// errAgain says that a step has to be tried again soon.
var errAgain = errors.New("not yet")

// settle does all steps of the profiles of a name: of the object, and of data whose object is gone.
func (h *host) settle(ctx context.Context, name string) error {
	p := h.cached(name)
	known, err := h.store.Known()
	if err != nil {
		return err
	}
	uids := known[name]
	if p != nil && !slices.Contains(uids, string(p.UID)) {
		uids = append(uids, string(p.UID))
	}
	if p == nil && len(uids) == 0 {
		return nil
	}
	slices.SortFunc(uids, func(a, b string) int { // what is left of an object that is gone comes first
		return boolInt(p != nil && a == string(p.UID)) - boolInt(p != nil && b == string(p.UID))
	})
	for _, uid := range uids {
		of := p
		if p == nil || string(p.UID) != uid {
			if of, err = h.fresh(ctx, name); err != nil {
				return err
			}
			if of != nil && string(of.UID) != uid {
				of = nil
			}
		}
		if err := h.steps(ctx, name, uid, of); err != nil {
			return err
		}
	}
	return nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// fresh reads an object from the API server itself; nil where there is none.
func (h *host) fresh(ctx context.Context, name string) (*v1alpha1.AgentProfile, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	p := &v1alpha1.AgentProfile{}
	err := h.set.API.Get(ctx, client.ObjectKey{Namespace: h.set.Namespace, Name: name}, p)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("cannot read profile %q: %w", name, err)
	}
	if err != nil {
		return nil, nil
	}
	return p, nil
}
