package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/kubernetes/api/v1alpha1"
)

func (f *sim) poolStatus() v1alpha1.AgentPoolStatus {
	p := &v1alpha1.AgentPool{}
	_ = f.api.Get(f.ctx, client.ObjectKey{Namespace: "default", Name: f.pool}, p)
	return p.Status
}

// zones returns the number of running profiles in each zone, and the number of hosts.
func (f *sim) zones() (profiles map[string]int, hosts int) {
	profiles = map[string]int{}
	where, zone := f.kubelet.ledger.runningOn(), map[string]string{}
	for _, name := range slices.Compact(slices.Sorted(maps.Values(where))) {
		node := &corev1.Node{}
		_ = f.api.Get(f.ctx, client.ObjectKey{Name: f.pod(name).Spec.NodeName}, node)
		zone[name] = node.Labels[zoneKey]
	}
	for _, host := range where {
		profiles[zone[host]]++
	}
	return profiles, len(zone)
}

// TestAPoolGrowsByMemoryAndShrinksWithoutALoss checks that a pool grows to three hosts in two zones. When hosts.max is
// lowered, the hosts must be drained before they are removed, so that no profile is lost.
func TestAPoolGrowsByMemoryAndShrinksWithoutALoss(t *testing.T) {
	const n = 6
	f := newSim(t, "scale", 1, func(p *v1alpha1.AgentPool) {
		p.Spec.Hosts = v1alpha1.HostRange{Min: 1, Max: 4}
		p.Spec.TopologyKey = zoneKey
	})
	f.controller(t, f.log)
	memory := func(size string) *resource.Quantity { q := resource.MustParse(size); return &q }
	// Two profiles fill 80 percent of 16 GiB.
	f.create(n, func(_ int, p *v1alpha1.AgentProfile) { p.Spec.Memory = memory("5Gi") })
	eventually(t, 3*time.Minute, "all profiles ready", func() string { return f.missing(n) })
	profiles, hosts := f.zones()
	if hosts != 3 || f.poolStatus().Wanted != 3 || profiles["a"] < 2 || profiles["b"] < 2 {
		t.Errorf("%d hosts, profiles in the zones: %v, %+v", hosts, profiles, f.poolStatus())
	}
	f.edit(func(p *v1alpha1.AgentPool) { p.Spec.Hosts.Max = 1 })
	eventually(t, time.Minute, "the reason told why no host goes", func() string {
		if doing := f.poolStatus().Doing; doing != "drains scale-2: hosts.max is 1; the other hosts have no room for all profiles" {
			return doing
		}
		return ""
	})
	if problem := f.missing(n); problem != "" || f.poolStatus().Hosts != 3 {
		t.Errorf("%s; %+v", problem, f.poolStatus())
	}
	for i := range n {
		if err := f.editProfile(fmt.Sprintf("p%05d", i), func(p *v1alpha1.AgentProfile) { p.Spec.Memory = memory("2Gi") }); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 3*time.Minute, "all profiles on the host that is left", func() string {
		for _, p := range f.profiles() {
			if p.Status.Phase == v1alpha1.PhaseLost || p.Status.Phase == v1alpha1.PhaseWaiting {
				t.Fatalf("%s: %+v", p.Name, p.Status)
			}
		}
		if s := f.poolStatus(); s.Hosts != 1 || s.Wanted != 1 || strings.Contains(s.Doing, "drains") {
			return fmt.Sprintf("%+v", s)
		}
		return f.missing(n)
	})
	f.edit(func(p *v1alpha1.AgentPool) { p.Spec.Hosts.Min, p.Spec.Hosts.Max = 2, 2 })
	eventually(t, time.Minute, "another host", func() string {
		if s := f.poolStatus(); s.Reachable != 2 {
			return fmt.Sprintf("%+v", s)
		}
		return f.missing(n)
	})
	f.checkLedger()
}
