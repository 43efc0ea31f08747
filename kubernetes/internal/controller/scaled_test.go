package controller

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"hinit/kubernetes/api/v1alpha1"
)

// TestAPoolThatSomebodyScaledUpGoesBackAtOnce checks that the controller removes all surplus hosts
// in one round after a user scales the StatefulSet up.
func TestAPoolThatSomebodyScaledUpGoesBackAtOnce(t *testing.T) {
	p := newPool()
	set := scaledByHand(t, p, 1000)
	extra, beat := newHost("pool-7")
	c := newCluster(t, p, set, extra, beat, newProfile("coder", v1alpha1.AgentProfileStatus{Host: "pool-2", Assignment: 1, Installed: 1}), newProfile("writer", v1alpha1.AgentProfileStatus{}))
	if err := c.reconcileOnce(); err != nil {
		t.Fatal(err)
	}
	replicas := int64(0)
	for _, o := range c.applied {
		if o.GetKind() == "StatefulSet" {
			replicas, _, _ = unstructured.NestedInt64(o.Object, "spec", "replicas")
		}
	}
	if replicas != 3 {
		t.Errorf("the StatefulSet is scaled to %d, and pool-2 has a profile", replicas)
	}
	if host := c.profile("writer").Status.Host; host != "" {
		t.Errorf("a new profile is placed on %s, which is removed", host)
	}
}
