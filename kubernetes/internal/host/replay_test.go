package host

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/pool"
)

// TestAHostGetsNoProfileInTheNameOfAnother checks that an attacker's host can't reuse the
// credentials of a host that fetches from it to fetch another profile.
func TestAHostGetsNoProfileInTheNameOfAnother(t *testing.T) {
	var heard http.Header
	attacker := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heard = r.Header.Clone()
		http.Error(w, "wait", http.StatusServiceUnavailable)
	}))
	attacker.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	attacker.StartTLS()
	t.Cleanup(attacker.Close)
	to, _ := newVolume(t, "", "")
	own := &v1alpha1.Offer{Nonce: "own", Address: attacker.Listener.Addr().String(), Certificate: certificateSum(attacker.Certificate().Raw)}
	if err := to.fetch(t.Context(), "decoy", "u2", own, fetchingHost); err == nil || heard == nil {
		t.Fatalf("the attacker has heard %v, and the fetch has ended with %v", heard, err)
	}

	s, _ := newVolume(t, "u1", "learnt")
	third, from, _ := newOfferServer(t, s, &atomic.Int64{})
	strange, err := newIdentity()
	if err != nil {
		t.Fatal(err)
	}
	for who, certificates := range map[string][]tls.Certificate{"the attacker": {strange.certificate}, "the host that it moves to": {fetchingHost.certificate}} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{ServerName: ServerName(from.Nonce), InsecureSkipVerify: true, Certificates: certificates}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+third.listener.Addr().String()+dataPathPrefix+"u1/"+from.Nonce, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header = heard
		answer, err := (&http.Client{Transport: transport}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if sent := answer.StatusCode == http.StatusOK; sent != (who != "the attacker") {
			t.Errorf("%s is answered with %s", who, answer.Status)
		}
	}
}

// TestAHostIsKnownByItsLease checks that hosts identify each other by the certificate in the Lease,
// and refuse a host without a certificate.
func TestAHostIsKnownByItsLease(t *testing.T) {
	old := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: pool.LeaseName("old"), Namespace: "agents"}}
	api := newFakeAPI(old)
	s, _ := newVolume(t, "", "")
	h := newTestHost(t, "to", api, &fakeGateways{services: map[string]hinit.Service{}}, s)
	for range 2 {
		if err := h.renewLease(t.Context()); err != nil {
			t.Fatal(err)
		}
		if sum, err := h.settings.certificateOf(t.Context(), "to"); err != nil || sum != fetchingHost.fingerprint {
			t.Errorf("%q, %v", sum, err)
		}
	}
	if sum, err := h.settings.certificateOf(t.Context(), "old"); err != nil || sum != "" || hasFingerprint(&tls.ConnectionState{}, sum) {
		t.Errorf("a Lease without a certificate: %q, %v", sum, err)
	}
	if _, err := h.settings.certificateOf(t.Context(), "none"); err == nil {
		t.Error("a host without a Lease is known")
	}
}
