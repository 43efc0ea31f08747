package config

import (
	"strings"
	"testing"
)

// Only root may change the service that takes the lease. Otherwise an agent could decide which container serves the volume.
func TestTheProgramOfTheLeaseIsRootsService(t *testing.T) {
	load := func(text, value string) (*Config, error) {
		return Load(Options{Content: []byte(text), Env: envLookup(map[string]string{"HINIT_LEASE": value})})
	}
	c, err := load("{agent: {user: bot}}", "kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	if s := c.Services[LeaseName]; !s.Enabled || s.User != "root" || s.Command[0] != "hinit-lease-kubernetes" || s.Notify.Protocol != NotifySystemd {
		t.Errorf("%+v", s)
	}
	if c.ServiceWithOtherUser() != LeaseName {
		t.Errorf("the other user is of %q", c.ServiceWithOtherUser())
	}
	for _, off := range []string{"", "0", "no"} {
		if c, err := load("{}", off); err != nil || c.Services[LeaseName].Enabled || c.ServiceWithOtherUser() != "" {
			t.Errorf("HINIT_LEASE=%q: %v, %+v", off, err, c.Services[LeaseName])
		}
	}
	for _, problem := range []string{"1", "true", "Kubernetes", "etcd", "../program"} {
		if _, err := load("{}", problem); err == nil || !strings.Contains(err.Error(), "HINIT_LEASE") {
			t.Errorf("HINIT_LEASE=%q: %v", problem, err)
		}
	}
}
