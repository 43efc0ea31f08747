package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hinit/examples/agent/internal/knobs"
)

func knobNames() (names []string) {
	for _, knob := range knobs.Table() {
		names = append(names, knob.Name)
	}
	return names
}

func commandNames() (names []string) {
	for _, cmd := range commands() {
		names = append(names, cmd.name)
	}
	return names
}

func TestProfileCreateMakesACompleteHome(t *testing.T) {
	home := t.TempDir()
	runAgent(t, home, "profile", "create", " Coder ").check(t, 0, "✓ Created profile 'coder'")
	dir := filepath.Join(home, "profiles", "coder")
	for _, sub := range []string{"memories", "sessions", "skills", "skins", "logs", "plans", "workspace", "cron", "home"} {
		if info, err := os.Stat(filepath.Join(dir, sub)); err != nil || !info.IsDir() {
			t.Errorf("no directory %s: %v", sub, err)
		}
	}
	if got := fileMode(t, filepath.Join(dir, ".env")); got != 0o600 {
		t.Errorf(".env has mode %o", got)
	}
	if !exists(filepath.Join(dir, "SOUL.md")) {
		t.Error("no SOUL.md")
	}
	runAgent(t, home, "profile", "create", "coder").check(t, 1, "Error: profile 'coder' already exists")
}

func TestProfileCreateRefusesBadNames(t *testing.T) {
	home := t.TempDir()
	for name, message := range map[string]string{
		"default": "built-in", "Root": "reserved", "hermes": "reserved", "tmp": "reserved", "sudo": "reserved", "test": "reserved",
		"../x": "invalid", "a/b": "invalid", ".x": "invalid", "_x": "invalid", "": "invalid", "a b": "invalid",
		strings.Repeat("a", 65): "invalid",
	} {
		runAgent(t, home, "profile", "create", name).check(t, 1, message)
	}
	if exists(filepath.Join(home, "profiles")) {
		t.Error("a refused name left something behind")
	}
	runAgent(t, home, "profile", "create", strings.Repeat("a", 64)).check(t, 0)
}

func TestProfileOptionSelectsTheHomeFromAnywhere(t *testing.T) {
	home := t.TempDir()
	runAgent(t, home, "profile", "create", "coder").check(t, 0)
	want := "home:     " + filepath.Join(home, "profiles", "coder") + "\n"
	for _, args := range [][]string{
		{"-p", "coder", "dump"}, {"dump", "-p", "coder"}, {"dump", "--profile", "Coder"}, {"--profile=coder", "dump"},
	} {
		runAgent(t, home, args...).check(t, 0, want)
	}
	runAgent(t, filepath.Join(home, "profiles", "coder"), "dump").check(t, 0, "profile:  coder\n", want)

	const unknown = "Error: Profile 'ghost' does not exist. Create it with: hermes profile create ghost\n"
	if got := runAgent(t, home, "-p", "ghost", "gateway", "run"); got.code != 1 || got.stderr != unknown {
		t.Errorf("unknown profile: %+v", got)
	}
	if exists(filepath.Join(home, "profiles", "ghost")) {
		t.Error("an unknown profile was created")
	}
	runAgent(t, home, "dump", "-p", "../..").check(t, 1, "invalid profile name")
	runAgent(t, home, "-p", "default", "dump").check(t, 1, "Error: Profile 'default' does not exist.")
	runAgent(t, home, "dump", "-p").check(t, 2, "-p needs the name")
}

func TestStickySelection(t *testing.T) {
	home := t.TempDir()
	runAgent(t, home, "profile", "create", "coder").check(t, 0)
	runAgent(t, home, "profile", "use", "ghost").check(t, 1, "Profile 'ghost' does not exist")
	runAgent(t, home, "profile", "use", "coder").check(t, 0)
	if got := readFile(t, filepath.Join(home, "active_profile")); got != "coder\n" {
		t.Errorf("active_profile holds %q", got)
	}
	runAgent(t, home, "dump").check(t, 0, "profile:  coder\n")
	for _, name := range []string{"HERMES_S6_SUPERVISED_CHILD", "HERMES_SUPERVISED_CHILD"} {
		runAgentWith(t, home, []string{name + "=1"}, "", "dump").check(t, 0, "profile:  default\n")
	}
	runAgent(t, home, "profile", "use", "default").check(t, 0)
	runAgent(t, home, "dump").check(t, 0, "profile:  default\n")

	writeFile(t, filepath.Join(home, "active_profile"), "ghost\n")
	runAgent(t, home, "dump").check(t, 0, "Warning: active_profile names 'ghost'", "profile:  default\n")
}

func TestProfileDeleteAsksStopsAndResets(t *testing.T) {
	home := t.TempDir()
	runAgent(t, home, "profile", "create", "coder").check(t, 0)
	runAgent(t, home, "profile", "use", "coder").check(t, 0)
	dir := filepath.Join(home, "profiles", "coder")
	logs := filepath.Join(home, "logs", "gateways", "coder")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	g := startGateway(t, home, "-p", "coder", "gateway", "run")
	g.waitState("running")

	runAgentWith(t, home, nil, "n\n", "profile", "delete", "coder").check(t, 1, "[y/N]", "was not deleted")
	runAgentWith(t, home, nil, "", "profile", "delete", "coder").check(t, 1, "was not deleted")
	if !exists(filepath.Join(dir, "SOUL.md")) {
		t.Fatal("an unconfirmed delete touched the profile")
	}
	runAgentWith(t, home, nil, "y\n", "profile", "delete", "coder").check(t, 0, "✓ Deleted profile 'coder'")
	if code := g.wait(); code != 0 {
		t.Errorf("the gateway saw no planned stop: exit code %d", code)
	}
	if exists(dir) || exists(filepath.Join(home, "active_profile")) {
		t.Error("the profile or its selection is still there")
	}
	if !exists(logs) {
		t.Error("the log directory of the profile was removed")
	}
	runAgent(t, home, "profile", "delete", "coder", "--yes").check(t, 1, "Error: Profile 'coder' does not exist.")
	runAgent(t, home, "profile", "delete", "default", "--yes").check(t, 1, "built-in root profile")
}

func TestProfileRenameAndList(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{"zoe", "adam"} {
		runAgent(t, home, "profile", "create", name).check(t, 0)
	}
	runAgent(t, home, "profile", "use", "zoe").check(t, 0)
	g := startGateway(t, home, "-p", "zoe", "gateway", "run")
	g.waitState("running")
	list := runAgent(t, home, "profile", "list")
	var names []string
	for line := range strings.Lines(list.stdout) {
		names = append(names, strings.Join(strings.Fields(line)[:2], " "))
	}
	if got := strings.Join(names, ","); got != "default stopped,adam stopped,* zoe" {
		t.Errorf("profile list: %q\n%s", got, list.stdout)
	}
	runAgent(t, home, "profile", "show", "zoe").check(t, 0, "gateway:  running")
	runAgent(t, home, "profile", "rename", "zoe", "adam").check(t, 1, "already exists")
	runAgent(t, home, "profile", "rename", "zoe", "eve").check(t, 0)
	if code := g.wait(); code != 0 {
		t.Errorf("the gateway saw no planned stop: exit code %d", code)
	}
	runAgent(t, home, "dump").check(t, 0, "profile:  eve\n")
	if exists(filepath.Join(home, "profiles", "zoe")) {
		t.Error("the old name is still there")
	}
}

func TestConfigSetAndGet(t *testing.T) {
	home := t.TempDir()
	path := filepath.Join(home, "config.yaml")
	runAgent(t, home, "config", "set", "model", "big").check(t, 0)
	if got := fileMode(t, path); got != 0o640 {
		t.Errorf("a new config.yaml has mode %o", got)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, "# mine\nmodel: big\nother: 1\n")
	runAgent(t, home, "config", "set", "model", "small").check(t, 0)
	runAgent(t, home, "config", "set", "note", "two: words # here").check(t, 0)
	if got, want := readFile(t, path), "# mine\nmodel: small\nother: 1\nnote: \"two: words # here\"\n"; got != want {
		t.Errorf("config.yaml is %q, want %q", got, want)
	}
	if got := fileMode(t, path); got != 0o600 {
		t.Errorf("the mode changed to %o", got)
	}
	if got := runAgent(t, home, "config", "get", "note").stdout; got != "two: words # here\n" {
		t.Errorf("config get: %q", got)
	}
	runAgent(t, home, "config", "get", "nothing").check(t, 1, "'nothing' is not set")
	runAgent(t, home, "config", "set", "a: b", "x").check(t, 1, "cannot set")
	runAgent(t, home, "config", "set", "alone").check(t, 2, "usage:")
}
