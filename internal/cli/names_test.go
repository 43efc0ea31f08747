package cli

import (
	"slices"
	"testing"

	"hinit/client"
)

// A command must be able to name a profile and a service of the same name separately, and a pattern must select both.
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
			got = append(got, one.name)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q stands for %q, want %q (%v)", c.word, got, c.want, err)
		}
	}
}

// Each verb must have its own help text. A common text of start, stop and restart would be wrong for some of them.
func TestTheHelpOfEachVerbIsItsOwn(t *testing.T) {
	files, err := helpTexts.ReadDir("help")
	if err != nil {
		t.Fatal(err)
	}
	of := make(map[string]string)
	for _, f := range files {
		text, err := helpTexts.ReadFile("help/" + f.Name())
		if other, is := of[string(text)]; is || err != nil {
			t.Errorf("%s has the text of %s (%v)", f.Name(), other, err)
		}
		of[string(text)] = f.Name()
	}
}
