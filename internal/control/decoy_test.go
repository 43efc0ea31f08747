package control

import (
	"testing"

	"hinit/supervisor"
)

func TestAServiceDirectoryOfTheAgentsNeverStandsForAProfile(t *testing.T) {
	gateway := &supervisor.Service{Name: "gateway-coder", Profile: "coder", Kind: supervisor.KindGateway}
	for name, c := range map[string]struct {
		other *supervisor.Service
		want  string
	}{
		"a service directory of the agent's": {&supervisor.Service{Name: "coder", Kind: supervisor.KindService, YieldsToProfile: true}, "gateway-coder"},
		"a service of root's":                {&supervisor.Service{Name: "coder", Kind: supervisor.KindService}, "coder"},
		"a stand-in":                         {&supervisor.Service{Name: "coder", Kind: supervisor.KindPlaceholder}, "gateway-coder"},
		"a service directory without one":    {&supervisor.Service{Name: "web", Kind: supervisor.KindService, YieldsToProfile: true}, "gateway-coder"},
	} {
		t.Run(name, func(t *testing.T) {
			snap := &supervisor.Snapshot{Services: []*supervisor.Service{c.other, gateway}}
			if v, err := findService(snap, "coder"); err != nil || v.Name != c.want {
				t.Errorf("it is %+v, %v", v, err)
			}
			if v, err := findService(snap, c.other.Name); c.other.Name == "web" && (err != nil || v != c.other) {
				t.Errorf("it is %+v, %v", v, err)
			}
		})
	}
}
