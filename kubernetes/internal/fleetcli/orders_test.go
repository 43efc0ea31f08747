package fleetcli

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"hinit/kubernetes/api/v1alpha1"
)

// TestAMoveByHandDoesNotWait checks that a move that an administrator orders begins at once, although earlier moves of
// the profile have failed.
func TestAMoveByHandDoesNotWait(t *testing.T) {
	p := &v1alpha1.AgentProfile{ObjectMeta: metav1.ObjectMeta{Name: "coder", Namespace: "default"}}
	p.Status = v1alpha1.AgentProfileStatus{Host: "pool-0", Message: "did not move", MoveFailure: &v1alpha1.MoveFailure{Attempts: 9, Message: "did not move"}}
	f := &fleet{api: fake.NewClientBuilder().WithScheme(v1alpha1.Scheme()).WithObjects(p).WithStatusSubresource(p).Build()}
	if err := f.pin(t.Context(), p, "pool-1"); err != nil {
		t.Fatal(err)
	}
	now := &v1alpha1.AgentProfile{}
	if err := f.api.Get(t.Context(), client.ObjectKeyFromObject(p), now); err != nil {
		t.Fatal(err)
	}
	if now.Spec.Pin != "pool-1" || now.Status.MoveFailure != nil || now.Status.Host != "pool-0" {
		t.Errorf("%+v, %+v", now.Spec, now.Status)
	}
}
