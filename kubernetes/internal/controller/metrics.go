package controller

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"hinit/kubernetes/api/v1alpha1"
)

// gauges are the metrics of each pool. Their values come from the pool's status.
var gauges = []struct {
	name, help string
	value      func(*v1alpha1.AgentPoolStatus) int32
}{
	{"hosts_wanted", "Hosts that the pool shall have.", func(s *v1alpha1.AgentPoolStatus) int32 { return s.Wanted }},
	{"hosts", "Pods of the pool.", func(s *v1alpha1.AgentPoolStatus) int32 { return s.Hosts }},
	{"hosts_reachable", "Hosts that run and report.", func(s *v1alpha1.AgentPoolStatus) int32 { return s.Reachable }},
	{"hosts_updated", "Hosts with the wanted image.", func(s *v1alpha1.AgentPoolStatus) int32 { return s.Updated }},
	{"profiles", "Profiles of the pool.", func(s *v1alpha1.AgentPoolStatus) int32 { return s.Profiles }},
	{"profiles_ready", "Profiles whose gateways are ready.", func(s *v1alpha1.AgentPoolStatus) int32 { return s.Ready }},
	{"profiles_pending", "Profiles without a host.", func(s *v1alpha1.AgentPoolStatus) int32 { return s.Pending }},
	{"profiles_lost", "Profiles whose host is lost.", func(s *v1alpha1.AgentPoolStatus) int32 { return s.Lost }},
}

// metrics is a Prometheus collector of [gauges] for all pools. It reads from a cache.
type metrics struct {
	api client.Reader
	log *slog.Logger
}

func describeGauge(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("hinit_fleet_"+name, help, []string{"namespace", "pool"}, nil)
}

// Describe implements [prometheus.Collector].
func (m metrics) Describe(out chan<- *prometheus.Desc) {
	for _, g := range gauges {
		out <- describeGauge(g.name, g.help)
	}
}

// Collect implements [prometheus.Collector].
func (m metrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	pools := &v1alpha1.AgentPoolList{}
	if err := m.api.List(ctx, pools, client.UnsafeDisableDeepCopy); err != nil {
		m.log.Warn("pools can't be listed for the metrics", "error", err)
		return
	}
	for i := range pools.Items {
		p := &pools.Items[i]
		for _, g := range gauges {
			out <- prometheus.MustNewConstMetric(describeGauge(g.name, g.help), prometheus.GaugeValue, float64(g.value(&p.Status)), p.Namespace, p.Name)
		}
	}
}
