package host

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
)

// fakeGateways imitates hinit. The gateways in deaf ignore the signal to stop.
type fakeGateways struct {
	Init

	mu             sync.Mutex
	ignoringSignal map[string]bool
	services       map[string]hinit.Service
}

func (g *fakeGateways) set(name, state, want string) hinit.Service {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.services[name]
	s.Kind, s.Profile, s.State, s.Want, s.Since = hinit.KindGateway, strings.TrimPrefix(name, "gateway-"), state, want, time.Now()
	if s.Ready = state == hinit.StateUp; s.Ready {
		s.RunNumber++
	}
	g.services[name] = s
	return s
}

func (g *fakeGateways) Service(_ context.Context, name string) (hinit.Service, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.services[name], nil
}

func (g *fakeGateways) Start(_ context.Context, name string, _ hinit.WaitOptions) (hinit.Service, error) {
	return g.set(name, hinit.StateUp, hinit.WantUp), nil
}

func (g *fakeGateways) Stop(ctx context.Context, name string, wait hinit.WaitOptions) (hinit.Service, error) {
	if !g.ignoringSignal[name] {
		return g.set(name, hinit.StateDown, hinit.WantDown), nil
	}
	s := g.set(name, hinit.StateStopping, hinit.WantDown)
	if !wait.Wait {
		return s, nil
	}
	select {
	case <-ctx.Done():
		return s, ctx.Err()
	case <-time.After(wait.Timeout):
		return s, &hinit.Error{Kind: hinit.KindTimeout}
	}
}

func (g *fakeGateways) Rescan(context.Context) error { return nil }

// newTestHost returns a host with its store and running gateways.
func newTestHost(t *testing.T, name string, api client.WithWatch, g *fakeGateways, s *Store) *host {
	h := &host{
		settings: Settings{Name: name, Namespace: "agents", API: api, Init: g, Log: slog.New(slog.DiscardHandler)},
		store:    s, services: map[string]hinit.Service{}, reportCounts: map[string]uint64{}, unreported: map[string]appliedFiles{}, statusKnown: true,
		sources: &sources{api: api, namespace: "agents", cache: map[string]source{}}, watched: map[string]map[string]*v1alpha1.AgentProfile{ownField: {}, moveField: {}},
		fetches: map[string]int{}, paused: map[string]time.Time{}, deletes: map[string]bool{},
	}
	h.retries = workqueue.NewTypedItemExponentialFailureRateLimiter[string](200*time.Millisecond, 30*time.Second)
	h.queue = workqueue.NewTypedRateLimitingQueue(h.retries)
	h.offers = &profileOffers{
		store: s, log: h.settings.Log, host: "127.0.0.1:0", byUID: map[string]*profileOffer{}, identity: fetchingHost, certificateOf: func(context.Context, string) (string, error) { return fetchingHost.fingerprint, nil },
	}
	t.Cleanup(h.offers.close)
	t.Cleanup(h.queue.ShutDown)
	for name, one := range g.services {
		h.services[strings.TrimPrefix(name, "gateway-")] = one
	}
	return h
}

// newFakeAPI returns a fake API server with objects and the fleet's admission policies: a host may not
// begin a move or write another host's Lease.
func newFakeAPI(profiles ...client.Object) client.WithWatch {
	refused := func(policy string) error {
		return fmt.Errorf("ValidatingAdmissionPolicy '%s' with binding '%[1]s' denied request: no", policy)
	}
	return interceptor.NewClient(newAPIWithoutPolicies(profiles...), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if slices.Contains(options, client.CreateOption(client.DryRunAll)) {
				return refused("hinit-fleet-lease")
			}
			return c.Create(ctx, o, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			if slices.Contains(options, client.SubResourcePatchOption(client.DryRunAll)) {
				return refused("hinit-fleet-host")
			}
			return c.SubResource(sub).Patch(ctx, o, patch, options...)
		},
	})
}

func newAPIWithoutPolicies(profiles ...client.Object) client.WithWatch {
	return fake.NewClientBuilder().WithScheme(v1alpha1.Scheme()).WithObjects(profiles...).WithStatusSubresource(&v1alpha1.AgentProfile{}).Build()
}

func getProfile(t *testing.T, api client.Client, name string) *v1alpha1.AgentProfile {
	t.Helper()
	p := &v1alpha1.AgentProfile{}
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "agents", Name: name}, p); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestAGatewayThatIgnoresItsSignalHoldsNoWorker checks that a host still serves its other profiles
// while more gateways ignore their stop signal than it has workers.
func TestAGatewayThatIgnoresItsSignalHoldsNoWorker(t *testing.T) {
	s, dir := newVolume(t, "", "")
	g := &fakeGateways{services: map[string]hinit.Service{}, ignoringSignal: map[string]bool{}}
	var objects []client.Object
	var names []string
	for i := range workers + 1 {
		name := fmt.Sprintf("p%d", i)
		stopped := false
		p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "agents", UID: "u1"}, Spec: v1alpha1.AgentProfileSpec{Running: &stopped}}
		p.Finalizers = []string{v1alpha1.Finalizer}
		p.Status = v1alpha1.AgentProfileStatus{Host: "me", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning}
		objects, names = append(objects, p), append(names, name)
		if err := s.writeRecord(name, &record{UID: "u1"}); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, s.Home(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		g.ignoringSignal["gateway-"+name] = i < workers
		g.set("gateway-"+name, hinit.StateUp, hinit.WantUp)
	}
	api := newFakeAPI(objects...)
	h := newTestHost(t, "me", api, g, s)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer h.queue.ShutDown()
	defer cancel()
	for range workers {
		all.Go(func() { h.runWorker(ctx) })
	}
	for _, name := range names {
		h.watched[ownField][name] = getProfile(t, api, name)
		h.queue.Add(name)
	}
	stopped := func(name string) bool {
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if getProfile(t, api, name).Status.Phase == v1alpha1.PhaseStopped {
				return true
			}
		}
		return false
	}
	if last := names[workers]; !stopped(last) {
		t.Fatalf("%s was not stopped while the others ignore their signal", last)
	}
	deaf := names[0]
	h.handleStatus(hinit.StatusChange{Services: []hinit.Service{g.set("gateway-"+deaf, hinit.StateDown, hinit.WantDown)}})
	if !stopped(deaf) {
		t.Errorf("the end of %s was not seen: %+v", deaf, getProfile(t, api, deaf).Status)
	}
}

// TestDataOfAGatewayThatIsBeingStoppedStays checks that the data of a deleted profile stays in place until its gateway
// has stopped. Here the gateway ignores its signal.
func TestDataOfAGatewayThatIsBeingStoppedStays(t *testing.T) {
	s, _ := newVolume(t, "u1", "learnt")
	g := &fakeGateways{services: map[string]hinit.Service{}, ignoringSignal: map[string]bool{"gateway-coder": true}}
	g.set("gateway-coder", hinit.StateUp, hinit.WantUp)
	h := newTestHost(t, "me", newFakeAPI(), g, s)
	ctx, cancel := context.WithTimeout(t.Context(), 2*stopWait)
	defer cancel()
	if _ = h.reconcile(ctx, "coder"); !inspectStore(t, s, "u1").Live {
		t.Fatal("the data was moved away while the gateway runs")
	}
	h.handleStatus(hinit.StatusChange{Services: []hinit.Service{g.set("gateway-coder", hinit.StateDown, hinit.WantDown)}})
	if err := h.reconcile(t.Context(), "coder"); err != nil || inspectStore(t, s, "u1").Live {
		t.Errorf("the data stays although the gateway is down: %v", err)
	}
}
