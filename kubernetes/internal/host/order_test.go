package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/placement"
)

// TestAReadyGatewayIsNotShownAsStarting checks that the answer to a start does not replace a later report that the
// gateway is ready, if the answer arrives last.
func TestAReadyGatewayIsNotShownAsStarting(t *testing.T) {
	h := &host{services: map[string]hinit.Service{}, reportCounts: map[string]uint64{}, queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())}
	defer h.queue.ShutDown()
	gateway := hinit.Service{Name: "gateway-coder", Profile: "coder", Kind: hinit.KindGateway, State: hinit.StateUp, Want: hinit.WantUp, Since: time.Now()}
	ready := gateway
	ready.Ready = true
	if err := h.commandGateway("coder", func() (hinit.Service, error) {
		h.handleStatus(hinit.StatusChange{IsComplete: true, Services: []hinit.Service{ready}})
		return gateway, nil
	}); err != nil {
		t.Fatal(err)
	}
	if s, _ := h.service("coder"); s == nil || !s.Ready {
		t.Errorf("the gateway is %+v", s)
	}
	if err := h.commandGateway("coder", func() (hinit.Service, error) { return gateway, nil }); err != nil {
		t.Fatal(err)
	}
	if s, _ := h.service("coder"); s == nil || s.Ready {
		t.Errorf("an answer without a line was not taken in: %+v", s)
	}
}

// TestANewProfileTakesOneStatus checks that the host delays the first status of a new gateway until
// it is ready, so that it writes only one status.
func TestANewProfileTakesOneStatus(t *testing.T) {
	h := &host{queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())}
	defer h.queue.ShutDown()
	up := func(since time.Duration, ready bool) *hinit.Service {
		return &hinit.Service{State: hinit.StateUp, Ready: ready, Since: time.Now().Add(-since)}
	}
	for _, c := range []struct {
		name    string
		status  v1alpha1.AgentProfileStatus
		service *hinit.Service
		later   bool
	}{
		{"just started", v1alpha1.AgentProfileStatus{Assignment: 1}, up(0, false), true},
		{"ready", v1alpha1.AgentProfileStatus{Assignment: 1}, up(0, true), false},
		{"started long ago", v1alpha1.AgentProfileStatus{Assignment: 1}, up(firstReportDelay, false), false},
		{"started before the clock was set back", v1alpha1.AgentProfileStatus{Assignment: 1}, up(-time.Hour, false), false},
		{"in the status already", v1alpha1.AgentProfileStatus{Assignment: 1, Installed: 1}, up(0, false), false},
		{"failed", v1alpha1.AgentProfileStatus{Assignment: 1}, &hinit.Service{State: hinit.StateFailed, Since: time.Now()}, false},
		{"none", v1alpha1.AgentProfileStatus{Assignment: 1}, nil, false},
	} {
		p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: c.name}, Status: c.status}
		if later := h.reportLater(p, c.service); later != c.later {
			t.Errorf("%s: %t", c.name, later)
		}
	}
	if name, _ := h.queue.Get(); name != "just started" { // The host must examine this profile again.
		t.Errorf("%q is queued", name)
	}
}

// failingInit imitates an hinit that can't restart a gateway until a test sets fault to nil.
type failingInit struct {
	fakeGateways
	fault    error
	restarts int
}

func (f *failingInit) Start(_ context.Context, name string, _ hinit.WaitOptions) (hinit.Service, error) {
	return f.set(name, hinit.StateStarting, hinit.WantUp), nil
}

func (f *failingInit) Restart(_ context.Context, name string, _ hinit.WaitOptions) (hinit.Service, error) {
	f.restarts++
	return f.set(name, hinit.StateStarting, hinit.WantUp), f.fault
}

// TestARestartThatFailedBeforeTheFirstStatusIsTriedAgain checks that the host repeats a failed
// restart if a new profile's files change before its first status.
func TestARestartThatFailedBeforeTheFirstStatusIsTriedAgain(t *testing.T) {
	store, _ := newVolume(t, "u1", "data")
	p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "agents", UID: "u1", Generation: 1}}
	p.Spec.Soul, p.Status.Assignment = &v1alpha1.ConfigMapKey{ConfigMap: "soul", Key: "text"}, 1
	f := &failingInit{fakeGateways: fakeGateways{services: map[string]hinit.Service{}}, fault: errors.New("hinit is being re-executed")}
	h := newTestHost(t, "me", newFakeAPI(p), &f.fakeGateways, store)
	h.settings.Init = f
	h.services["coder"] = f.set("gateway-coder", hinit.StateDown, hinit.WantDown)
	want := func(text string) {
		h.sources.cache["ConfigMap/soul"] = source{map[string][]byte{"text": []byte(text)}, nil, time.Now()}
	}
	want("old")
	if err := h.runGateway(t.Context(), p); !errors.Is(err, errDone) {
		t.Fatalf("the start: %v", err)
	}
	want("new")
	if err := h.runGateway(t.Context(), p); !errors.Is(err, f.fault) {
		t.Fatalf("the restart that fails: %v", err)
	}
	f.fault = nil
	for try := range 2 { // In the second round, nothing is left to do.
		settled, err := h.checkSettled(t.Context(), placement.Run, p)
		if err != nil || settled != (try == 1) {
			t.Fatalf("settled: %t, %v", settled, err)
		}
		if !settled {
			err = h.runGateway(t.Context(), p)
		}
		if err != nil && !errors.Is(err, errDone) {
			t.Error(err)
		}
	}
	if f.restarts != 2 {
		t.Errorf("%d restarts", f.restarts)
	}
}

// TestAProfileWithoutItsDataIsNotCreatedAnew checks that a profile without its data is reported as
// missing, and not created again. Its host has confirmed the data only in the object's metadata,
// and has then lost its volume.
func TestAProfileWithoutItsDataIsNotCreatedAnew(t *testing.T) {
	p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", UID: "u1"}, Status: v1alpha1.AgentProfileStatus{Host: "me", Assignment: 1}}
	next := func() placement.Step { return placement.Next("me", object(p, string(p.UID)), placement.LocalState{}) }
	if step := next(); step != placement.Create {
		t.Errorf("a new object: %s", step)
	}
	if p.MarkCreated(); next() != placement.Missing || len(p.Finalizers) != 1 {
		t.Errorf("a confirmed one: %s, %v", next(), p.Finalizers)
	}
	p.Status.Assignment++ // This simulates that a user gave the data up.
	if step := next(); step != placement.Create {
		t.Errorf("one that was given up: %s", step)
	}
	p.Status.Assignment--
	if p.UID = "u2"; next() != placement.Create {
		t.Errorf("a copied manifest: %s", next())
	}
}

// TestAFleetOfNewProfilesIsNotLookedAtEachSecond checks that a report about all gateways makes the
// host examine only the changed profiles. hinit sends such reports each second while profiles are
// created.
func TestAFleetOfNewProfilesIsNotLookedAtEachSecond(t *testing.T) {
	h := &host{reportCounts: map[string]uint64{}, queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())}
	defer h.queue.ShutDown()
	code, at := 1, time.Now()
	status := func(whole bool, names ...string) hinit.StatusChange {
		c := hinit.StatusChange{IsComplete: whole}
		for _, name := range names {
			code := code // Each report differs from the one before, as real reports do.
			c.Services = append(c.Services, hinit.Service{Profile: name, Kind: hinit.KindGateway, LastExit: &hinit.Exit{Code: &code}, UptimeSeconds: time.Since(at).Seconds()})
		}
		return c
	}
	queued := func() (names []string) {
		for h.queue.Len() > 0 {
			name, _ := h.queue.Get()
			names = append(names, name)
			h.queue.Done(name)
		}
		slices.Sort(names)
		return names
	}
	for _, c := range []struct {
		name   string
		change hinit.StatusChange
		want   string
	}{
		{"the first status", status(true, "a", "b"), "[a b]"},
		{"one is new", status(true, "a", "b", "c"), "[c]"},
		{"none has changed", status(true, "a", "b", "c"), "[]"},
		{"hinit stops", func() hinit.StatusChange { s := status(false); s.Init.Stopping = true; return s }(), "[]"},
		{"and boots", func() hinit.StatusChange { s := status(true, "a", "b", "c"); s.Init.Booting = true; return s }(), "[]"},
		{"the boot is over", status(false), "[a b c]"},
		{"one is gone", status(true, "a", "c"), "[b]"},
	} {
		h.handleStatus(c.change)
		if got := fmt.Sprint(queued()); got != c.want {
			t.Errorf("%s: %s are looked at, and %s should be", c.name, got, c.want)
		}
	}
	code = 2
	if h.handleStatus(status(false, "a")); fmt.Sprint(queued()) != "[a]" {
		t.Error("a change of the last exit was not seen")
	}
}
