package host

import (
	"errors"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/pool"
)

// TestALeaseWithoutItsLabelIsRepaired checks that a host adds its pool's label to an existing
// Lease. Without the label, the controller would wait for the host for ever.
func TestALeaseWithoutItsLabelIsRepaired(t *testing.T) {
	api := newFakeAPI(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: pool.LeaseName("me"), Namespace: "agents", Labels: map[string]string{"own": "label"}}})
	s, _ := newVolume(t, "", "")
	h := newTestHost(t, "me", api, &fakeGateways{services: map[string]hinit.Service{}}, s)
	h.settings.Pool = "agents"
	l := &coordinationv1.Lease{}
	if err := errors.Join(h.renewLease(t.Context()), api.Get(t.Context(), client.ObjectKey{Namespace: "agents", Name: pool.LeaseName("me")}, l)); err != nil {
		t.Fatal(err)
	}
	if l.Labels[v1alpha1.PoolLabel] != "agents" || l.Labels["own"] != "label" {
		t.Errorf("its labels are %v", l.Labels)
	}
}
