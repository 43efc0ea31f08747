package units_test

import (
	"testing"

	"hinit/client"
	"hinit/internal/tuning"
)

// The status, doctor and the API must name the mechanism that enforces each limit in a container without its own control group.
func TestStatusNamesWhatEnforcesALimitWithoutAControlGroup(t *testing.T) {
	m, _, _ := newTestMaker(t, "")
	processors := client.LimitedByHinit
	if tuning.Processors() < 2 {
		processors = client.LimitedByNice
	}
	for _, tt := range []struct {
		controller string
		ownUser    bool
		want       string
	}{
		{"memory", false, client.LimitedByHinit},
		{"memory", true, client.LimitedByHinit},
		{"cpu", false, client.LimitedByNice},
		{"cpu", true, processors},
		{"pids", false, client.LimitedByNothing},
		{"pids", true, client.LimitedByUser},
	} {
		for _, pid := range []int{0, 1} {
			if got := m.EnforcedBy("gateway-coder", tt.controller, pid, tt.ownUser); got != tt.want {
				t.Errorf("%s of process %d, user of its own %v: %q, want %q", tt.controller, pid, tt.ownUser, got, tt.want)
			}
		}
	}
}
