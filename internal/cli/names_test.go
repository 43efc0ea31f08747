package cli

import (
	"slices"
	"testing"

	"hinit/client"
)

// TestAProfileAndAServiceOfOneNameAreTwoWords: both became one word, and an order to a pattern left the profile out.
func TestAProfileAndAServiceOfOneNameAreTwoWords(t *testing.T) {
	services := []client.Service{
		{Name: "dashboard"},
		{Name: "gateway-dashboard", Profile: "dashboard"},
		{Name: "gateway-coder", Profile: "coder"},
	}
	for _, c := range []struct {
		word string
		want []string
	}{
		{"*", []string{"dashboard", "gateway-dashboard", "coder"}},
		{"dash*", []string{"dashboard", "gateway-dashboard"}},
		{"dashboard", []string{"dashboard"}},
		{"gateway-dashboard", []string{"gateway-dashboard"}},
		{"gateway-coder", []string{"coder"}},
		{"coder", []string{"coder"}},
		{"not-yet-known", []string{"not-yet-known"}},
	} {
		found, err := (*Terminal)(nil).servicesFor(c.word, services, false)
		var got []string
		for _, one := range found {
			got = append(got, one.word)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q stands for %q, want %q (%v)", c.word, got, c.want, err)
		}
	}
}
