package profiles

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
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
		"alias of a section":  {"x: &g {multiplex_profiles: true}\ngateway: *g\n", true, true},
		"JSON":                {`{"gateway": {"multiplex_profiles": true}}`, true, true},
		"JSON top level":      {`{"multiplex_profiles": "yes", "gateway": {"multiplex_profiles": false}}`, true, true},
		"JSON number":         {`{"multiplex_profiles": 1}`, true, true},
		"broken JSON":         {`{"multiplex_profiles": true`, false, false},
		"binary":              {"\x00\xff:\n :\n::", false, false},
		"flow on more lines":  {"gateway: {\n  port: 1,\n  multiplex_profiles: true\n}\n", true, true},
		"cannot be loaded":    {"model: [x\nmultiplex_profiles: true\n", false, false}, // The agent can't load this file either.
		"long":                {strings.Repeat("# x\n", 1<<18) + "multiplex_profiles: true", true, true},
		"too many values":     {"list: [" + strings.Repeat("x,", 1<<19) + "]\nmultiplex_profiles: true", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := agentSetting(parseAgentConfig([]byte(tt.config)), multiplexKey)
			if on, _ := parseSwitch(v.Value); on != tt.on || (v.Kind != 0) != tt.ok {
				t.Errorf("got %t, %t, want %t, %t", on, v.Kind != 0, tt.on, tt.ok)
			}
		})
	}
}

func FuzzMultiplexed(f *testing.F) {
	f.Add("gateway:\n  multiplex_profiles: true # x\n")
	f.Add("{\"gateway\": {}}")
	f.Add("gateway: {a: b\n---\n 'x' : \"\n")
	f.Add("multiplex_profiles:\n- a\n- 'b'\n")
	f.Fuzz(func(t *testing.T, config string) {
		v := agentSetting(parseAgentConfig([]byte(config)), multiplexKey)
		if v.Kind != 0 && !strings.Contains(config, "multiplex") {
			t.Fatal("found what isn't there")
		}
	})
}

// TestOnlyListedProfilesAreServed checks which profiles a multiplexer with an allowlist serves.
func TestOnlyListedProfilesAreServed(t *testing.T) {
	for name, tt := range map[string]struct {
		config string
		want   string // Expected served profiles of default, a and b.
	}{
		"no list":         {"", "default a b"},
		"null":            {"  multiplex_profile_allowlist:\n", "default a b"},
		"block":           {"  multiplex_profile_allowlist: # mine\n    - a # the first\n", "default a"},
		"flush block":     {"  multiplex_profile_allowlist:\n  - 'b'\n  other: x\n", "default b"},
		"flow":            {"  multiplex_profile_allowlist: [a, \"b\"]\n", "default a b"},
		"empty":           {"  multiplex_profile_allowlist: []\n", "default"},
		"no list at all":  {"  multiplex_profile_allowlist: a\n", "default"},
		"a mapping":       {"  multiplex_profile_allowlist: {a: b}\n", "default"},
		"not only words":  {"  multiplex_profile_allowlist: [[a], {b: a}, null, b]\n", "default b"},
		"aliases":         {"  owner: &o a\n  multiplex_profile_allowlist: [*o]\n", "default a"},
		"alias of a list": {"  all: &l [b]\n  multiplex_profile_allowlist: *l\n", "default b"},
		"alias of null":   {"  none: &n\n  multiplex_profile_allowlist: *n\n", "default a b"},
		"items of others": {"  routes:\n    - a\n  multiplex_profile_allowlist:\n    - b\n  more:\n    - a\n", "default b"},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewVolume(t)
			Write(t, s, "config.yaml", "gateway:\n  multiplex_profiles: true\n"+tt.config)
			top, err := s.Topology(func(string) string { return "" }, "")
			if err != nil {
				t.Fatal(err)
			}
			var served []string
			for _, p := range []string{Default, "a", "b"} {
				if top.Serves(p) {
					served = append(served, p)
				}
			}
			if got := strings.Join(served, " "); got != tt.want {
				t.Errorf("serves %q, want %q", got, tt.want)
			}
		})
	}
}

// TestAnOperatorsTopologyWins checks that an operator's topology overrides the environment and the
// configuration, until it is auto again.
func TestAnOperatorsTopologyWins(t *testing.T) {
	s := NewVolume(t)
	Write(t, s, "config.yaml", "multiplex_profiles: false\n")
	on := func(name string) string { return map[string]string{multiplexVar: "1"}[name] }
	for _, step := range []struct {
		set, from string
		on        bool
	}{{"", multiplexVar, true}, {PerProfile, topologyFile, false}, {Multiplex, topologyFile, true}, {AutoTopology, multiplexVar, true}, {AutoTopology, multiplexVar, true}} {
		if step.set != "" {
			if err := s.SetTopology(step.set); err != nil {
				t.Fatal(err)
			}
		}
		top, err := s.Topology(on, "")
		if err != nil || top.Multiplexed != step.on || top.DecidedBy != step.from {
			t.Errorf("after %q: %+v, %v", step.set, top, err)
		}
	}
}

// TestALongListOfTheAgentHoldsUpNoStatus checks that a long allowlist does not slow down the status
// of many profiles.
func TestALongListOfTheAgentHoldsUpNoStatus(t *testing.T) {
	s := NewVolume(t)
	same := strings.Repeat("a", 50)
	var text strings.Builder
	text.WriteString("multiplex_profiles: true\nmultiplex_profile_allowlist: [")
	for i := range 50_000 {
		fmt.Fprintf(&text, "%s%05d,", same, 99_999-i)
	}
	Write(t, s, "config.yaml", text.String()+"]\n")
	top, err := s.Topology(func(string) string { return "" }, "")
	if err != nil || !top.Serves(same+"50000") || !top.Serves(same+"99999") {
		t.Fatal(err)
	}
	for began, i := time.Now(), 0; i < 100_000; i++ {
		if top.Serves(same + "00000") {
			t.Fatal("it serves a profile that is not in the list")
		}
		if time.Since(began) > 20*time.Second {
			t.Fatalf("%d look-ups took 20 s", i)
		}
	}
}

// TestHinitRanOutOfMemoryAfterTheAgentWroteItsConfiguration checks that a binary value is decoded
// only once, not for each YAML alias.
func TestHinitRanOutOfMemoryAfterTheAgentWroteItsConfiguration(t *testing.T) {
	big := "big: &big !!binary " + strings.Repeat("AAAA", 1<<18) + "\n"
	s := NewVolume(t)
	Write(t, s, "config.yaml", big+"multiplex_profiles: *big\nmultiplex_profile_allowlist: ["+strings.Repeat("*big,", 500)+"]\n")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	top, err := s.Topology(func(string) string { return "" }, "")
	runtime.ReadMemStats(&after)
	if err != nil || top.Serves("a") {
		t.Errorf("serves a: %t, %v", top.Serves("a"), err)
	}
	if taken := (after.TotalAlloc - before.TotalAlloc) >> 20; taken > 100 {
		t.Errorf("reading a configuration of a megabyte took %d MB", taken)
	}
}
