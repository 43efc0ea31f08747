package host

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
)

// TestAMoveWithoutPoliciesIsRefused checks that a host gives no profile away while the API server lets hosts write the status of any
// profile, or the Lease of another host. The gateway must keep running, and the status must say why.
func TestAMoveWithoutPoliciesIsRefused(t *testing.T) {
	moving := v1alpha1.AgentProfileStatus{Host: "from", Assignment: 1, Installed: 1, Phase: v1alpha1.PhaseRunning, Move: &v1alpha1.Move{To: "to", Since: metav1.Now()}}
	for missing, allow := range map[string]interceptor.Funcs{
		"hinit-fleet-lease": {Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return nil }},
		"hinit-fleet-host": {SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			if slices.Contains(options, client.SubResourcePatchOption(client.DryRunAll)) {
				return nil
			}
			return c.SubResource(sub).Patch(ctx, o, patch, options...)
		}},
	} {
		s, _ := newVolume(t, "u1", "learnt")
		api := newFakeAPI(newCoderProfile(moving))
		g := &fakeGateways{services: map[string]hinit.Service{}}
		g.set("gateway-coder", hinit.StateUp, hinit.WantUp)
		from := newTestHost(t, "from", interceptor.NewClient(api, allow), g, s)
		for range maxMoveFailures {
			reconcileAll(t, api, from)
		}
		st := getProfile(t, api, "coder").Status
		if len(from.offers.byUID) > 0 || st.Move == nil || st.Move.Offer != nil || st.Move.Failures != maxMoveFailures || !strings.Contains(st.Message, "the ValidatingAdmissionPolicy "+missing+" has not denied a request (success)") {
			t.Errorf("without %s: %+v, %+v", missing, st, st.Move)
		}
		st.Move.Since = metav1.NewTime(time.Now().Add(-2 * minMoveTime))
		p := getProfile(t, api, "coder")
		if p.Status = st; api.Status().Update(t.Context(), p) != nil {
			t.Fatal("the status can't be written")
		}
		reconcileAll(t, api, from)
		if st = getProfile(t, api, "coder").Status; st.Move != nil || st.MoveFailure == nil || g.services["gateway-coder"].State != hinit.StateUp || g.services["gateway-coder"].RunNumber != 1 {
			t.Errorf("without %s, the gateway is %+v, and the status %+v", missing, g.services["gateway-coder"], st)
		}
	}
}
