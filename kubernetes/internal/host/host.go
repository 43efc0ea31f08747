package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	hinit "hinit/client"
	"hinit/internal/pause"
	"hinit/kubernetes/api/v1alpha1"
)

// Init has the methods of the hinit client that a host needs. Package dial implements it; tests replace it.
type Init interface {
	Watch(ctx context.Context, fn func(hinit.StatusChange) error) error
	Service(ctx context.Context, name string) (hinit.Service, error)
	Start(ctx context.Context, name string, wait hinit.WaitOptions) (hinit.Service, error)
	Stop(ctx context.Context, name string, wait hinit.WaitOptions) (hinit.Service, error)
	Restart(ctx context.Context, name string, wait hinit.WaitOptions) (hinit.Service, error)
	Rescan(ctx context.Context) error
}

// Settings are the settings of a host, see [Run]. Name and UID identify its pod.
type Settings struct {
	Name, UID string
	Namespace string
	Pool      string
	Home      string           // Root directory of the volume with all profiles.
	Address   string           // Address on which the host listens for other hosts, HOST:PORT.
	API       client.WithWatch // Client of the API server. It must not cache, because a read must return the current object.
	Init      Init
	// Create creates a profile without data. It must not run a program that agents can replace, because such a program could
	// read the host's tokens.
	Create        func(ctx context.Context, name string) error
	Log           *slog.Logger
	LeaseInterval time.Duration // Interval at which the host renews its Lease; 0: [DefaultLeaseInterval].
}

const (
	// DefaultLeaseInterval is how often a host renews its Lease by default. With fifty hosts, this makes about five writes in nine seconds.
	DefaultLeaseInterval = 90 * time.Second
	resyncInterval       = 2 * time.Minute
	// trashRetryDelay is how long the host waits before it tries again to delete data that it could not delete.
	trashRetryDelay = time.Minute
	workers         = 4
	// requestTimeout limits the wait for an answer of the API server. Without the limit, a server that never answers would block
	// a worker for ever.
	requestTimeout = 20 * time.Second
	// maxFetches limits the fetches that run at the same time, and maxFetchesPerHost the fetches from one host. A fetch may take
	// long, so one worker stays free for other steps. A host that an attacker has taken over may send as slowly as it wants,
	// so one fetch stays free for other hosts.
	maxFetches        = workers - 1
	maxFetchesPerHost = maxFetches - 1
)

// host is a running host.
type host struct {
	settings Settings
	store    *Store
	sources  *sources
	offers   *profileOffers
	queue    workqueue.TypedRateLimitingInterface[string] // names of the profiles that must be reconciled
	retries  workqueue.TypedRateLimiter[string]           // Delays the next try of a profile that has not settled.

	mu           sync.Mutex
	fetches      map[string]int                               // Number of running fetches, by source host.
	deletes      map[string]bool                              // Last known spec.onDelete of objects whose data was given away, by UID; true: Delete.
	paused       map[string]time.Time                         // Time of the next allowed try, by profile, see [reportedError].
	watched      map[string]map[string]*v1alpha1.AgentProfile // Watched objects, by watched field and then by profile.
	services     map[string]hinit.Service                     // Latest status of each gateway, by profile.
	reportCount  uint64                                       // Number of status reports about gateways.
	reportCounts map[string]uint64                            // Value of reports at the last report about a gateway, by profile.
	unreported   map[string]appliedFiles                      // Files with which a gateway runs, by profile, until the first status contains them.
	statusKnown  bool                                         // Whether services is current: hinit has sent its whole status, and is neither booting nor stopping.
}

// Run is the host of this pod until ctx ends. It returns an error only if it can't open the store on the volume, or can't
// make a key.
func Run(ctx context.Context, s Settings) error {
	store, err := OpenStore(s.Home)
	if err != nil {
		return err
	}
	if s.LeaseInterval == 0 {
		s.LeaseInterval = DefaultLeaseInterval
	}
	identity, err := newIdentity()
	if err != nil {
		return err
	}
	retries := workqueue.NewTypedItemExponentialFailureRateLimiter[string](200*time.Millisecond, 30*time.Second)
	h := &host{
		settings: s, store: store, watched: map[string]map[string]*v1alpha1.AgentProfile{ownField: {}, moveField: {}}, services: map[string]hinit.Service{}, reportCounts: map[string]uint64{},
		unreported: map[string]appliedFiles{}, paused: map[string]time.Time{}, deletes: map[string]bool{},
		sources: &sources{api: s.API, namespace: s.Namespace, cache: map[string]source{}},
		fetches: map[string]int{},
		offers:  &profileOffers{store: store, identity: identity, certificateOf: s.certificateOf, log: s.Log, host: s.Address, byUID: map[string]*profileOffer{}},
		queue:   workqueue.NewTypedRateLimitingQueue(retries),
		retries: retries,
	}
	var all sync.WaitGroup
	all.Go(func() { h.renewLeaseLoop(ctx) })
	all.Go(func() { h.watchInit(ctx) })
	for _, field := range []string{ownField, moveField} {
		all.Go(func() { h.watch(ctx, field) })
	}
	all.Go(func() { h.resync(ctx) })
	all.Go(func() { h.emptyTrash(ctx) })
	for range workers {
		all.Go(func() { h.runWorker(ctx) })
	}
	<-ctx.Done()
	h.queue.ShutDown()
	all.Wait()
	h.offers.close()
	return nil
}

// watchInit follows the status stream of hinit. When the stream ends, it connects again.
func (h *host) watchInit(ctx context.Context) {
	for ctx.Err() == nil {
		err := h.settings.Init.Watch(ctx, func(c hinit.StatusChange) error {
			h.handleStatus(c)
			return nil
		})
		h.mu.Lock()
		h.statusKnown = false
		h.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			h.settings.Log.Warn("hinit does not answer", "error", err)
		}
		pause.For(ctx, time.Second)
	}
}

// handleStatus handles one message of hinit's status stream, and queues the profiles whose gateways have changed. While
// gateways start and stop, hinit sends the whole status each second, although most of it has not changed.
func (h *host) handleStatus(c hinit.StatusChange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, knew := h.services, h.statusKnown
	if c.IsComplete { // A complete message lists all gateways, so forget the others.
		h.services, h.reportCounts = map[string]hinit.Service{}, map[string]uint64{}
	}
	// While the container boots or stops, the gateways' states are only temporary.
	h.statusKnown = !c.Init.Booting && !c.Init.Stopping
	changed := map[string]bool{}
	for _, s := range c.Services {
		if s.Kind != hinit.KindGateway {
			continue
		}
		old, there := before[s.Profile]
		h.services[s.Profile] = s
		h.reportCount++
		h.reportCounts[s.Profile] = h.reportCount
		old.UptimeSeconds = s.UptimeSeconds // Ignore the uptime, which always grows.
		changed[s.Profile] = !there || !reflect.DeepEqual(old, s)
	}
	for profile := range h.services {
		if changed[profile] || h.statusKnown && !knew { // Also queue gateways whose reports were ignored during the boot.
			h.queue.Add(profile)
		}
	}
	for profile := range before {
		if _, there := h.services[profile]; !there {
			h.queue.Add(profile)
		}
	}
}

// commandGateway sends hinit a command for the profile's gateway, by calling give. It stores the status that give returns,
// unless the watch has brought a newer one meanwhile.
func (h *host) commandGateway(profile string, give func() (hinit.Service, error)) error {
	h.mu.Lock()
	heard := h.reportCounts[profile]
	h.mu.Unlock()
	s, err := give()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil && h.reportCounts[profile] == heard {
		h.services[profile] = s
	}
	return err
}

// service returns the last known status of a profile's gateway, or nil if hinit has no such gateway. It returns false while
// the status of hinit is unknown.
func (h *host) service(profile string) (*hinit.Service, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s, there := h.services[profile]; there {
		return &s, h.statusKnown
	}
	return nil, h.statusKnown
}

// resync queues every watched profile again, and every profile on the volume that is not watched. It does so every one to
// three minutes, because a watch may miss a change.
func (h *host) resync(ctx context.Context) {
	for begins := true; ; begins = false {
		unknown, all, err := h.store.Names(func(name string) bool { return h.cached(name) != nil })
		if err != nil {
			h.settings.Log.Warn("the store can't be read", "error", err)
		}
		if all > len(unknown) && !begins { // Right after the start, the watches may not have listed the profiles yet.
			h.settings.Log.Warn("the store has many records that are of no profile here; an agent may have made them", "records", all, "looked_at", len(unknown))
		}
		for _, name := range unknown {
			h.queue.Add(name)
		}
		h.mu.Lock()
		for _, names := range h.watched {
			for name := range names {
				h.queue.Add(name)
			}
		}
		h.mu.Unlock()
		if !pause.For(ctx, resyncInterval/2+rand.N(resyncInterval)) {
			return
		}
	}
}

// emptyTrash deletes the data that the store has discarded, in its own goroutine. If some data is
// left, it tries again after trashRetryDelay.
func (h *host) emptyTrash(ctx context.Context) {
	for ctx.Err() == nil {
		var again <-chan time.Time
		if left, err := h.store.emptyTrash(ctx); err != nil {
			again = time.After(trashRetryDelay)
			if ctx.Err() == nil {
				h.settings.Log.Warn("deleted data is left", "directory", trashDir, "trees", left, "error", err, "next_try", trashRetryDelay)
			}
		}
		select {
		case <-ctx.Done():
		case <-h.store.discarded:
		case <-again:
		}
	}
}

// runWorker reconciles the profiles in the queue, one after the other, until the queue is shut down.
func (h *host) runWorker(ctx context.Context) {
	for {
		name, down := h.queue.Get()
		if down {
			return
		}
		if wait := h.remainingPause(name); wait > 0 {
			h.queue.AddAfter(name, wait)
		} else {
			h.reconcileOnce(ctx, name)
		}
		h.queue.Done(name)
	}
}

// reconcileOnce reconciles a profile once. If the profile has not settled, reconcileOnce queues it again, with a delay that
// grows each time.
func (h *host) reconcileOnce(ctx context.Context, name string) {
	err := h.reconcile(ctx, name)
	if err == nil || errors.Is(err, errStopping) {
		h.queue.Forget(name)
		return
	}
	if ctx.Err() != nil {
		return
	}
	h.logProfileError(name, err)
	wait := h.retries.When(name)
	if _, is := errors.AsType[reportedError](err); is {
		h.mu.Lock()
		h.paused[name] = time.Now().Add(wait)
		h.mu.Unlock()
	}
	h.queue.AddAfter(name, wait)
}

// reportedError is an error that was already written into the status of its profile. That write queues the profile again at
// once, but the next try must wait.
type reportedError struct{ error }

// Unwrap returns the error itself.
func (e reportedError) Unwrap() error { return e.error }

// remainingPause returns how long a profile must still wait after a [reportedError].
func (h *host) remainingPause(name string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	wait := time.Until(h.paused[name])
	if wait <= 0 {
		delete(h.paused, name)
	}
	return wait
}

// logProfileError logs why a profile has not settled. It logs errors of normal operation with a lower level, or not at all.
func (h *host) logProfileError(name string, err error) {
	if errors.Is(err, errRetry) {
		return
	}
	level := slog.LevelWarn
	if strings.Contains(err.Error(), "the object has been modified") {
		level = slog.LevelDebug
	}
	h.settings.Log.Log(context.Background(), level, "profile has not settled", "profile", name, "error", err)
}

// errRetry means that a step is not possible yet, and must be tried again soon.
var errRetry = errors.New("not yet")

// reconcile performs all pending steps for the profiles with this name. The volume may have data of several objects with one
// name: the current object, and deleted ones with other UIDs.
func (h *host) reconcile(ctx context.Context, name string) error {
	p := h.cached(name)
	uids, err := h.store.UIDs(name)
	if err != nil {
		return err
	}
	if p == nil && slices.Contains(uids, "") { // An empty UID stands for an unreadable record.
		if p, err = h.readFresh(ctx, name); err != nil {
			return err
		}
		if p == nil || p.Status.Host != h.settings.Name {
			h.settings.Log.Warn("a record that can't be read is removed", "profile", name)
			return h.store.removeUnknownRecord(name)
		}
	}
	if p == nil && len(uids) == 0 {
		return h.store.removeUnknownRecord(name)
	}
	if p != nil { // Handle deleted objects first; the steps of p report an unreadable record.
		own := string(p.UID)
		uids = append(slices.DeleteFunc(uids, func(uid string) bool { return uid == "" || uid == own }), own)
	}
	for _, uid := range uids {
		if err := h.reconcileProfile(ctx, name, uid, p); err != nil {
			return err
		}
	}
	return nil
}

// readFresh reads an object from the API server itself, and not from a cache. It returns nil if the object does not exist.
func (h *host) readFresh(ctx context.Context, name string) (*v1alpha1.AgentProfile, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	p := &v1alpha1.AgentProfile{}
	err := h.settings.API.Get(ctx, client.ObjectKey{Namespace: h.settings.Namespace, Name: name}, p)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("cannot read profile %q: %w", name, err)
	}
	if err != nil {
		return nil, nil
	}
	return p, nil
}
