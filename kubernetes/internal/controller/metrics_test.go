package controller

import (
	"os"
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestTheDashboardShowsWhatThereIs compares the names in the dashboard of the examples with the metrics, in both directions.
func TestTheDashboardShowsWhatThereIs(t *testing.T) {
	if err := prometheus.NewRegistry().Register(metrics{}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../../examples/prometheus/fleet.json")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, match := range regexp.MustCompile(`hinit_fleet_([a-z_]+)\{`).FindAllStringSubmatch(string(text), -1) {
		shown[match[1]] = true
	}
	for _, g := range gauges {
		if !shown[g.name] {
			t.Errorf("the dashboard does not show %s", g.name)
		}
		delete(shown, g.name)
	}
	if len(shown) > 0 {
		t.Errorf("the dashboard shows %v, which no controller has", shown)
	}
}
