package profiles_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"hinit/profiles"
)

func TestRootRule(t *testing.T) {
	for home, want := range map[string]string{
		"/opt/data":                "/opt/data",
		"/opt/data/":               "/opt/data",
		"/opt/data/profiles/coder": "/opt/data",
		"/opt/data/profiles":       "/opt/data/profiles",
		"/profiles/x":              "/",
		"/srv/profiles/a/b":        "/srv/profiles/a/b",
	} {
		if got := profiles.Open(home, nil, "").Root(); got != want {
			t.Errorf("Open(%q).Root() = %q, want %q", home, got, want)
		}
	}
}

func TestProfile(t *testing.T) {
	s := profiles.Open("/opt/data", nil, "")
	for name, want := range map[string]string{"default": "/opt/data", "coder": "/opt/data/profiles/coder", "../x": "", "": ""} {
		p, err := s.Profile(name)
		if p.Home != want || (err == nil) != (want != "") {
			t.Errorf("Profile(%q) = %v, %v, want home %q", name, p, err, want)
		}
	}
}

func TestDiscover(t *testing.T) {
	s := profiles.NewVolume(t)
	for _, name := range []string{"zeta", "alpha", "a-1", "a_1", "a1", "default", "Bad", "with space", "test", "root", ".hidden"} {
		profiles.Write(t, s, "profiles/"+name+"/SOUL.md", "x")
	}
	profiles.Write(t, s, "profiles/plain/config.yaml", "x") // A profile without the marker.
	profiles.Write(t, s, "profiles/Unmarked/x", "x")        // An impossible name without a marker causes no warning.
	profiles.Write(t, s, "profiles/file", "x")
	profiles.Write(t, s, "elsewhere/SOUL.md", "x")
	if err := os.Symlink(filepath.Join(s.Root(), "elsewhere"), filepath.Join(s.Root(), "profiles/link")); err != nil {
		t.Fatal(err)
	}

	found, warnings, err := s.Discover()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range found {
		names = append(names, p.Name)
		if want := filepath.Join(s.Root(), "profiles", p.Name); p.Name != profiles.Default && p.Home != want {
			t.Errorf("home of %q is %q, want %q", p.Name, p.Home, want)
		}
	}
	if want := []string{"default", "a-1", "a1", "a_1", "alpha", "zeta"}; !slices.Equal(names, want) {
		t.Errorf("found %q, want %q", names, want)
	}
	var about []string
	for _, w := range warnings {
		about = append(about, w.Profile)
		if !strings.Contains(w.Message, fmt.Sprintf("%q", w.Profile)) {
			t.Errorf("warning %+v doesn't name its directory", w)
		}
	}
	if want := []string{"Bad", "default", "link", "root", "test", "with space"}; !slices.Equal(about, want) {
		t.Errorf("warned about %q, want %q", about, want)
	}
}

func TestDiscoverWithoutVolume(t *testing.T) {
	s := profiles.NewVolume(t)
	if found, warnings, err := s.Discover(); err != nil || len(found) != 1 || len(warnings) != 0 {
		t.Errorf("without profiles/: %v, %v, %v", found, warnings, err)
	}
	missing := profiles.Open(filepath.Join(s.Root(), "missing"), nil, "")
	found, _, err := missing.Discover()
	if err == nil || len(found) != 1 || found[0].Name != profiles.Default {
		t.Errorf("without a volume: %v, %v", found, err)
	}
	outside := t.TempDir()
	if err := os.MkdirAll(filepath.Join(outside, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "x/SOUL.md"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(s.Root(), "profiles")); err != nil {
		t.Fatal(err)
	}
	if found, _, err := s.Discover(); err == nil || len(found) != 1 {
		t.Errorf("profiles/ is a link: %v, %v, want an error and the default profile", found, err)
	}
}

func TestDiscoverMarker(t *testing.T) {
	s := profiles.Open(t.TempDir(), nil, "AGENT.md")
	profiles.Write(t, s, "profiles/a/SOUL.md", "")
	profiles.Write(t, s, "profiles/b/AGENT.md", "")
	found, _, err := s.Discover()
	if err != nil || len(found) != 2 || found[1].Name != "b" {
		t.Errorf("found %v, %v", found, err)
	}
}

func TestVariablesOfSeveralProfiles(t *testing.T) {
	s := profiles.NewVolume(t)
	profiles.Write(t, s, "profiles/one/.env", "PORT=81\nNAME='one'\n")
	profiles.Write(t, s, "profiles/bare/SOUL.md", "x")
	profiles.Write(t, s, "profiles/aside", "PORT=83\n")
	if err := os.MkdirAll(filepath.Join(s.Root(), "profiles/odd/.env"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(s.Root(), "profiles/link"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(s.Root(), "profiles/one/.env"), filepath.Join(s.Root(), "profiles/link/.env")); err != nil {
		t.Fatal(err)
	}
	envs := make(map[string]map[string]string)
	err := s.EachEnv([]string{"one", "bare", "odd", "link", "../one", "default"}, func(profile string, vars map[string]string) { envs[profile] = vars })
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]string{"one": {"PORT": "81", "NAME": "one"}, "bare": {}, "default": {}}
	if !reflect.DeepEqual(envs, want) {
		t.Errorf("%v, want %v", envs, want)
	}
	for profile, vars := range want {
		if got, err := s.Env(profile); err != nil || !reflect.DeepEqual(got, vars) {
			t.Errorf("%s alone: %v, %v", profile, got, err)
		}
	}
	if err := os.RemoveAll(s.Root()); err != nil {
		t.Fatal(err)
	}
	if err := s.EachEnv([]string{"one"}, func(string, map[string]string) {}); err == nil {
		t.Error("no error without a volume")
	}
}
