package controller

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"hinit/kubernetes/api/v1alpha1"
	"hinit/kubernetes/internal/pool"
)

// TestAPoolThatSomebodyScaledUpGoesBackAtOnce checks that the controller takes back all hosts in one round if somebody
// scales the StatefulSet up. It took them back one by one, while the StatefulSet made pods and volumes.
func TestAPoolThatSomebodyScaledUpGoesBackAtOnce(t *testing.T) {
	p := aPool()
	_, template, err := pool.Objects(p, 2)
	if err != nil {
		t.Fatal(err)
	}
	many := int32(1000)
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{
		Name: "pool", Namespace: "agents", Labels: map[string]string{v1alpha1.PoolLabel: "pool"}, Annotations: map[string]string{sumAnnotation: template + "/1/2"},
	}, Spec: appsv1.StatefulSetSpec{Replicas: &many}}
	extra, beat := aHost("pool-7")
	c := newCluster(t, p, set, extra, beat, aProfile("coder", v1alpha1.AgentProfileStatus{Host: "pool-2", Assignment: 1, Installed: 1}), aProfile("writer", v1alpha1.AgentProfileStatus{}))
	if err := c.round(); err != nil {
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
