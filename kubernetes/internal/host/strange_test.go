package host

import (
	"net"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
)

// TestAHostConnectsToNoHostOfAnotherPool checks that a host sends its token to no host of another
// pool, even if that host wrote a move into its profile's status.
func TestAHostConnectsToNoHostOfAnotherPool(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	called := make(chan bool, 1)
	go func() {
		c, err := l.Accept()
		if called <- err == nil; err == nil {
			_ = c.Close()
		}
	}()
	s, _ := newVolume(t, "", "")
	p := newCoderProfile(v1alpha1.AgentProfileStatus{Host: "strange-0", Assignment: 1, Installed: 1})
	p.Spec.Pool = "strange"
	p.Status.Move = &v1alpha1.Move{To: "me", Since: metav1.NewTime(time.Now()), Offer: &v1alpha1.Offer{Nonce: "n", Address: l.Addr().String()}}
	api := newFakeAPI(p)
	h := newTestHost(t, "me", api, &fakeGateways{services: map[string]hinit.Service{}}, s)
	h.settings.Pool = "agents"
	reconcileAll(t, api, h)
	_ = l.Close()
	if <-called {
		t.Error("it connects")
	}
	if st := getProfile(t, api, "coder").Status; st.Move.Failures != 1 || !strings.Contains(st.Message, `it is of pool "strange", and this host is of pool "agents"`) {
		t.Errorf("%+v, %+v", st, st.Move)
	}
}
