package host

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	hinit "hinit/client"
	"hinit/internal/testkit"
	"hinit/kubernetes/api/v1alpha1"
)

// TestAProfileThatCantBeSentRunsAgain checks that the gateway runs again if the data can't be sent.
// Here a file seems larger than its volume.
func TestAProfileThatCantBeSentRunsAgain(t *testing.T) {
	s, dir := newVolume(t, "u1", "learnt")
	if err := os.Truncate(filepath.Join(dir, "profiles/coder/data"), 10<<40); err != nil {
		t.Fatal(err)
	}
	other, _ := newVolume(t, "", "")
	p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "agents", UID: "u1", Finalizers: []string{v1alpha1.Finalizer}}}
	p.Status = v1alpha1.AgentProfileStatus{Host: "from", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning}
	api := newFakeAPI(p)
	g := &fakeGateways{services: map[string]hinit.Service{}}
	g.set("gateway-coder", hinit.StateUp, hinit.WantUp)
	from, to := newTestHost(t, "from", api, g, s), newTestHost(t, "to", api, &fakeGateways{}, other)
	for attempt := range int32(2) {
		p = getProfile(t, api, "coder")
		p.Status.Move = &v1alpha1.Move{To: "to", Reason: "it is pinned to to", Since: metav1.NewTime(time.Now().Add(-2 * minMoveTime))}
		if err := api.Status().Update(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		down := 0
		for range 4 * maxMoveFailures {
			for _, h := range []*host{from, to} {
				field := map[bool]string{true: ownField, false: moveField}[h == from]
				h.watched[field]["coder"] = getProfile(t, api, "coder")
				_ = h.reconcile(t.Context(), "coder") // The other host's request fails.
			}
			if g.services["gateway-coder"].State == hinit.StateDown {
				down++
			}
		}
		st := getProfile(t, api, "coder").Status
		f := st.MoveFailure
		if st.Move != nil || f == nil || f.Attempts != attempt+1 || f.To != "to" || g.services["gateway-coder"].State != hinit.StateUp || st.Phase != v1alpha1.PhaseRunning {
			t.Fatalf("attempt %d: the gateway is %s, and the status is %+v, %+v", attempt, g.services["gateway-coder"].State, st, f)
		}
		if down == 0 || down > maxMoveFailures+1 {
			t.Errorf("the gateway was down for %d rounds", down)
		}
		const why = `did not move to host to, and tries again after `
		if !strings.HasPrefix(st.Message, why) || !strings.Contains(st.Message, `"data" seems to have 10995116277760 bytes`) {
			t.Errorf("the status says %q", st.Message)
		}
		if _, err := os.Stat(filepath.Join(dir, "profiles/coder/data")); err != nil {
			t.Error(err)
		}
	}
	if len(from.offers.byUID) > 0 || from.offers.listener != nil {
		t.Error("the data is still offered")
	}
}

// TestAProfileThatChangesForEverEndsItsMove checks that a move ends if the home changes before each
// try and each stream breaks, so that each try starts from the beginning.
func TestAProfileThatChangesForEverEndsItsMove(t *testing.T) {
	s, dir := newVolume(t, "u1", strings.Repeat("x", 1<<20))
	other, _ := newVolume(t, "", "")
	p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "agents", UID: "u1", Finalizers: []string{v1alpha1.Finalizer}}}
	p.Status = v1alpha1.AgentProfileStatus{Host: "from", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning}
	p.Status.Move = &v1alpha1.Move{To: "to", Since: metav1.NewTime(time.Now().Add(-2 * minMoveTime))}
	api := newFakeAPI(p)
	g := &fakeGateways{services: map[string]hinit.Service{}}
	g.set("gateway-coder", hinit.StateDown, hinit.WantDown)
	from, to := newTestHost(t, "from", api, g, s), newTestHost(t, "to", api, &fakeGateways{}, other)
	from.offers.certificateOf = func(context.Context, string) (string, error) {
		return fetchingHost.fingerprint, os.WriteFile(filepath.Join(dir, "profiles/coder", fmt.Sprint("new", time.Now().UnixNano())), nil, 0o600)
	}
	var real atomic.Value
	cut := startCuttingProxy(t, func() string { return real.Load().(string) })
	tries := 0
	for range 4 * maxMoveFailures {
		from.watched[ownField]["coder"] = getProfile(t, api, "coder")
		_ = from.reconcile(t.Context(), "coder")
		if p = getProfile(t, api, "coder"); p.Status.Move != nil && p.Status.Move.Offer.Address != cut {
			real.Store(p.Status.Move.Offer.Address)
			if p.Status.Move.Offer.Address = cut; api.Status().Update(t.Context(), p) != nil {
				t.Fatal("the offer can't be changed")
			}
		}
		to.watched[moveField]["coder"] = getProfile(t, api, "coder")
		if err := to.reconcile(t.Context(), "coder"); err != nil {
			tries++
		}
	}
	st := getProfile(t, api, "coder").Status
	if st.Move != nil || st.MoveFailure == nil || g.services["gateway-coder"].State != hinit.StateUp || !strings.Contains(st.Message, "the stream has ended early") {
		t.Errorf("the gateway is %s, and the status is %+v, %+v", g.services["gateway-coder"].State, st, st.MoveFailure)
	}
	if tries != maxMoveFailures+1 { // The first try transferred a part of the data.
		t.Errorf("it was tried %d times", tries)
	}
}

// reconcileAll lets each host reconcile the profile coder, as after an event of its watches.
func reconcileAll(t *testing.T, api client.Client, hosts ...*host) {
	t.Helper()
	for _, h := range hosts {
		h.watched = map[string]map[string]*v1alpha1.AgentProfile{ownField: {}, moveField: {}}
		switch p := getProfile(t, api, "coder"); {
		case p.Status.Host == h.settings.Name:
			h.watched[ownField]["coder"] = p
		case p.Status.Move != nil && p.Status.Move.To == h.settings.Name:
			h.watched[moveField]["coder"] = p
		}
		_ = h.reconcile(t.Context(), "coder") // Ignore the error, because a move may fail.
	}
}

// TestARecordOfAnAgentHoldsNoMove checks that a move ends although the new host finds an unreadable
// file in place of the profile's record. The gateway must run afterwards.
func TestARecordOfAnAgentHoldsNoMove(t *testing.T) {
	for _, home := range []bool{false, true} {
		s, _ := newVolume(t, "u1", "learnt")
		other, at := newVolume(t, "", "")
		if err := os.WriteFile(filepath.Join(at, liveDir, "coder"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if home {
			if err := os.MkdirAll(filepath.Join(at, "profiles/coder"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "agents", UID: "u1", Finalizers: []string{v1alpha1.Finalizer}}}
		p.Status = v1alpha1.AgentProfileStatus{Host: "from", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning}
		p.Status.Move = &v1alpha1.Move{To: "to", Since: metav1.NewTime(time.Now().Add(-2 * minMoveTime))}
		api := newFakeAPI(p)
		g, there := &fakeGateways{services: map[string]hinit.Service{}}, &fakeGateways{services: map[string]hinit.Service{}}
		g.set("gateway-coder", hinit.StateUp, hinit.WantUp)
		from, to := newTestHost(t, "from", api, g, s), newTestHost(t, "to", api, there, other)
		for range 2 * maxMoveFailures {
			reconcileAll(t, api, from, to)
		}
		st := getProfile(t, api, "coder").Status
		if up := there.services["gateway-coder"].State == hinit.StateUp; !home && (!up || st.Host != "to" || st.Installed != 2) {
			t.Errorf("without a home: the status is %+v", st)
		}
		const why = `cannot read the record of profile "coder"`
		if up := g.services["gateway-coder"].State == hinit.StateUp; home && (!up || st.MoveFailure == nil || !strings.Contains(st.Message, why)) {
			t.Errorf("with a home: the status is %+v, %+v", st, st.MoveFailure)
		}
	}
}

// TestAMoveToAHostThatHasSuchAProfileEnds checks that a move ends if the target has a profile of
// the same name that the fleet did not create.
func TestAMoveToAHostThatHasSuchAProfileEnds(t *testing.T) {
	for _, appears := range []string{"before the move", "while the data comes", "at the last moment"} {
		t.Run(appears, func(t *testing.T) {
			s, dir := newVolume(t, "u1", "learnt")
			other, at := newVolume(t, "", "")
			foreign := filepath.Join(at, "profiles/coder")
			p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "agents", UID: "u1", Finalizers: []string{v1alpha1.Finalizer}}}
			p.Status = v1alpha1.AgentProfileStatus{Host: "from", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning}
			p.Status.Move = &v1alpha1.Move{To: "to", Reason: "it is pinned to to", Since: metav1.NewTime(time.Now().Add(-2 * minMoveTime))}
			api := newFakeAPI(p)
			g, there := &fakeGateways{services: map[string]hinit.Service{}}, &fakeGateways{services: map[string]hinit.Service{}}
			g.set("gateway-coder", hinit.StateUp, hinit.WantUp)
			from, to := newTestHost(t, "from", api, g, s), newTestHost(t, "to", api, there, other)
			from.offers.certificateOf = func(context.Context, string) (string, error) {
				if appears == "while the data comes" {
					return fetchingHost.fingerprint, os.MkdirAll(foreign, 0o755)
				}
				return fetchingHost.fingerprint, nil
			}
			if appears == "before the move" {
				if err := os.MkdirAll(foreign, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for range 4 * maxMoveFailures {
				if p = getProfile(t, api, "coder"); appears == "at the last moment" && p.Status.Move != nil && p.Status.Move.Received != nil {
					if err := os.MkdirAll(foreign, 0o755); err != nil {
						t.Fatal(err)
					}
				}
				reconcileAll(t, api, from, to)
			}
			const why = `cannot make profile "coder": its directory profiles/coder exists, and is not of this object; move it away`
			st := getProfile(t, api, "coder").Status
			if !strings.HasSuffix(st.Message, why) {
				t.Errorf("the status says %q", st.Message)
			}
			if appears == "at the last moment" {
				if st.Host != "to" || st.Phase != v1alpha1.PhaseFailed || st.Since == nil || inspectStore(t, s, "u1").Aside != 1 || inspectStore(t, other, "u1").Incoming == "" {
					t.Errorf("the status is %+v; the old host has %+v, and the new one %+v", st, inspectStore(t, s, "u1"), inspectStore(t, other, "u1"))
				}
			} else {
				if st.Host != "from" || st.Move != nil || st.MoveFailure == nil || st.MoveFailure.To != "to" || g.services["gateway-coder"].State != hinit.StateUp {
					t.Errorf("the gateway is %s, and the status is %+v, %+v", g.services["gateway-coder"].State, st, st.MoveFailure)
				}
				p = getProfile(t, api, "coder")
				p.Status.Move = &v1alpha1.Move{To: "to", Since: metav1.Now()}
				if err := api.Status().Update(t.Context(), p); err != nil {
					t.Fatal(err)
				}
			}
			from.offers.certificateOf = func(context.Context, string) (string, error) { return fetchingHost.fingerprint, nil }
			if err := os.Remove(foreign); err != nil {
				t.Fatal(err)
			}
			for range maxMoveFailures {
				reconcileAll(t, api, from, to)
			}
			st = getProfile(t, api, "coder").Status
			if st.Host != "to" || st.Installed != 2 || st.MoveFailure != nil || there.services["gateway-coder"].State != hinit.StateUp || !inspectStore(t, other, "u1").Live {
				t.Errorf("without the directory: the gateway is %s, and the status is %+v", there.services["gateway-coder"].State, st)
			}
			if _, err := os.Stat(filepath.Join(dir, "profiles/coder")); !os.IsNotExist(err) {
				t.Error("the old host has the profile too:", err)
			}
		})
	}
}

// TestAMoveThatFailsIsNotTriedAgainAtOnce checks that a failed move waits before the next try, although the watch of
// the host reports its own write of the failure.
func TestAMoveThatFailsIsNotTriedAgainAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dir := newVolume(t, "", "")
		if err := os.MkdirAll(filepath.Join(dir, "profiles/coder"), 0o755); err != nil {
			t.Fatal(err)
		}
		p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "agents", UID: "u1"}}
		p.Status = v1alpha1.AgentProfileStatus{Host: "from", Assignment: 1, Installed: 1, Move: &v1alpha1.Move{To: "to", Offer: &v1alpha1.Offer{Nonce: "n"}}}
		var h *host
		ctx, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		tries := 0
		api := interceptor.NewClient(newFakeAPI(p), interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
				err := c.Status().Patch(ctx, o, patch, options...)
				if tries++; tries > 100 {
					end()
				}
				h.handleEvent(moveField, o.DeepCopyObject(), true)
				return err
			},
		})
		h = newTestHost(t, "to", api, &fakeGateways{}, s)
		h.handleEvent(moveField, getProfile(t, api, "coder"), true)
		done := make(chan bool)
		go func() { h.runWorker(ctx); close(done) }()
		<-ctx.Done()
		h.queue.ShutDown()
		<-done
		if st := getProfile(t, api, "coder").Status; tries < 5 || tries > 20 || int(st.Move.Failures) != tries {
			t.Errorf("it was tried %d times in a minute, and the status says %d", tries, st.Move.Failures)
		}
	})
}

// TestAMoveThatStandsStillEnds checks that a move ends soon if the target requests the data and
// reads none of it. Otherwise the gateway would be down for hours.
func TestAMoveThatStandsStillEnds(t *testing.T) {
	s, dir := newVolume(t, "u1", "learnt")
	big := make([]byte, 16<<20) // More bytes than the kernel buffers for a connection.
	for i := range 4 {
		if err := os.WriteFile(filepath.Join(dir, "profiles/coder", fmt.Sprint("big", i)), big, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "agents", UID: "u1", Finalizers: []string{v1alpha1.Finalizer}}}
	p.Status = v1alpha1.AgentProfileStatus{Host: "from", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning}
	p.Status.Move = &v1alpha1.Move{To: "to", Reason: "it is pinned to to", Since: metav1.Now()}
	api := newFakeAPI(p)
	g := &fakeGateways{services: map[string]hinit.Service{}}
	g.set("gateway-coder", hinit.StateUp, hinit.WantUp)
	from := newTestHost(t, "from", api, g, s)
	round := func() v1alpha1.AgentProfileStatus {
		from.watched[ownField]["coder"] = getProfile(t, api, "coder")
		if err := from.reconcile(t.Context(), "coder"); err != nil {
			t.Fatal(err)
		}
		return getProfile(t, api, "coder").Status
	}
	st := round()
	if st.Move == nil || st.Move.Offer == nil || g.services["gateway-coder"].State != hinit.StateDown {
		t.Fatalf("the gateway is %s, and the status is %+v", g.services["gateway-coder"].State, st)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{fetchingHost.certificate}, ServerName: ServerName(st.Move.Offer.Nonce), InsecureSkipVerify: true}} // Accept the self-signed certificate.
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+st.Move.Offer.Address+dataPathPrefix+"u1/"+st.Move.Offer.Nonce, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if st = round(); st.Move == nil {
		t.Fatalf("the move has ended at once: %+v", st.MoveFailure)
	}
	testkit.Until(t, "the move ends", func() bool {
		from.offers.mu.Lock()
		for _, one := range from.offers.byUID {
			one.progress = time.Now().Add(-2 * stallTimeout)
		}
		from.offers.mu.Unlock()
		return round().Move == nil
	})
	st = round()
	if g.services["gateway-coder"].State != hinit.StateUp || st.MoveFailure == nil || st.MoveFailure.Attempts != 1 {
		t.Errorf("the gateway is %s, and the status is %+v, %+v", g.services["gateway-coder"].State, st, st.MoveFailure)
	}
	if want := "did not move to host to, and tries again after 5m0s: nothing was sent for 10m0s"; st.Message != want {
		t.Errorf("the status says %q", st.Message)
	}
	if n, err := io.Copy(io.Discard, answer.Body); err == nil || n > 4*int64(len(big)) {
		t.Errorf("the data was sent although the gateway runs: %d bytes, %v", n, err)
	}
}

// startCuttingProxy returns the address of a proxy that breaks each connection after 20,000 bytes.
func startCuttingProxy(t *testing.T, to func() string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				host, err := net.Dial("tcp", to())
				if err != nil {
					return
				}
				defer host.Close()
				go func() { _, _ = io.Copy(host, client) }()
				_, _ = io.CopyN(client, host, 20_000)
			}()
		}
	}()
	return l.Addr().String()
}
