package profiles_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"hinit/profiles"
	"hinit/profiles/manage"
)

func TestValidName(t *testing.T) {
	long := strings.Repeat("a", 64)
	for _, tt := range []struct {
		name        string
		cli, onDisk bool
	}{
		{"a", true, true},
		{"0", true, true},
		{"coder", true, true},
		{"my-agent_2", true, true},
		{"a-", true, true},
		{"default", true, true},
		{long, true, true},
		{long + "a", false, true},
		{strings.Repeat("a", 251), false, true},
		{strings.Repeat("a", 252), false, false},
		{"", false, false},
		{"-a", false, false},
		{"_a", false, false},
		{"A", false, false},
		{"aB", false, false},
		{"a b", false, false},
		{"a.b", false, false},
		{".", false, false},
		{"..", false, false},
		{"a/b", false, false},
		{"a\x00", false, false},
		{"a\n", false, false},
		{"é", false, false},
		{"aé", false, false},
		{"hermes", false, true},
		{"test", false, true},
		{"tmp", false, true},
		{"root", false, true},
		{"sudo", false, true},
		{"tests", true, true},
	} {
		for _, rule := range []struct {
			what string
			err  error
			want bool
		}{{"ValidName", manage.ValidName(tt.name), tt.cli}, {"ValidServiceName", profiles.ValidServiceName(tt.name), tt.onDisk}} {
			if (rule.err == nil) != rule.want {
				t.Errorf("%s(%q) = %v, want valid %t", rule.what, tt.name, rule.err, rule.want)
			}
			if rule.err != nil && !errors.Is(rule.err, profiles.ErrInvalidName) {
				t.Errorf("%s(%q) = %v, which doesn't wrap ErrName", rule.what, tt.name, rule.err)
			}
		}
	}
}

func TestNormalize(t *testing.T) {
	for in, want := range map[string]string{" Default\n": "default", "CODER": "coder", "a b": "a b", "": ""} {
		if got := profiles.Normalize(in); got != want {
			t.Errorf("Normalize(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestSlotNames(t *testing.T) {
	if got := profiles.SlotName("coder"); got != "gateway-coder" {
		t.Errorf("SlotName = %q", got)
	}
	for slot, want := range map[string]string{
		"gateway-coder": "coder", "gateway-default": "default", "gateway-gateway-a": "gateway-a",
		"gateway-": "", "dashboard": "", "gateway-../x": "", ".gateway-a": "", "gateway": "",
	} {
		got, ok := profiles.SlotProfile(slot)
		if got != want || ok != (want != "") {
			t.Errorf("SlotProfile(%q) = %q, %t, want %q", slot, got, ok, want)
		}
	}
}

func FuzzName(f *testing.F) {
	for _, seed := range []string{"", "a", "default", "Coder ", "hermes", "a/../b", "a\n", "-x", strings.Repeat("z", 300)} {
		f.Add(seed)
	}
	pattern := regexp.MustCompile(`\A[a-z0-9][a-z0-9_-]*\z`)
	f.Fuzz(func(t *testing.T, s string) {
		byPattern := pattern.MatchString(s)
		if got, want := profiles.ValidServiceName(s) == nil, byPattern && len(s) <= 251; got != want {
			t.Fatalf("ValidServiceName(%q) = %t, want %t", s, got, want)
		}
		reserved := map[string]bool{"hermes": true, "test": true, "tmp": true, "root": true, "sudo": true}
		if got, want := manage.ValidName(s) == nil, byPattern && len(s) <= 64 && !reserved[s]; got != want {
			t.Fatalf("ValidName(%q) = %t, want %t", s, got, want)
		}
		if n := profiles.Normalize(s); profiles.Normalize(n) != n {
			t.Fatalf("Normalize(%q) = %q, which isn't its own normal form", s, n)
		}
		if p, ok := profiles.SlotProfile(profiles.SlotName(s)); ok != (profiles.ValidServiceName(s) == nil) || ok && p != s {
			t.Fatalf("SlotProfile(SlotName(%q)) = %q, %t", s, p, ok)
		}
	})
}
