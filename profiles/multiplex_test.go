package profiles

import (
	"strings"
	"testing"
)

func TestMultiplexed(t *testing.T) {
	for name, tt := range map[string]struct {
		config string
		on, ok bool
	}{
		"empty":               {"", false, false},
		"top level":           {"multiplex_profiles: true\n", true, true},
		"off":                 {"multiplex_profiles: false\n", false, true},
		"capital":             {"multiplex_profiles: True\n", true, true},
		"yes":                 {"multiplex_profiles: yes", true, true},
		"on":                  {"multiplex_profiles: on", true, true},
		"one":                 {"multiplex_profiles: 1", true, true},
		"quoted":              {`"multiplex_profiles": 'true'`, true, true},
		"empty value":         {"multiplex_profiles:\n", false, true},
		"comment behind":      {"multiplex_profiles: true # for all\n", true, true},
		"only a comment":      {"multiplex_profiles: # true\n", false, true},
		"commented out":       {"# multiplex_profiles: true\n", false, false},
		"windows":             {"\ufeffmodel: x\r\nmultiplex_profiles: true\r\n", true, true},
		"nested":              {"model:\n  default: x\ngateway:\n  multiplex_profiles: true\n", true, true},
		"nested, deep indent": {"gateway:\n      port: 1\n      multiplex_profiles: true\n", true, true},
		"nested, comments":    {"gateway: # mine\n\n# at left\n  # inside\n  multiplex_profiles: true\n", true, true},
		"nested too deep":     {"gateway:\n  api:\n    multiplex_profiles: true\n", false, false},
		"in another section":  {"agent:\n  multiplex_profiles: true\ngateway:\n  x: 1\n", false, false},
		"section has ended":   {"gateway:\n  x: 1\nother:\n  multiplex_profiles: true\n", false, false},
		"top level wins":      {"gateway:\n  multiplex_profiles: true\nmultiplex_profiles: false\n", false, true},
		"last one wins":       {"multiplex_profiles: true\nmultiplex_profiles: false\n", false, true},
		"flow":                {"gateway: {port: 1, multiplex_profiles: true}\n", true, true},
		"deeper flow":         {"gateway: {a: {multiplex_profiles: true}}\n", false, false},
		"in a block scalar":   {"gateway:\n  prompt: |\n    multiplex_profiles: true\n", false, false},
		"top block scalar":    {"prompt: |\n  multiplex_profiles: true\n", false, false},
		"list":                {"- multiplex_profiles: true\n", false, false},
		"no space":            {"multiplex_profiles:true\n", false, false},
		"document start":      {"---\nmultiplex_profiles: true\n", true, true},
		"next document":       {"multiplex_profiles: true\n---\nmultiplex_profiles: false\n", true, true},
		"document end":        {"a: 1\n...\nmultiplex_profiles: true\n", false, false},
		"JSON":                {`{"gateway": {"multiplex_profiles": true}}`, true, true},
		"JSON top level":      {`{"multiplex_profiles": "yes", "gateway": {"multiplex_profiles": false}}`, true, true},
		"JSON number":         {`{"multiplex_profiles": 1}`, true, true},
		"broken JSON":         {`{"multiplex_profiles": true`, false, false},
		"binary":              {"\x00\xff:\n :\n::", false, false},
		"long":                {strings.Repeat("x", 1<<20) + "\nmultiplex_profiles: true", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			if on, ok := multiplexed(tt.config); on != tt.on || ok != tt.ok {
				t.Errorf("got %t, %t, want %t, %t", on, ok, tt.on, tt.ok)
			}
		})
	}
}

func FuzzMultiplexed(f *testing.F) {
	f.Add("gateway:\n  multiplex_profiles: true # x\n")
	f.Add("{\"gateway\": {}}")
	f.Add("gateway: {a: b\n---\n 'x' : \"\n")
	f.Fuzz(func(t *testing.T, config string) {
		on, ok := multiplexed(config)
		if on && !ok {
			t.Fatal("on without being there")
		}
		if ok && !strings.Contains(config, "multiplex") && !strings.Contains(config, "\\u") {
			t.Fatal("found what isn't there")
		}
	})
}
