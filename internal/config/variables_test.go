package config_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"hinit/internal/config"
)

func TestAVariableThatHinitDoesNotKnowIsNamed(t *testing.T) {
	got := config.UnknownVariables([]string{
		"PATH=/bin", "HINIT_STOP_TIMEOUT=3s", "HINIT_CONFIG=/x", "HINIT_STOP_TIMOUT=3s", "HINIT_FULL_MOON=yes", "HERMES_HOME=/opt/data",
	})
	want := []string{
		"HINIT_FULL_MOON has no effect: hinit knows no such variable",
		"HINIT_STOP_TIMOUT has no effect: hinit knows no such variable; did you mean HINIT_STOP_TIMEOUT?",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// hinit must know every variable on the reference page of the environment, so that it warns of none of them.
func TestTheVariablesOfTheReferenceAreKnown(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/environment.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for word := range strings.FieldsFuncSeq(string(page), func(r rune) bool { return r != '_' && (r < 'A' || r > 'Z') && (r < '0' || r > '9') }) {
		if !strings.HasPrefix(word, "HINIT_") || word == "HINIT_" {
			continue
		}
		found++
		if warnings := config.UnknownVariables([]string{word + "=x"}); len(warnings) > 0 {
			t.Error(warnings)
		}
	}
	if found < 8 {
		t.Errorf("only %d were found", found)
	}
}
