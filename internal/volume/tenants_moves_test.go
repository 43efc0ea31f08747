package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/fsutil/owntree"
	"hinit/internal/testkit"
)

// interruptError stops a move at once, as a power failure does.
type interruptError struct{}

// interruptMove moves the home of coder, and stops after the n-th changed file. complete reports whether the move ended before.
func interruptMove(t *testing.T, o Options, was int, to fsutil.Owner, tenant bool, n int) (complete bool) {
	t.Helper()
	d, err := fsutil.OpenNoLink(o.Home+"/profiles", nil)
	must(t, err)
	defer d.Close()
	defer func() {
		if cut := recover(); cut != nil && cut != any(interruptError{}) {
			panic(cut)
		}
	}()
	changed := 0
	w := owntree.Walk{OnFound: func(string, uint32, error) {
		if changed++; changed == n {
			panic(interruptError{})
		}
	}}
	must(t, MoveHome(d, "coder", uint32(was), to.WithAllowedUID(uint32(was)), tenant, &w))
	return true
}

// wantOwnerOfAll checks that every file in a home belongs to one user, and that no file is lost.
func wantOwnerOfAll(t *testing.T, home string, uid int) {
	t.Helper()
	must(t, filepath.WalkDir(home, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && uidOf(t, path) != uid {
			t.Errorf("%s is uid %d's, want %d", path, uidOf(t, path), uid)
		}
		return err
	}))
	if readFile(t, home+"/.env") != "SECRET=1" || readFile(t, home+"/work/deep/file") != "x" || readFile(t, home+"/linked") != "shared" {
		t.Error("a file has lost its content")
	}
}

// A move of a home stops after any of its files. The next start must complete it and close the home to other users.
func TestAMoveThatIsCutAfterAnyFileIsCompletedByTheNextStart(t *testing.T) {
	testkit.NeedRoot(t)
	steps := 0
	for complete := false; !complete; {
		steps++
		home := newVolumeDir(t)
		writeFile(t, home+"/profiles/coder/.env", "SECRET=1")
		writeFile(t, home+"/profiles/coder/work/deep/file", "x")
		writeFile(t, home+"/profiles/other/file", "shared")
		must(t, os.Link(home+"/profiles/other/file", home+"/profiles/coder/linked"))
		must(t, os.Symlink("/etc/passwd", home+"/profiles/coder/link"))
		chownAll(t, home, agentUID)
		outside := ownerText(t, "/etc/passwd")
		o, _ := options(t, home, nil)
		o.Tenants = boot.Tenants{Enabled: true, UIDs: config.UIDs{First: 20000, Last: 29999}, ByProfile: map[string]bool{"coder": true}}
		uid := int(FirstUID(o.Tenants.UIDs, "coder"))
		tenant := fsutil.Owner{UID: uint32(uid), GID: uint32(uid), Excludes: o.Tenants.HasUID}

		complete = interruptMove(t, o, agentUID, tenant, true, steps)
		moveHomes(t.Context(), o.Options, "")
		wantOwnerOfAll(t, home+"/profiles/coder", uid)
		wantOwner(t, home+"/profiles/coder", fmt.Sprintf("%d:%d 0700", uid, uid))

		// ProfileNameFile must not exist during a move back to the agent.
		must(t, os.RemoveAll(home+"/profiles/coder/"+boot.ProfileNameFile))
		if back := interruptMove(t, o, uid, o.Owner(), false, steps); back != complete {
			t.Errorf("the way back has another number of steps than %d", steps)
		}
		if !complete {
			interruptMove(t, o, uidOf(t, home+"/profiles/coder"), o.Owner().WithAllowedUID(uint32(uid)), false, -1)
		}
		wantOwnerOfAll(t, home+"/profiles/coder", agentUID)
		wantOwner(t, home+"/profiles/other/file", fmt.Sprintf("%d:%d 0644", agentUID, agentUID))
		if ownerText(t, "/etc/passwd") != outside {
			t.Error("the target of a link has another owner")
		}
	}
	if steps < 6 {
		t.Errorf("the move has only %d steps", steps)
	}
}

// The agent renames the home after each file, but the move must be complete.
func TestAHomeThatIsRenamedWhileItMovesIsMovedAsAWhole(t *testing.T) {
	testkit.NeedRoot(t)
	o, _, uid := tenantVolume(t, true)
	chownAll(t, o.Home+"/profiles/coder", agentUID)
	d, err := fsutil.OpenNoLink(o.Home+"/profiles", nil)
	must(t, err)
	defer d.Close()
	names, n := []string{"coder", "renamed"}, 0
	w := owntree.Walk{OnFound: func(string, uint32, error) {
		must(t, agentActor().Do(func() error { return os.Rename(o.Home+"/profiles/"+names[n%2], o.Home+"/profiles/"+names[(n+1)%2]) }))
		n++
	}}
	must(t, MoveHome(d, "coder", agentUID, fsutil.Owner{UID: uint32(uid), GID: uint32(uid), Excludes: o.Tenants.HasUID}, true, &w))
	bootTenants(t, o)
	if homes, err := os.ReadDir(o.Home + "/profiles"); err != nil || len(homes) != 1 || homes[0].Name() != names[n%2] || n < 3 {
		t.Errorf("after %d renames: %v, %v", n, homes, err)
	}
	for rel, mode := range map[string]string{"": "0700", "/.env": "0644", "/work/deep/file": "0644"} {
		wantOwner(t, o.Home+"/profiles/"+names[n%2]+rel, fmt.Sprintf("%d:%d %s", uid, uid, mode))
	}
}

// The agent changes the mode of the home after each file, but the moved home must be closed to other users.
func TestAnAgentThatOpensAHomeWhileItMovesLeavesNoneOpen(t *testing.T) {
	testkit.NeedRoot(t)
	o, _, uid := tenantVolume(t, true)
	chownAll(t, o.Home+"/profiles/coder", agentUID)
	d, err := fsutil.OpenNoLink(o.Home+"/profiles", nil)
	must(t, err)
	defer d.Close()
	opened := 0
	w := owntree.Walk{OnFound: func(string, uint32, error) {
		if agentActor().Do(func() error { return os.Chmod(o.Home+"/profiles/coder", 0o777) }) == nil {
			opened++
		}
	}}
	must(t, MoveHome(d, "coder", agentUID, fsutil.Owner{UID: uint32(uid), GID: uint32(uid), Excludes: o.Tenants.HasUID}, true, &w))
	if opened < 2 {
		t.Errorf("the agent has changed the mode %d times", opened)
	}
	wantOwner(t, o.Home+"/profiles/coder", fmt.Sprintf("%d:%d 0700", uid, uid))
}

// The agent exchanges two homes during a move. A home must keep the record of its name, because hinit refuses to give a home
// without a record to its user.
func TestAProfileLostItsHomeWhenAnotherOneWasGivenBack(t *testing.T) {
	testkit.NeedRoot(t)
	o, _, uid := tenantVolume(t, true)
	homes := o.Home + "/profiles/"
	writeFile(t, homes+"writer/.env", "SECRET=2")
	chownAll(t, homes+"writer", agentUID)
	bootTenants(t, o)
	d, err := fsutil.OpenNoLink(homes, nil)
	must(t, err)
	defer d.Close()
	exchange := func() {
		must(t, agentActor().Do(func() error {
			return unix.Renameat2(unix.AT_FDCWD, homes+"coder", unix.AT_FDCWD, homes+"writer", unix.RENAME_EXCHANGE)
		}))
	}
	w := owntree.Walk{OnFound: func(string, uint32, error) {
		if readFile(t, homes+"coder/.env") == "SECRET=1" {
			exchange()
		}
	}}
	if err := MoveHome(d, "coder", uint32(uid), o.Owner().WithAllowedUID(uint32(uid)), false, &w); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("another home was changed: %v", err)
	}
	exchange()
	home, _, err := OpenHome(o.Tenants, d, "writer", 0, "isolate apply")
	must(t, err)
	must(t, home.Close())
	must(t, MoveHome(d, "coder", agentUID, o.Owner(), false, &owntree.Walk{}))
	if IsHome(d, "coder") {
		t.Error("the home that was given back has still the record of a tenant")
	}
}

// The error of a failed move must say which file could not change, and why. The commands print this error.
func TestAMoveThatFailsNamesTheFile(t *testing.T) {
	testkit.NeedRoot(t)
	o, _, uid := tenantVolume(t, true)
	d, err := fsutil.OpenNoLink(o.Home+"/profiles", nil)
	must(t, err)
	defer d.Close()
	deep, err := d.OpenSubdir("coder")
	must(t, err)
	for range 1001 {
		must(t, deep.Mkdir("d", 0o755))
		below, err := deep.OpenSubdir("d")
		must(t, errors.Join(err, deep.Close()))
		deep = below
	}
	must(t, deep.Close())
	err = MoveHome(d, "coder", uint32(uid), o.Owner().WithAllowedUID(uint32(uid)), false, &owntree.Walk{})
	if err == nil || !strings.Contains(err.Error(), "/profiles/coder/d/d/d") || !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("the error is %v", err)
	}
}

// The data directory must be given to the agent even if its owner's uid is in isolation.uids, as after a change of PUID.
func TestTheDataDirectoryIsGivenBackFromAUserOfTheRange(t *testing.T) {
	testkit.NeedRoot(t)
	o, _, uid := tenantVolume(t, true)
	must(t, os.Chown(o.Home, 20005, 20005))
	bootTenants(t, o)
	if got := uidOf(t, o.Home); got != agentUID {
		t.Errorf("the data directory is uid %d's", got)
	}
	wantOwner(t, o.Home+"/profiles/coder/.env", fmt.Sprintf("%d:%d 0644", uid, uid))
}

// Each name of a full directory must get its own uid of the default range.
func TestTenThousandProfilesHaveAUserEach(t *testing.T) {
	tenants := boot.Tenants{UIDs: config.UIDs{First: 20000, Last: 29999}, Enabled: true, All: true}
	homes, asked := make(map[string]uint32), 0
	for i := range fsutil.MaxDirNames {
		homes[fmt.Sprintf("customer-%d", i)] = 10000
	}
	given := assignUIDs(tenants, homes, "", func(uint32) bool { asked++; return false })
	users := make(map[uint32]bool)
	for name, uid := range given {
		users[uid], homes[name] = true, uid
	}
	if most := tenants.UIDs.Size() - 1; len(given) != most || len(users) != most || asked > most {
		t.Errorf("%d profiles have %d users, and /etc/passwd was read %d times", len(given), len(users), asked)
	}
	for name, uid := range assignUIDs(tenants, homes, "", func(uint32) bool { return false }) {
		if homes[name] != uid {
			t.Errorf("%s had uid %d and has %d", name, homes[name], uid)
		}
	}
}

// A new profile must not get a gid that a file in the data directory already has.
func TestAProfileGotTheGroupOfAnOldFile(t *testing.T) {
	testkit.NeedRoot(t)
	o, _, _ := tenantVolume(t, true)
	own := int(FirstUID(o.Tenants.UIDs, "writer"))
	writeFile(t, o.Home+"/old.db", "x")
	must(t, os.Chown(o.Home+"/old.db", agentUID, own))
	writeFile(t, o.Home+"/profiles/writer/.env", "SECRET=2")
	chownAll(t, o.Home+"/profiles/writer", agentUID)
	moveHomes(t.Context(), o.Options, "")
	if got := uidOf(t, o.Home+"/profiles/writer"); got == own || !o.Tenants.HasUID(uint32(got)) {
		t.Errorf("writer is uid and gid %d, and the old file is group %d's", got, own)
	}
	must(t, os.Chown(o.Home+"/old.db", agentUID, int(o.Tenants.UIDs.First)))
	if owners, warning := OwnersOutside(o.Options); len(owners) != 0 || warning != "" {
		t.Errorf("a file of the group of shared directories is %v: %s", owners, warning)
	}
}

// A new profile must not get a uid that a file in the data directory already has, because it could read the file.
func TestAProfileGotTheUserOfAnOldFile(t *testing.T) {
	testkit.NeedRoot(t)
	o, _, uid := tenantVolume(t, true)
	if _, warning := OwnersOutside(o.Options); warning != "" {
		t.Errorf("there is no such file, and it says %q", warning)
	}
	old, own := o.Home+"/old.db", int(FirstUID(o.Tenants.UIDs, "writer"))
	writeFile(t, old, "x")
	must(t, os.Chown(old, own, own))
	writeFile(t, o.Home+"/profiles/writer/.env", "SECRET=2")
	chownAll(t, o.Home+"/profiles/writer", agentUID)
	bootTenants(t, o)
	if got := uidOf(t, o.Home+"/profiles/writer"); got == own || got == uid || !o.Tenants.HasUID(uint32(got)) {
		t.Errorf("writer is uid %d, and the old file is uid %d's", got, own)
	}
	if got := uidOf(t, o.Home+"/profiles/coder"); got != uid {
		t.Errorf("coder was uid %d and is %d", uid, got)
	}
	wantOwner(t, old, fmt.Sprintf("%d:%d 0644", own, own))
	var found client.Findings
	for _, c := range checks(o, boot.Job{AgentUser: boot.CallerAsAgent().User, ProfileMarker: "SOUL.md", MaxProfiles: 10}) {
		c.run(&found)
	}
	if !slices.ContainsFunc(found, func(f client.Finding) bool {
		return f.Check == "isolation.uids" && f.Result == client.ResultWarning && strings.Contains(f.Detail, "old.db") && strings.Contains(f.Detail, fmt.Sprint(own))
	}) {
		t.Errorf("hinit doctor says %v", found)
	}
}

// The agent's user has hidden a home in a directory with a dot, or in the home of a new profile. The new profile must not get
// the uid of the hidden home.
func TestAProfileGotTheUserOfAHiddenHome(t *testing.T) {
	testkit.NeedRoot(t)
	o, _, uid := tenantVolume(t, true)
	homes := o.Home + "/profiles"
	must(t, os.Rename(homes+"/coder", homes+"/.coder"))
	writeFile(t, homes+"/coder/SOUL.md", "a new profile of the same name")
	chownAll(t, homes+"/coder", agentUID)
	bootTenants(t, o)
	if got := uidOf(t, homes+"/coder"); got == uid || !o.Tenants.HasUID(uint32(got)) {
		t.Errorf("beside a home with a dot: the new home is uid %d's, the hidden one uid %d's", got, uid)
	}

	o, messages, uid := tenantVolume(t, true)
	homes = o.Home + "/profiles"
	writeFile(t, o.Home+"/new/coder/SOUL.md", "a new profile of the same name")
	chownAll(t, o.Home+"/new", agentUID)
	must(t, os.Rename(homes, o.Home+"/new/coder/hidden"))
	must(t, os.Rename(o.Home+"/new", homes))
	bootTenants(t, o)
	if got := uidOf(t, homes+"/coder"); got != agentUID {
		t.Errorf("around a hidden home: the new home is uid %d's, the hidden one uid %d's", got, uid)
	}
	wantOwner(t, homes+"/coder/hidden/coder", fmt.Sprintf("%d:%d 0700", uid, uid))
	if !strings.Contains(messages.text(), "this user already has a home") {
		t.Errorf("the log has: %s", messages.text())
	}
}

// A home can be given to a tenant a second time, even after an interrupted move. The record of the first move must count as the
// record of this home.
func TestAHomeThatWasATenantsBeforeBecomesItAgain(t *testing.T) {
	testkit.NeedRoot(t)
	o, _, uid := tenantVolume(t, true)
	home := o.Home + "/profiles/coder"
	must(t, os.Chown(home, agentUID, agentUID))
	must(t, os.Chown(home+"/work", agentUID, agentUID))
	bootTenants(t, o)
	for _, path := range []string{home, home + "/work", home + "/.env"} {
		if got := uidOf(t, path); got != uid {
			t.Errorf("%s is uid %d's, not %d's", path, got, uid)
		}
	}
}
