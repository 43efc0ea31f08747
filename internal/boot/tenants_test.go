package boot

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

// A home copied with cp -a must get a new user. Two profiles with one user could kill each other's processes.
func TestACopiedHomeGetsAUserOfItsOwn(t *testing.T) {
	testkit.NeedRoot(t)
	home := t.TempDir()
	o := Options{Home: home, Tenants: Tenants{Enabled: true, All: true, UIDs: config.UIDs{First: 20000, Last: 29999}}}
	for name, uid := range map[string]int{"own": 20001, "one": 20002, "copy": 20002, "agents": 10000} {
		dir := filepath.Join(home, ProfilesDir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]bool{"own": true, "one": false, "copy": false, "agents": false, "missing": true} {
		if got := o.HasRightOwner(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// The start of a gateway must not examine every name in the directory of profiles, because the agent can make any number of
// files in it.
func TestNamesBesideTheHomesFillNoMemory(t *testing.T) {
	testkit.NeedRoot(t)
	home := t.TempDir()
	o := Options{Home: home, Tenants: Tenants{Enabled: true, All: true, UIDs: config.UIDs{First: 20000, Last: 29999}}}
	homes := filepath.Join(home, ProfilesDir)
	if err := errors.Join(os.MkdirAll(homes+"/own", 0o755), os.Chown(homes+"/own", 20001, 20001)); err != nil {
		t.Fatal(err)
	}
	for i := range fsutil.MaxDirNames - 1 {
		if err := os.WriteFile(filepath.Join(homes, strings.Repeat("x", 200)+strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if !o.HasRightOwner("own") {
		t.Error("a home beside files has a wrong owner")
	}
	if err := os.WriteFile(homes+"/more", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if o.HasRightOwner("own") {
		t.Error("names without an end are examined")
	}
}

// A profile must never get the agent's gid (20005 in agent.user 10000:20005). It could then read the same files as the agent's
// group.
func TestTheGroupOfTheAgentIsNoTenants(t *testing.T) {
	testkit.NeedRoot(t)
	cfg, err := config.Load(config.Options{Path: "/etc/hinit/hinit.yaml", Content: []byte("isolation: user\n"), Env: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		agent fsutil.Identity
		on    bool
	}{{fsutil.Identity{UID: 10000, GID: 10000}, true}, {fsutil.Identity{UID: 10000, GID: 20000}, false}, {fsutil.Identity{UID: 10000, GID: 20005}, false}, {fsutil.Identity{UID: 20005, GID: 10000}, false}} {
		agent := c.agent
		got := TenantsOf(cfg, fsutil.NewActor(agent))
		if got.Enabled != c.on {
			t.Errorf("agent.user %d:%d: profiles have users of their own: %t", agent.UID, agent.GID, got.Enabled)
		}
		if !got.HasUID(20007) || got.HasUID(agent.UID) {
			t.Errorf("agent.user %d:%d: the uid 20007 is a tenant's: %t, the agent's: %t", agent.UID, agent.GID, got.HasUID(20007), got.HasUID(agent.UID))
		}
	}
}

// Files that root created in a new profile must go to the profile's user at its start, even if the directory of profiles is a
// mount.
func TestRootCreatedAProfileInAMountedDirectory(t *testing.T) {
	testkit.NeedRoot(t)
	home := t.TempDir()
	must(t, os.Mkdir(home+"/profiles", 0o755))
	if err := unix.Mount("tmpfs", home+"/profiles", "tmpfs", 0, "mode=755"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(home+"/profiles", unix.MNT_DETACH) })
	writeFile(t, home+"/profiles/coder/SOUL.md", "")
	must(t, os.Mkdir(home+"/profiles/mounted", 0o755))
	must(t, unix.Mount("tmpfs", home+"/profiles/mounted", "tmpfs", 0, "mode=755"))
	t.Cleanup(func() { _ = unix.Unmount(home+"/profiles/mounted", unix.MNT_DETACH) })
	for _, profile := range []string{"coder", "mounted", "missing"} {
		must(t, ChownProfile(t.Context(), Options{Home: home, Agent: testAgentActor(), Say: func(LogLine) {}}, profile))
	}
	for path, want := range map[string]int{"coder": agentUID, "coder/SOUL.md": agentUID, "mounted": 0} {
		if got := uidOf(t, home+"/profiles/"+path); got != want {
			t.Errorf("%s is uid %d's", path, got)
		}
	}
}
