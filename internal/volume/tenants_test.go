package volume

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/fsutil/owntree"
	"hinit/internal/testkit"
)

func TestAProfileKeepsItsUserAndNoTwoHaveOne(t *testing.T) {
	none := func(uint32) bool { return false }
	tenants := boot.Tenants{Enabled: true, UIDs: config.UIDs{First: 20000, Last: 20010}, All: true, ByProfile: map[string]bool{"plain": false}}
	first := assignUIDs(tenants, map[string]uint32{"a": 10000, "b": 10000, "plain": 10000}, "", none)
	if len(first) != 2 || first["a"] == first["b"] || !tenants.HasUID(first["a"]) || !tenants.HasUID(first["b"]) {
		t.Fatalf("%v", first)
	}
	renamed := assignUIDs(tenants, map[string]uint32{"z": first["a"], "b": first["b"], "a": 10000}, "", none)
	if renamed["z"] != first["a"] || renamed["b"] != first["b"] || renamed["a"] == first["a"] {
		t.Errorf("after a rename: %v, before %v", renamed, first)
	}
	if again := assignUIDs(tenants, map[string]uint32{"b": first["b"], "a": 10000}, "", none); !maps.Equal(again, first) {
		t.Errorf("a profile that came back has %v, had %v", again, first)
	}
	copied := assignUIDs(tenants, map[string]uint32{"a": first["a"], "b": first["a"]}, "", none)
	if copied["a"] != first["a"] || copied["b"] == first["a"] {
		t.Errorf("a copied home: %v", copied)
	}
	for _, starting := range []string{"", "a", "b"} {
		copied = assignUIDs(tenants, map[string]uint32{"a": first["b"], "b": first["b"]}, starting, none)
		if copied["b"] != first["b"] || copied["a"] == first["b"] || !tenants.HasUID(copied["a"]) {
			t.Errorf("the original lost its user to a copy while %q started: %v", starting, copied)
		}
	}
	other := tenants.UIDs.First + 1
	for other == first["a"] || other == first["b"] {
		other++
	}
	if copied = assignUIDs(tenants, map[string]uint32{"a": other, "b": other}, "a", none); copied["b"] != other || copied["a"] == other {
		t.Errorf("a copy that starts has the user of a gateway that may run: %v", copied)
	}
	taken := assignUIDs(tenants, map[string]uint32{"a": 10000}, "", func(uid uint32) bool { return uid == first["a"] })
	if taken["a"] == first["a"] || !tenants.HasUID(taken["a"]) {
		t.Errorf("a user of /etc/passwd is a profile's: %v", taken)
	}
	former := assignUIDs(tenants, map[string]uint32{"plain": first["a"], "a": 10000}, "", none)
	if former["a"] == first["a"] || !tenants.HasUID(former["a"]) {
		t.Errorf("a new profile has the user of a home that was renamed: %v", former)
	}
	if outside := assignUIDs(tenants, map[string]uint32{"a": 20000, "b": 30000}, "", none); !tenants.HasUID(outside["a"]) || !tenants.HasUID(outside["b"]) {
		t.Errorf("homes of the group's uid and of another range: %v", outside)
	}
}

func TestThereAreNoMoreTenantsThanUsers(t *testing.T) {
	tenants := boot.Tenants{UIDs: config.UIDs{First: 20000, Last: 21000}, Enabled: true, All: true}
	homes := make(map[string]uint32)
	for i := range 1500 {
		homes[fmt.Sprintf("p%d", i)] = 10000
	}
	got := assignUIDs(tenants, homes, "", func(uint32) bool { return false })
	users := make(map[uint32]bool)
	for _, uid := range got {
		users[uid] = true
	}
	if len(got) != 1000 || len(users) != 1000 || users[20000] {
		t.Errorf("%d profiles have %d users", len(got), len(users))
	}
	if zero := (boot.Tenants{}); len(assignUIDs(zero, homes, "", nil)) != 0 || zero.HasUID(20001) {
		t.Error("no tenants are some")
	}
}

// tenantVolume returns options for a data directory with the home of the tenant coder, a recorder of messages, and
// coder's uid. With all, every profile is a tenant; otherwise only coder is.
func tenantVolume(t *testing.T, all bool) (o Options, messages *recorder, uid int) {
	t.Helper()
	home := newVolumeDir(t)
	writeFile(t, home+"/profiles/coder/.env", "SECRET=1")
	writeFile(t, home+"/profiles/coder/work/deep/file", "x")
	writeFile(t, home+"/profiles/coder/cron/jobs.json", "x")
	chownAll(t, home, agentUID)
	o, messages = options(t, home, nil)
	o.Tenants = boot.Tenants{Enabled: true, All: all, UIDs: config.UIDs{First: 20000, Last: 29999}, ByProfile: map[string]bool{"default": false}}
	if !all {
		o.Tenants.ByProfile["coder"] = true
	}
	bootTenants(t, o)
	if uid = uidOf(t, home+"/profiles/coder/.env"); !o.Tenants.HasUID(uint32(uid)) {
		t.Fatalf("the home is uid %d's", uid)
	}
	wantOwner(t, home+"/profiles/coder", fmt.Sprintf("%d:%d 0700", uid, uid))
	return o, messages, uid
}

// bootTenants does the same as a start of the container and the starts of all gateways.
func bootTenants(t *testing.T, o Options) {
	t.Helper()
	boot.Prepare(t.Context(), o.Options)
	moveHomes(t.Context(), o.Options, "")
	Repair(t.Context(), o, noProgress)
	homes, _ := os.ReadDir(o.Home + "/profiles")
	for _, home := range homes {
		if !home.IsDir() {
			continue
		}
		if o.Tenants.Includes(home.Name()) && !o.HasRightOwner(home.Name()) {
			moveHomes(t.Context(), o.Options, home.Name())
		}
		must(t, boot.ChownProfile(t.Context(), o.Options, home.Name()))
		o.OnlyProfiles = []string{home.Name()}
		Repair(t.Context(), o, noProgress)
	}
}

// The agent renames the home of a tenant. The home must not become the agent's.
func TestTheAgentTakesNoHomeByRenamingIt(t *testing.T) {
	testkit.NeedRoot(t)
	for name, c := range map[string]struct {
		all   bool
		moves [][2]string // renames, as paths in the data directory
		home  string      // path of the home after the renames
		said  string
	}{
		"to a name of no tenant":                {false, [][2]string{{"profiles/coder", "profiles/foo"}}, "profiles/foo", "hinit isolate apply foo"},
		"to the root profile":                   {true, [][2]string{{"profiles/coder", "profiles/default"}}, "profiles/default", "hinit isolate apply default"},
		"with all homes":                        {true, [][2]string{{"cron", "old"}, {"profiles", "cron"}}, "cron/coder", ""},
		"as a directory":                        {true, [][2]string{{"pairing", "old"}, {"profiles/coder", "profiles/cron"}, {"profiles", "pairing"}}, "pairing/cron", ""},
		"into a new home":                       {true, [][2]string{{"profiles", "new"}, {"new", "profiles/evil"}}, "profiles/evil/coder", ""},
		"as a directory of a new home":          {true, [][2]string{{"profiles/coder", "profiles/cron"}, {"profiles", "new"}, {"new", "profiles/evil"}}, "profiles/evil/cron", ""},
		"as a directory of a home of no tenant": {false, [][2]string{{"profiles/coder", "profiles/cron"}, {"profiles", "new"}, {"new", "profiles/evil"}}, "profiles/evil/cron", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o, messages, uid := tenantVolume(t, c.all)
			for _, m := range c.moves {
				must(t, agentActor().Do(func() error {
					return errors.Join(os.MkdirAll(filepath.Dir(o.Home+"/"+m[1]), 0o755), os.Rename(o.Home+"/"+m[0], o.Home+"/"+m[1]))
				}))
			}
			bootTenants(t, o)
			for rel, mode := range map[string]string{"": "0700", "/.env": "0644", "/work/deep/file": "0644", "/cron": "0755", "/cron/jobs.json": "0644"} {
				wantOwner(t, o.Home+"/"+c.home+rel, fmt.Sprintf("%d:%d %s", uid, uid, mode))
			}
			if !strings.Contains(messages.text(), c.said) {
				t.Errorf("said %q", messages.text())
			}
			for _, m := range slices.Backward(c.moves) {
				if m[0] == "profiles" {
					must(t, os.RemoveAll(o.Home+"/profiles"))
				}
				must(t, os.Rename(o.Home+"/"+m[1], o.Home+"/"+m[0]))
			}
			bootTenants(t, o)
			wantOwner(t, o.Home+"/profiles/coder", fmt.Sprintf("%d:%d 0700", uid, uid))
			if !o.HasRightOwner("coder") || readFile(t, o.Home+"/profiles/coder/.env") != "SECRET=1" {
				t.Error("after it was renamed back, it is not right")
			}
		})
	}
}

// The home of an isolated profile must keep its user although hinit.yaml has lost the isolation, as after an interrupted copy.
// Otherwise the keys in its .env would go to the agent's user.
func TestAHomeStaysItsUsersWhenTheConfigurationHasLostTheIsolation(t *testing.T) {
	testkit.NeedRoot(t)
	for lost, tenants := range map[string]boot.Tenants{
		"all of it":     {},
		"the range":     {Enabled: true, All: true, UIDs: config.UIDs{First: 30000, Last: 39999}, ByProfile: map[string]bool{"default": false, "coder": false, "x": false, ".x": false}},
		"every profile": {Enabled: true, UIDs: config.UIDs{First: 30000, Last: 39999}, ByProfile: map[string]bool{"other": true}},
	} {
		for _, place := range []string{"profiles/coder", "profiles/x", "profiles/.x", "cron/coder", "sessions/coder", "cron/auth.json"} {
			t.Run(lost+" "+strings.ReplaceAll(place, "/", "-"), func(t *testing.T) {
				o, messages, uid := tenantVolume(t, true)
				must(t, agentActor().Do(func() error {
					dir := filepath.Dir(o.Home + "/" + place)
					err := errors.Join(os.Rename(o.Home+"/profiles/coder", o.Home+"/profiles/y"), os.Rename(o.Home+"/profiles/y", o.Home+"/profiles/"+filepath.Base(place)))
					if filepath.Base(dir) != "profiles" {
						err = errors.Join(err, os.RemoveAll(dir), os.Rename(o.Home+"/profiles", dir))
					}
					return err
				}))
				o.Tenants, o.RepairEverything = tenants, true
				bootTenants(t, o)
				for rel, mode := range map[string]string{"": "0700", "/.env": "0644", "/work/deep/file": "0644", "/cron": "0755", "/cron/jobs.json": "0644"} {
					wantOwner(t, o.Home+"/"+place+rel, fmt.Sprintf("%d:%d %s", uid, uid, mode))
				}
				if name, is := strings.CutPrefix(place, "profiles/"); is && !strings.Contains(messages.text(), "hinit isolate apply "+name) {
					t.Errorf("said %q", messages.text())
				}
			})
		}
	}
}

// A home was given back to the agent, and must follow a later change of the agent's uid. The record of the isolation must not
// prevent that.
func TestAHomeThatWasGivenBackFollowsTheAgentsUID(t *testing.T) {
	testkit.NeedRoot(t)
	o, _, uid := tenantVolume(t, true)
	d, err := fsutil.OpenNoLink(o.Home+"/profiles", nil)
	must(t, err)
	defer d.Close()
	must(t, MoveHome(d, "coder", uint32(uid), o.Owner().WithAllowedUID(uint32(uid)), false, &owntree.Walk{}))
	o.Tenants, o.RepairEverything, o.Agent = boot.Tenants{}, true, fsutil.NewActor(fsutil.Identity{UID: agentUID + 1, GID: agentGID})
	bootTenants(t, o)
	wantOwner(t, o.Home+"/profiles/coder/.env", fmt.Sprintf("%d:%d 0644", agentUID+1, agentGID))
}

// hinit isolate must give back a home of mode 0500 completely, with the record of its name.
func TestAHomeThatItsUserCannotWriteIsGivenBack(t *testing.T) {
	testkit.NeedRoot(t)
	o, _, uid := tenantVolume(t, true)
	d, err := fsutil.OpenNoLink(o.Home+"/profiles", nil)
	must(t, err)
	defer d.Close()
	must(t, os.Chmod(o.Home+"/profiles/coder", 0o500))
	must(t, MoveHome(d, "coder", uint32(uid), o.Owner().WithAllowedUID(uint32(uid)), false, &owntree.Walk{}))
	wantOwner(t, o.Home+"/profiles/coder", fmt.Sprintf("%d:%d 0700", agentUID, agentGID))
	if IsHome(d, "coder") {
		t.Error("the home that was given back has still the record of a tenant")
	}
}

// A home is given away only if it still belongs to the user with whom root saw it. The agent may have exchanged two homes in
// between.
func TestAHomeIsGivenAwayOnlyFromTheUserItWasSeenWith(t *testing.T) {
	testkit.NeedRoot(t)
	o, _, uid := tenantVolume(t, true)
	d, err := fsutil.OpenNoLink(o.Home+"/profiles", nil)
	must(t, err)
	defer d.Close()
	to := fsutil.Owner{UID: agentUID, GID: agentGID}
	if err := MoveHome(d, "coder", agentUID, to, true, &owntree.Walk{}); !errors.Is(err, unix.ESTALE) || uidOf(t, o.Home+"/profiles/coder/.env") != uid {
		t.Errorf("another home was given away: %v", err)
	}
	if err := MoveHome(d, "coder", uint32(uid), o.Owner(), false, &owntree.Walk{}); !errors.Is(err, fsutil.ErrProtected) {
		t.Errorf("automatic work takes a tenant's home: %v", err)
	}
	must(t, MoveHome(d, "coder", uint32(uid), o.Owner().WithAllowedUID(uint32(uid)), false, &owntree.Walk{}))
	wantOwner(t, o.Home+"/profiles/coder/.env", fmt.Sprintf("%d:%d 0644", agentUID, agentGID))
}

// A home that root has copied must get another user than the original home.
func TestACopiedHomeGetsItsOwnUser(t *testing.T) {
	testkit.NeedRoot(t)
	o, _, uid := tenantVolume(t, true)
	must(t, exec.Command("cp", "-a", o.Home+"/profiles/coder", o.Home+"/profiles/copy").Run())
	bootTenants(t, o)
	copied := uidOf(t, o.Home+"/profiles/copy")
	if copied == uid || !o.Tenants.HasUID(uint32(copied)) || uidOf(t, o.Home+"/profiles/copy/work/deep/file") != copied {
		t.Errorf("the copy is uid %d's", copied)
	}
	wantOwner(t, o.Home+"/profiles/coder/work/deep/file", fmt.Sprintf("%d:%d 0644", uid, uid))
}

func TestTooManyNamesBesideTheHomesAreAnError(t *testing.T) {
	testkit.NeedRoot(t)
	o, messages, uid := tenantVolume(t, true)
	writeFile(t, o.Home+"/profiles/x0", "")
	for i := range fsutil.MaxDirNames { // hard links, because an inode takes a millisecond on some file systems
		must(t, os.Link(o.Home+"/profiles/x0", fmt.Sprintf("%s/profiles/x%d", o.Home, i+1)))
	}
	moveHomes(t.Context(), o.Options, "")
	if r := Repair(t.Context(), o, noProgress); r.Failed != 1 {
		t.Errorf("the repair: %s", r)
	}
	if !strings.Contains(messages.text(), "too many names") {
		t.Errorf("said %q", messages.text())
	}
	wantOwner(t, o.Home+"/profiles/coder/.env", fmt.Sprintf("%d:%d 0644", uid, uid))
}

// Homes on two file systems count as different, although both have the same inode number.
func TestHomesOnFileSystemsOfTheirOwnAreTwo(t *testing.T) {
	testkit.NeedRoot(t)
	o, _, _ := tenantVolume(t, true)
	for _, name := range []string{"one", "two"} {
		mountTmpfs(t, o.Home+"/profiles/"+name)
	}
	d, err := fsutil.OpenNoLink(o.Home+"/profiles", nil)
	must(t, err)
	defer d.Close()
	if tenants, homes, err := OwnersOf(o.Options, d, ""); err != nil || len(tenants) != 3 || len(homes) != 3 {
		t.Errorf("%v, %v, %v", tenants, homes, err)
	}
}
