package host

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
)

// TestAHostThatSendsSlowlyHoldsNoOtherMove checks that a host that sends its profiles very slowly
// does not delay moves from other hosts.
func TestAHostThatSendsSlowlyHoldsNoOtherMove(t *testing.T) {
	called := make(chan string, workers)
	other := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		called <- r.URL.Path
		<-r.Context().Done()
	}))
	t.Cleanup(other.Close)
	t.Cleanup(other.CloseClientConnections) // Run this cleanup before the server's close, which waits for the connections.
	sum := sha256.Sum256(other.Certificate().Raw)
	s, _ := newVolume(t, "", "")
	h := newTestHost(t, "to", newFakeAPI(), &fakeGateways{services: map[string]hinit.Service{}}, s)
	fetch := func(name, from string) error {
		p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "agents"}, Status: v1alpha1.AgentProfileStatus{Host: from}}
		p.Status.Move = &v1alpha1.Move{To: "to", Offer: &v1alpha1.Offer{Nonce: name, Address: other.Listener.Addr().String(), Certificate: hex.EncodeToString(sum[:])}}
		return h.fetch(t.Context(), p)
	}
	for i := range workers - 1 {
		go func() { _ = fetch(fmt.Sprint("slow", i), "strange") }() // The goroutine ends with the server.
	}
	for range maxFetchesPerHost {
		<-called
	}
	ended := make(chan error, 1)
	go func() { ended <- fetch("coder", "from") }()
	select {
	case path := <-called:
		if path != dataPathPrefix+"/coder" { // The object has no UID.
			t.Errorf("%s is fetched", path)
		}
	case err := <-ended:
		t.Errorf("it is not fetched: %v", err)
	}
}
