package cmdline

import (
	"testing"

	"hinit/client"
)

func TestAWordMatchesItsServicesOnly(t *testing.T) {
	alone := client.Service{Name: "web"}
	grouped := client.Service{Name: "gateway-coder", Profile: "coder", Group: "payments"}
	for _, c := range []struct {
		word           string
		alone, grouped bool
	}{
		{"web", true, false},
		{"coder", false, true},
		{"gateway-*", false, true},
		{"cod?r", false, true},
		{"*", true, true},
		{"@payments", false, true},
		{"@pay", false, false},
		{"@", false, false}, // "@" must not select the services that have no group
		{"", false, false},
		{"[", false, false},
	} {
		if got := SelectsService(c.word, &alone); got != c.alone {
			t.Errorf("%q matches the service without a group: %v", c.word, got)
		}
		if got := SelectsService(c.word, &grouped); got != c.grouped {
			t.Errorf("%q matches the service of a group: %v", c.word, got)
		}
	}
}
