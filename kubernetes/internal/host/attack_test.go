package host

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"hinit/kubernetes/api/v1alpha1"
)

// TestAProfileIsNotMadeOfTheOfferForAnother checks that an attacker's host can't get another
// profile's data by copying that profile's offer into its own profile's status.
func TestAProfileIsNotMadeOfTheOfferForAnother(t *testing.T) {
	s, _ := newVolume(t, "u1", "a secret of coder")
	_, from, _ := newOfferServer(t, s, &atomic.Int64{})
	to, dir := newVolume(t, "", "")
	if err := to.fetch(t.Context(), "decoy", "u2", from, fetchingHost); err == nil || !strings.Contains(err.Error(), "no such offer") {
		t.Errorf("the profile of the attacker gets the data: %v", err)
	}
	if got, _ := filepath.Glob(filepath.Join(dir, incomingDir, "*")); len(got) > 0 {
		t.Errorf("it has stored %q", got)
	}
	if err := to.fetch(t.Context(), "coder", "u1", from, fetchingHost); err != nil {
		t.Errorf("the profile of the offer: %v", err)
	}
}

// TestAHostCallsNoAddressThatItsSenderNames checks that an attacker's host can't redirect a
// fetching host to another address, such as an agent's server.
func TestAHostCallsNoAddressThatItsSenderNames(t *testing.T) {
	var called atomic.Int64
	inside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		called.Add(1)
		http.Error(w, "a secret of an agent", http.StatusNotFound)
	}))
	t.Cleanup(inside.Close)
	attacker := httptest.NewTLSServer(http.RedirectHandler(inside.URL+"/restart", http.StatusFound))
	t.Cleanup(attacker.Close)
	to, _ := newVolume(t, "", "")
	from := &v1alpha1.Offer{Nonce: "n", Address: attacker.Listener.Addr().String(), Certificate: certificateSum(attacker.Certificate().Raw)}
	if err := to.fetch(t.Context(), "coder", "u1", from, fetchingHost); err == nil || strings.Contains(err.Error(), "secret") || called.Load() > 0 {
		t.Errorf("the address was called %d times: %v", called.Load(), err)
	}
}
