package controller

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/pool"
)

// TestAPoolTakesNoObjectThatIsNotItsOwn checks that a pool does not change an existing object of
// the same name, such as a Helm release's Service. Deleting the pool would otherwise delete that
// object.
func TestAPoolTakesNoObjectThatIsNotItsOwn(t *testing.T) {
	labels := func(of string) map[string]string { return map[string]string{v1alpha1.PoolLabel: of} }
	yes := true
	for what, c := range map[string]struct {
		meta  metav1.ObjectMeta
		taken bool
	}{
		"of a Helm release":        {metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/name": "pool"}}, false},
		"of another pool":          {metav1.ObjectMeta{Labels: labels("other")}, false},
		"of a pool that was there": {metav1.ObjectMeta{Labels: labels("pool")}, true},
		"without its label":        {metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{UID: "pool", Controller: &yes}}}, true},
	} {
		c.meta.Name, c.meta.Namespace = "pool", "agents"
		there := newCluster(t, newPool(), &corev1.Service{ObjectMeta: c.meta})
		err := there.reconcileOnce()
		if taken := slices.Contains(there.takeAppliedKinds(), "Service"); taken != c.taken || (err == nil) != c.taken {
			t.Errorf("a Service %s is taken: %t, with %v", what, taken, err)
		}
		p := &v1alpha1.AgentPool{}
		if err := there.api.Get(t.Context(), client.ObjectKeyFromObject(newPool()), p); err != nil {
			t.Fatal(err)
		}
		if said := strings.Contains(p.Status.Doing, `Service "pool": there is one that is not of pool "pool"`); said == c.taken {
			t.Errorf("with a Service %s the pool says %q", what, p.Status.Doing)
		}
	}
}

// TestAProfileGetsNoVolumeOfAnother checks that two profiles whose pods would have the same name do
// not share a volume. Pod names contain only a short hash, so a user can construct such a
// collision.
func TestAProfileGetsNoVolumeOfAnother(t *testing.T) {
	for of, taken := range map[string]bool{"victim": false, "coder": true} {
		volume := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Name: "data-" + pool.SinglePodName("pool", "coder"), Namespace: "agents", Labels: map[string]string{v1alpha1.PoolLabel: "pool", v1alpha1.ProfileLabel: of},
		}}
		p := newProfile("coder", v1alpha1.AgentProfileStatus{})
		p.Spec.Placement = v1alpha1.PlacementPod
		c := newCluster(t, newPool(), p, volume)
		if err := c.reconcileOnce(); err != nil {
			t.Fatal(err)
		}
		if kinds := c.takeAppliedKinds(); slices.Contains(kinds, "PersistentVolumeClaim") != taken || slices.Contains(kinds, pool.Sandbox.Kind) != taken {
			t.Errorf("beside the volume of %s, %q are applied", of, kinds)
		}
		if refused := c.stateOf(client.ObjectKeyFromObject(newPool())).refusals["coder"]; strings.Contains(refused, `there is one of profile "victim"`) == taken {
			t.Errorf("beside the volume of %s, the reason is %q", of, refused)
		}
	}
}
