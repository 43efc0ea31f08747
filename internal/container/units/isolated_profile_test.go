package units

import (
	"slices"
	"strings"
	"testing"
	"unsafe"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/isolation"
	"hinit/internal/proc"
	"hinit/profiles"
)

// plan returns the words for hinit-isolate about a profile, its command, and its directory. There are no words if the profile is
// not isolated.
func plan(t *testing.T, yaml, profile string) (words, command []string, dir string) {
	t.Helper()
	cfg, err := config.Load(config.Options{Path: "/etc/hinit/hinit.yaml", Text: []byte(yaml), Env: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	m := NewMaker(boot.CallerAsAgent(), cfg.Home, nil, false)
	u := m.Gateway(cfg, profiles.Profile{Name: profile, Home: cfg.Home + "/profiles/" + profile}, nil)
	end := isolation.PlanLen(u.Spec.Argv)
	return u.Spec.Argv[:end], u.Spec.Argv[end:], u.Spec.Dir
}

func TestAnIsolatedGatewayIsToldWhatItMayReach(t *testing.T) {
	words, command, dir := plan(t, "isolation: {mode: files, share: [\"/srv/{profile}\", \"/srv/all:ro\"], ports: [8700]}\n", "coder")
	for _, word := range []string{
		"name=coder", "home=/opt/data/profiles/coder", "share=/srv/coder", "read=/srv/all", "port=8700", "hide=/opt/data", "hide=/run/hinit", "hide=/etc/hinit/hinit.yaml",
	} {
		if !slices.Contains(words, word) {
			t.Errorf("%s is missing: %q", word, words)
		}
	}
	if len(command) == 0 || !strings.HasSuffix(command[0], "hermes") || dir != "/opt/data/profiles/coder" {
		t.Errorf("%q in %s", command, dir)
	}
	if words, _, _ := plan(t, "isolation: files\n", "default"); len(words) > 0 {
		t.Error("the root profile is isolated")
	}
}

// TestPID1KeptACopyOfTheEnvironmentForEachIsolatedProfile fails if PID 1 needs memory for what all gateways have in common.
func TestPID1KeptACopyOfTheEnvironmentForEachIsolatedProfile(t *testing.T) {
	cfg, err := config.Load(config.Options{Path: "/etc/hinit/hinit.yaml", Text: []byte("isolation: files\nprofiles: {own: {env: {HOME: /srv/own}}}\n"), Env: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	m := NewMaker(boot.CallerAsAgent(), cfg.Home, []string{"PATH=/usr/bin:/bin", "HOME=/root"}, false)
	var specs []proc.Spec
	for _, name := range []string{"a", "b", "own"} {
		spec := m.Gateway(cfg, profiles.Profile{Name: name, Home: cfg.Home + "/profiles/" + name}, nil).Spec
		home := map[bool]string{true: "HOME=/srv/own", false: "HOME=" + cfg.Home + "/profiles/" + name}[name == "own"]
		if !slices.Contains(spec.Argv[:isolation.PlanLen(spec.Argv)], home) {
			t.Errorf("%s gets another HOME than %s: %q", name, home, spec.Argv)
		}
		specs = append(specs, spec)
	}
	for _, spec := range specs[1:] {
		if &spec.Env[0] != &specs[0].Env[0] {
			t.Errorf("a copy of the environment: %q", spec.Env)
		}
		for i, word := range specs[0].Argv {
			if strings.HasPrefix(word, "hide=") && unsafe.StringData(word) != unsafe.StringData(spec.Argv[i]) {
				t.Errorf("a copy of %s", word)
			}
		}
	}
}

func TestWithoutRootAUserOfItsOwnIsRefusedInWords(t *testing.T) {
	if words, _, _ := plan(t, "isolation: user\n", "coder"); !strings.Contains(strings.Join(words, " "), "refused=isolation: user needs root to change users; start the container without --user") {
		t.Errorf("%q", words)
	}
}
