package host

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
)

// TestAVolumeThatFillsAtTheEndOfAMoveKeepsNoGatewayDown fills the volume of the new host after the
// data has arrived. The new host must install the data and start the gateway without any free
// space.
func TestAVolumeThatFillsAtTheEndOfAMoveKeepsNoGatewayDown(t *testing.T) {
	at := t.TempDir()
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=2m"); err != nil {
		t.Skip("only root can mount a small volume:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	other, err := OpenStore(at)
	if err != nil {
		t.Fatal(err)
	}
	s, dir := newVolume(t, "u1", "learnt")
	p := newCoderProfile(v1alpha1.AgentProfileStatus{Host: "from", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning, Move: &v1alpha1.Move{To: "to", Since: metav1.Now()}})
	p.Spec.Soul = &v1alpha1.ConfigMapKey{ConfigMap: "souls", Key: "coder"}
	api := newFakeAPI(p, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "souls", Namespace: "agents"}, Data: map[string]string{"coder": "kind"}})
	g, there := &fakeGateways{services: map[string]hinit.Service{}}, &fakeGateways{services: map[string]hinit.Service{}}
	g.set("gateway-coder", hinit.StateUp, hinit.WantUp)
	from, to := newTestHost(t, "from", api, g, s), newTestHost(t, "to", api, there, other)
	if err := os.WriteFile(filepath.Join(dir, "profiles/coder/SOUL.md"), []byte("kind"), 0o600); err != nil {
		t.Fatal(err)
	}
	full := false
	for range 2 * maxMoveFailures {
		if m := getProfile(t, api, "coder").Status.Move; m != nil && m.Received != nil && !full {
			if err := os.WriteFile(filepath.Join(at, "full"), make([]byte, 4<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			full = true
		}
		reconcileAll(t, api, from, to)
	}
	st := getProfile(t, api, "coder").Status
	if !full || st.Host != "to" || st.Phase != v1alpha1.PhaseRunning || there.services["gateway-coder"].State != hinit.StateUp || !inspectStore(t, other, "u1").Live {
		t.Errorf("full: %t; the gateway is %+v, and the status %+v", full, there.services["gateway-coder"], st)
	}
	if left, err := os.ReadDir(filepath.Join(at, incomingDir)); err != nil || len(left) > 0 {
		t.Errorf("%v are left of the move: %v", left, err)
	}
}
