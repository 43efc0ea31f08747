package volume

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

// Known credential files in a root-owned directory at HERMES_AUTH_HOME become the agent's, and no other file in it. A container
// engine, or a command that root ran, leaves such a directory.
func TestCredentialsElsewhereAreRepaired(t *testing.T) {
	testkit.NeedRoot(t)
	base := tempDir(t)
	auth := base + "/auth"
	for name, mode := range map[string]os.FileMode{
		"auth.json": 0o600, "shared/nous_auth.json": 0o600, "profiles/work/auth.json": 0o600, "profiles/work/.anthropic_oauth.json": 0o600,
		"profiles/work/auth.json.rebootstrap.tmp": 0o600, "profiles/work/auth.json.tmp.1.stale": 0o600, "unrelated/host-file": 0o600,
	} {
		must(t, os.MkdirAll(filepath.Dir(auth+"/"+name), 0o700))
		must(t, os.WriteFile(auth+"/"+name, []byte(name), mode))
	}
	must(t, os.Symlink(auth+"/unrelated/host-file", auth+"/auth.lock"))
	o, _ := options(t, base+"/data/profiles/work", map[string]string{"HERMES_AUTH_HOME": auth, "HERMES_AUTH_JSON_BOOTSTRAP": "new"})
	prepareBoot(context.Background(), o)
	for name, want := range map[string]int{
		"": agentUID, "auth.json": agentUID, "shared": agentUID, "shared/nous_auth.json": agentUID, "profiles": agentUID, "profiles/work": agentUID,
		"profiles/work/auth.json": agentUID, "profiles/work/.anthropic_oauth.json": agentUID, "profiles/work/auth.json.tmp.1.stale": agentUID,
		"profiles/work/auth.json.rebootstrap.tmp": 0, "unrelated": 0, "unrelated/host-file": 0, "auth.lock": 0,
	} {
		if got := uidOf(t, filepath.Join(auth, name)); got != want {
			t.Errorf("%q is uid %d's, want %d", name, got, want)
		}
	}
	if got := readFile(t, auth+"/profiles/work/auth.json"); got != "profiles/work/auth.json" {
		t.Errorf("the credentials were overwritten: %q", got)
	}
	o.Env = environ(map[string]string{"HERMES_AUTH_HOME": auth, "HERMES_AUTH_JSON_REBOOTSTRAP": "x"})
	if h, wanted := RebootstrapHook(o); !wanted || h.Command[2] != auth+"/profiles/work/auth.json" {
		t.Errorf("renewed is %q, %v", h.Command, wanted)
	}
}

// The auth.json that root's login has written must become the agent's, even in a directory that belongs to the agent. Otherwise
// no gateway could read it.
func TestCredentialsThatRootWroteLaterAreRepaired(t *testing.T) {
	testkit.NeedRoot(t)
	base := tempDir(t)
	must(t, os.Mkdir(base+"/auth", 0o700))
	o, _ := options(t, base+"/data", map[string]string{"HERMES_AUTH_HOME": base + "/auth", "HERMES_AUTH_JSON_BOOTSTRAP": "{}"})
	prepareBoot(t.Context(), o)
	for _, name := range []string{"auth.json", ".anthropic_oauth.json", "host-file"} {
		writeFile(t, base+"/auth/"+name, "")
		must(t, os.Chown(base+"/auth/"+name, 0, 0))
	}
	prepareBoot(t.Context(), o)
	for name, want := range map[string]int{"": agentUID, "auth.json": agentUID, ".anthropic_oauth.json": agentUID, "host-file": 0} {
		if got := uidOf(t, filepath.Join(base, "auth", name)); got != want {
			t.Errorf("%q is uid %d's, want %d", name, got, want)
		}
	}
}

// No link on the path of a profile's credentials may be followed, and a directory of the system at HERMES_AUTH_HOME must not
// change.
func TestCredentialsElsewhereFollowNoLink(t *testing.T) {
	testkit.NeedRoot(t)
	base := tempDir(t)
	must(t, os.Mkdir(base+"/auth", 0o755))
	must(t, os.Mkdir(base+"/system", 0o755))
	must(t, os.WriteFile(base+"/system/passwd", nil, 0o644))
	must(t, os.Symlink(base+"/data/escape", base+"/auth/profiles"))
	for _, tt := range []struct{ auth, said, absent string }{
		{"/auth", "refusing credential residence creation through symlinked path " + base + "/auth/profiles/work", "/data/escape"},
		{"/system", "cannot use HERMES_AUTH_HOME", "/system/profiles"},
	} {
		o, messages := options(t, base+"/data/profiles/work", map[string]string{"HERMES_AUTH_HOME": base + tt.auth, "HERMES_AUTH_JSON_BOOTSTRAP": "x"})
		prepareBoot(context.Background(), o)
		if !strings.Contains(messages.text(), tt.said) {
			t.Errorf("%s: %q", tt.auth, messages.text())
		}
		if _, err := os.Lstat(base + tt.absent); err == nil {
			t.Errorf("%s was made", tt.absent)
		}
	}
	if uidOf(t, base+"/system") != 0 {
		t.Error("a directory of the system's was given away")
	}
}

func TestScratchIsTheAgentsAlone(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	o, messages := options(t, home, map[string]string{"HERMES_WRITE_SAFE_ROOT": home + ":" + filepath.Dir(home) + "/scratch"})
	must(t, os.Mkdir(o.ScratchDir, 0o755))
	prepareBoot(context.Background(), o)
	if info, err := os.Lstat(o.ScratchDir); err != nil || info.Mode().Perm() != 0o700 || uidOf(t, o.ScratchDir) != agentUID {
		t.Errorf("%v, %v", info, err)
	}
	target := filepath.Dir(home) + "/target"
	must(t, os.Mkdir(target, 0o755))
	must(t, os.Remove(o.ScratchDir))
	must(t, os.Symlink(target, o.ScratchDir))
	prepareBoot(context.Background(), o)
	if uidOf(t, target) != 0 || !strings.Contains(messages.text(), "the agent cannot use "+o.ScratchDir) {
		t.Errorf("the target is uid %d's; said: %s", uidOf(t, target), messages.text())
	}
}
