package home

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestResolve(t *testing.T) {
	root := t.TempDir()
	coder := filepath.Join(root, "profiles", "coder")
	if err := os.MkdirAll(coder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name      string
		env       map[string]string
		profile   string
		dir, want string
	}{
		{"root", map[string]string{"HERMES_HOME": root}, "", root, DefaultProfile},
		{"named", map[string]string{"HERMES_HOME": root}, "coder", coder, "coder"},
		{"home of a profile", map[string]string{"HERMES_HOME": coder}, "", coder, "coder"},
		{"named from the home of another", map[string]string{"HERMES_HOME": filepath.Join(root, "profiles", "x")}, "coder", coder, "coder"},
		{"unclean path", map[string]string{"HERMES_HOME": root + "/./"}, "", root, DefaultProfile},
	} {
		h, err := Resolve(func(key string) string { return test.env[key] }, test.profile)
		if err != nil || h.Dir != test.dir || h.Profile != test.want || h.Root != root {
			t.Errorf("%s: %+v %v", test.name, h, err)
		}
	}
	if _, err := os.Stat("/opt/data"); err == nil {
		t.Skip("/opt/data exists here")
	}
	h, err := Resolve(func(key string) string { return map[string]string{"HOME": "/h"}[key] }, "")
	if err != nil || h.Dir != "/h/.hermes" {
		t.Errorf("HOME alone: %+v %v", h, err)
	}
	if _, err := Resolve(func(string) string { return "" }, ""); !errors.Is(err, ErrNoHome) {
		t.Errorf("nothing set: %v", err)
	}
}

func TestListSkipsWhatIsNoProfile(t *testing.T) {
	root := t.TempDir()
	h := Home{Root: root, Dir: root, Profile: DefaultProfile}
	for _, name := range []string{"b", "a-1", "default", "Bad", "nomarker"} {
		dir := filepath.Join(root, "profiles", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if name == "nomarker" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, soulFile), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	names, err := h.List()
	if err != nil || len(names) != 3 || names[0] != DefaultProfile || names[1] != "a-1" || names[2] != "b" {
		t.Errorf("%v %v", names, err)
	}
}

// FuzzCheckName checks that a name that passes stays inside the profiles directory.
func FuzzCheckName(f *testing.F) {
	for _, seed := range []string{"coder", "..", "a/b", "a\x00", "Ä", "default", "-x", "a\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if CheckName(name) != nil {
			return
		}
		dir := Home{Root: "/r"}.ProfileDir(name)
		if filepath.Dir(dir) != "/r/profiles" || filepath.Base(dir) != name || Normalize(name) != name {
			t.Errorf("%q leads to %q", name, dir)
		}
	})
}
