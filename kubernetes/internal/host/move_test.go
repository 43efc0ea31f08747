package host

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
)

// TestAProfileThatCantBeSentRunsAgain has a file that seems larger than its volume. Earlier the move was tried for ever, with the
// gateway down.
func TestAProfileThatCantBeSentRunsAgain(t *testing.T) {
	s, dir := volume(t, "u1", "learnt")
	if err := os.Truncate(filepath.Join(dir, "profiles/coder/data"), 10<<40); err != nil {
		t.Fatal(err)
	}
	other, _ := volume(t, "", "")
	p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "agents", UID: "u1", Finalizers: []string{v1alpha1.Finalizer}}}
	p.Status = v1alpha1.AgentProfileStatus{Host: "from", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning}
	api := apiOf(p)
	g := &gateways{by: map[string]hinit.Service{}}
	g.set("gateway-coder", hinit.StateUp, hinit.WantUp)
	from, to := hostOf(t, "from", api, g, s), hostOf(t, "to", api, &gateways{}, other)
	for attempt := range int32(2) {
		p = read(t, api, "coder")
		p.Status.Move = &v1alpha1.Move{To: "to", Reason: "it is pinned to to", Since: metav1.NewTime(time.Now().Add(-2 * minMoveTime))}
		if err := api.Status().Update(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		down := 0
		for range 4 * maxMoveFailures {
			for _, h := range []*host{from, to} {
				field := map[bool]string{true: ownField, false: moveField}[h == from]
				h.seen[field]["coder"] = read(t, api, "coder")
				_ = h.reconcile(t.Context(), "coder") // the other host fails
			}
			if g.by["gateway-coder"].State == hinit.StateDown {
				down++
			}
		}
		st := read(t, api, "coder").Status
		f := st.MoveFailure
		if st.Move != nil || f == nil || f.Attempts != attempt+1 || f.To != "to" || g.by["gateway-coder"].State != hinit.StateUp || st.Phase != v1alpha1.PhaseRunning {
			t.Fatalf("attempt %d: the gateway is %s, and the status is %+v, %+v", attempt, g.by["gateway-coder"].State, st, f)
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
	if len(from.offers.by) > 0 || from.offers.listener != nil {
		t.Error("the data is still offered")
	}
}

// TestAProfileThatChangesForEverEndsItsMove has a home that changes before each try, and a stream that breaks off each time. Each
// try began anew, for ever.
func TestAProfileThatChangesForEverEndsItsMove(t *testing.T) {
	s, dir := volume(t, "u1", strings.Repeat("x", 1<<20))
	other, _ := volume(t, "", "")
	p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "agents", UID: "u1", Finalizers: []string{v1alpha1.Finalizer}}}
	p.Status = v1alpha1.AgentProfileStatus{Host: "from", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning}
	p.Status.Move = &v1alpha1.Move{To: "to", Since: metav1.NewTime(time.Now().Add(-2 * minMoveTime))}
	api := apiOf(p)
	g := &gateways{by: map[string]hinit.Service{}}
	g.set("gateway-coder", hinit.StateDown, hinit.WantDown)
	from, to := hostOf(t, "from", api, g, s), hostOf(t, "to", api, &gateways{}, other)
	from.offers.judge = func(context.Context, string) (string, error) {
		return "to", os.WriteFile(filepath.Join(dir, "profiles/coder", fmt.Sprint("new", time.Now().UnixNano())), nil, 0o600)
	}
	var real atomic.Value
	cut := cutting(t, func() string { return real.Load().(string) })
	tries := 0
	for range 4 * maxMoveFailures {
		from.seen[ownField]["coder"] = read(t, api, "coder")
		_ = from.reconcile(t.Context(), "coder")
		if p = read(t, api, "coder"); p.Status.Move != nil && p.Status.Move.Offer.Address != cut {
			real.Store(p.Status.Move.Offer.Address)
			if p.Status.Move.Offer.Address = cut; api.Status().Update(t.Context(), p) != nil {
				t.Fatal("the offer can't be changed")
			}
		}
		to.seen[moveField]["coder"] = read(t, api, "coder")
		if err := to.reconcile(t.Context(), "coder"); err != nil {
			tries++
		}
	}
	st := read(t, api, "coder").Status
	if st.Move != nil || st.MoveFailure == nil || g.by["gateway-coder"].State != hinit.StateUp || !strings.Contains(st.Message, "the stream has ended early") {
		t.Errorf("the gateway is %s, and the status is %+v, %+v", g.by["gateway-coder"].State, st, st.MoveFailure)
	}
	if tries != maxMoveFailures+1 { // the first one has brought something
		t.Errorf("it was tried %d times", tries)
	}
}

// cutting returns an address that leads to another one, and breaks off after 20,000 bytes.
func cutting(t *testing.T, to func() string) string {
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
