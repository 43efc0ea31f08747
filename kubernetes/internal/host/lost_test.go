package host

import (
	"testing"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
)

// TestAHomeThatASessionMadeOnANewVolumeIsNotTheProfile checks that a home that a session created on
// an empty volume does not count as the lost profile. The host must not start a gateway without its
// data.
func TestAHomeThatASessionMadeOnANewVolumeIsNotTheProfile(t *testing.T) {
	s, dir := newVolume(t, "", "")
	p := newCoderProfile(v1alpha1.AgentProfileStatus{Host: "me", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning})
	p.MarkCreated()
	api := newFakeAPI(p)
	g := &fakeGateways{services: map[string]hinit.Service{}}
	h := newTestHost(t, "me", api, g, s)
	status := func() v1alpha1.AgentProfileStatus {
		for range 3 {
			reconcileAll(t, api, h)
		}
		return getProfile(t, api, "coder").Status
	}
	if st := status(); st.Phase != v1alpha1.PhaseLost || !st.Missing {
		t.Fatalf("without its data: %+v", st)
	}
	logAgain(t, dir)
	g.set("gateway-coder", hinit.StateDown, hinit.WantDown)
	if st := status(); st.Phase != v1alpha1.PhaseLost || g.services["gateway-coder"].State == hinit.StateUp {
		t.Errorf("the gateway is %s, and the status is %+v", g.services["gateway-coder"].State, st)
	}
	p = getProfile(t, api, "coder")
	p.Status.Phase = v1alpha1.PhaseStarting // The host was lost, and is back.
	if err := api.Status().Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if st := status(); st.Phase != v1alpha1.PhaseLost || g.services["gateway-coder"].State == hinit.StateUp {
		t.Errorf("after a loss of the host: the gateway is %s, and the status is %+v", g.services["gateway-coder"].State, st)
	}
	if err := s.writeRecord("coder", &record{UID: "u1"}); err != nil { // Only the old volume has a record.
		t.Fatal(err)
	}
	if st := status(); st.Phase != v1alpha1.PhaseRunning || st.Missing || g.services["gateway-coder"].State != hinit.StateUp {
		t.Errorf("with the old volume: the gateway is %s, and the status is %+v", g.services["gateway-coder"].State, st)
	}
}
