package host

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
)

// TestAFileOfAnAgentLosesNoProfile checks that an agent can't stop another profile's gateway or
// move its data away by forging records or directories in the store.
func TestAFileOfAnAgentLosesNoProfile(t *testing.T) {
	write := func(dir, name, text string) error { return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600) }
	for what, forge := range map[string]func(dir string) error{
		"a record of another object":  func(dir string) error { return write(dir, liveDir+"/coder", `{"uid":"u9"}`) },
		"no record":                   func(dir string) error { return os.Remove(filepath.Join(dir, liveDir, "coder")) },
		"a record that can't be read": func(dir string) error { return write(dir, liveDir+"/coder", "x") },
		"data of another object that is set aside": func(dir string) error {
			return errors.Join(write(dir, liveDir+"/coder", `{"uid":"u9"}`), os.Mkdir(filepath.Join(dir, asidePath("coder", "u9", 1)), 0o700))
		},
		"data that came before": func(dir string) error {
			at := incomingPath("coder", "u1", "nonce")
			return errors.Join(write(dir, at+".json", "{}"), os.Mkdir(filepath.Join(dir, at), 0o700))
		},
	} {
		for _, begins := range []bool{false, true} { // A host that has just started has not listed any objects yet.
			s, dir := newVolume(t, "u1", "learnt")
			p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "agents", UID: "u1", Finalizers: []string{v1alpha1.Finalizer}}}
			p.Spec.OnDelete = "Delete"
			p.Status = v1alpha1.AgentProfileStatus{Host: "me", Assignment: 2, Installed: 2, Phase: v1alpha1.PhaseRunning, Receipt: &v1alpha1.Receipt{Nonce: "nonce"}}
			api := newFakeAPI(p)
			g := &fakeGateways{services: map[string]hinit.Service{}}
			run := g.set("gateway-coder", hinit.StateUp, hinit.WantUp).RunNumber
			h := newTestHost(t, "me", api, g, s)
			if err := forge(dir); err != nil {
				t.Fatal(err)
			}
			if begins {
				_ = h.reconcile(t.Context(), "coder")
			}
			for range 3 {
				reconcileAll(t, api, h)
			}
			st := getProfile(t, api, "coder").Status
			if gateway := g.services["gateway-coder"]; st.Phase != v1alpha1.PhaseRunning || gateway.State != hinit.StateUp || gateway.RunNumber != run || !s.exists("profiles/coder/data") {
				t.Errorf("%s, begins %t: the gateway is %+v, and the status %+v", what, begins, gateway, st)
			}
			if err := api.Delete(t.Context(), getProfile(t, api, "coder")); err != nil {
				t.Fatal(err)
			}
			h.watched[ownField]["coder"] = getProfile(t, api, "coder")
			if err := h.reconcile(t.Context(), "coder"); err != nil || s.exists("profiles/coder") {
				t.Errorf("%s, begins %t: after the deletion, the data is left: %v", what, begins, err)
			}
		}
	}
}
