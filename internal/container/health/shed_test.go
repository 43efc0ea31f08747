package health

import (
	"testing"
	"time"

	"hinit/internal/proc"
)

// TestWhoGoesWhenMemoryIsShort is the policy, row by row. The container has 1000 bytes.
func TestWhoGoesWhenMemoryIsShort(t *testing.T) {
	low := candidate{name: "low", priority: 0, idle: time.Minute, bytes: 100, up: true}
	idler := candidate{name: "idler", priority: 0, idle: time.Hour, bytes: 50, up: true}
	calm := candidate{name: "calm", priority: 0, idle: time.Hour, bytes: 2, up: true}
	large := candidate{name: "large", priority: 0, idle: time.Minute, bytes: 300, up: true}
	normal := candidate{name: "normal", priority: 1, idle: 5 * time.Hour, bytes: 500, up: true}
	held := func(c candidate) candidate { c.up, c.held = false, true; return c }
	ending := func(c candidate) candidate { c.up, c.ending = false, true; return c }
	for _, tt := range []struct {
		what     string
		used     uint64
		stalled  float64
		full     bool
		services []candidate
		want     decision
	}{
		{"there is room", 500, 50, false, []candidate{low, normal}, decision{}},
		{"it is tight", 850, 0, false, []candidate{low}, decision{}},
		{"it is tight and processes stall", 850, 15, false, []candidate{low}, decision{full: true}},
		{"starts were refused", 850, 0, true, []candidate{low}, decision{full: true}},
		{"nearly full", 920, 0, false, []candidate{low, normal}, decision{full: true}},
		{"nearly full and processes stall", 920, 15, false, []candidate{normal, low}, decision{full: true, shed: "low"}},
		{"the lowest goes first, however large and idle the other is", 960, 0, true, []candidate{normal, low}, decision{full: true, shed: "low"}},
		{"then the idlest", 960, 0, true, []candidate{low, large, idler}, decision{full: true, shed: "idler"}},
		{"then the largest", 960, 0, true, []candidate{low, large}, decision{full: true, shed: "large"}},
		{"one with next to nothing stays, however idle", 960, 0, true, []candidate{calm, low, large}, decision{full: true, shed: "large"}},
		{"one at a time", 990, 90, true, []candidate{low, ending(large)}, decision{full: true}},
		{"all are critical", 990, 90, true, nil, decision{full: true}},
		{"starts go on", 700, 0, true, []candidate{low}, decision{}},
		{"the most important one comes back first", 200, 0, false, []candidate{held(low), held(normal)}, decision{admit: "normal"}},
		{"one that does not fit lets another one by", 400, 0, false, []candidate{held(low), held(normal)}, decision{admit: "low"}},
		{"none fits", 750, 0, false, []candidate{held(low)}, decision{}},
		{"none comes back while starts are refused", 810, 0, true, []candidate{held(idler)}, decision{full: true}},
	} {
		p := pressure{container: proc.ContainerMemory{Used: tt.used, Limit: 1000, Stalled: tt.stalled}, startsRefused: tt.full, services: tt.services}
		if got := decide(p); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.what, got, tt.want)
		}
	}
	if got := decide(pressure{container: proc.ContainerMemory{Used: 5}, services: []candidate{low}}); got != (decision{}) {
		t.Errorf("without a limit: %+v", got)
	}
}
