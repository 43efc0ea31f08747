package units

import (
	"slices"
	"strings"
	"testing"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/isolate"
	"hinit/internal/isolation"
	"hinit/profiles"
)

// plan returns how the gateway of a profile is started, and its directory. The command is empty where nothing isolates it.
func plan(t *testing.T, yaml, profile string) (p isolation.Plan, command []string, dir string) {
	t.Helper()
	cfg, err := config.Load(config.Options{Path: "/etc/hinit/hinit.yaml", Text: []byte(yaml), Env: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	m := NewMaker(boot.Caller(), cfg.Home, nil, false)
	u := m.Gateway(cfg, profiles.Profile{Name: profile, Home: cfg.Home + "/profiles/" + profile}, nil)
	p, command, _ = isolate.Parse(u.Spec.Argv)
	return p, command, u.Spec.Dir
}

func TestAnIsolatedGatewayIsToldWhatItMayReach(t *testing.T) {
	p, command, dir := plan(t, "isolation: {mode: files, share: [\"/srv/{profile}\", \"/srv/all:ro\"], ports: [8700]}\n", "coder")
	if p.Name != "coder" || p.Home != "/opt/data/profiles/coder" || !slices.Equal(p.Share, []string{"/srv/coder"}) || !slices.Equal(p.Read, []string{"/srv/all"}) || p.Refused != "" {
		t.Errorf("%+v", p)
	}
	for _, hidden := range []string{"/opt/data", "/run/hinit", "/etc/hinit/hinit.yaml"} {
		if !slices.Contains(p.Hide, hidden) {
			t.Errorf("%s is not hidden: %q", hidden, p.Hide)
		}
	}
	if len(command) == 0 || !strings.HasSuffix(command[0], "hermes") || dir != p.Home {
		t.Errorf("%q in %s", command, dir)
	}
	if _, command, _ := plan(t, "isolation: files\n", "default"); command != nil {
		t.Error("the root profile is isolated")
	}
}

func TestWithoutRootAUserOfItsOwnIsRefusedInWords(t *testing.T) {
	if p, _, _ := plan(t, "isolation: user\n", "coder"); !strings.Contains(p.Refused, "start the container without --user") {
		t.Errorf("%q", p.Refused)
	}
}
