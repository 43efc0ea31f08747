package pool

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"hinit/kubernetes/api/v1alpha1"
)

// TestAMeasureOfAnAgentTakesAtMostOneHost checks that a measured memory counts as at most one whole
// host. Agents that imitate hinit can report any value, and the sum could overflow.
func TestAMeasureOfAnAgentTakesAtMostOneHost(t *testing.T) {
	p := newTestPool()
	for _, c := range []struct {
		expected, measured string
		want               int64
	}{
		{"", "", 64 << 20}, {"", "100Mi", 100 << 20}, {"200Mi", "100Mi", 200 << 20}, {"", "4Ei", HostMemory(p)}, {"2Gi", "4Ei", 2 << 30},
	} {
		profile := &v1alpha1.AgentProfile{}
		for text, field := range map[string]**resource.Quantity{c.expected: &profile.Spec.Memory, c.measured: &profile.Status.Memory} {
			if text != "" {
				q := resource.MustParse(text)
				*field = &q
			}
		}
		if got := ReservedMemory(p, profile); got != c.want {
			t.Errorf("expected %q, measured %q: %d bytes are reserved", c.expected, c.measured, got)
		}
	}
}
