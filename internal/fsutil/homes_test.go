package fsutil_test

import (
	"os"
	"path/filepath"
	"testing"

	"hinit/internal/fsutil"
	"hinit/internal/fsutil/owntree"
	"hinit/internal/testkit"
)

// PID 1 acts as the agent, but inside a home it must act as the owner of the home. The agent can't enter another user's home of
// mode 0700.
func TestWhatIsInAHomeIsDoneAsItsOwner(t *testing.T) {
	testkit.NeedRoot(t)
	const agent, tenant = 12345, 20001
	root := t.TempDir()
	for dir := root; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		_ = os.Chmod(dir, 0o755)
	}
	home := filepath.Join(root, "profiles", "a")
	for _, step := range []error{
		os.MkdirAll(home, 0o700), os.WriteFile(home+"/f", []byte("x"), 0o600), os.Chmod(root+"/profiles", 0o755),
		os.Chown(root, agent, agent), os.Chown(root+"/profiles", agent, agent), os.Chown(home, tenant, tenant), os.Chown(home+"/f", tenant, tenant),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	own := fsutil.NewActor(fsutil.Identity{UID: agent, GID: agent})
	for name, c := range map[string]struct {
		actor *fsutil.Actor
		reads bool
	}{"the agent": {own, false}, "the owner": {own.WithHomesOf(root+"/profiles", 20000, 20010), true}, "outside the range": {own.WithHomesOf(root+"/profiles", 30000, 30010), false}} {
		d, err := fsutil.OpenDir(root, c.actor)
		if err != nil {
			t.Fatal(err)
		}
		look := func(d *fsutil.Dir, how, in string) {
			if _, err := d.ReadFile(in+"f", 10); (err == nil) != c.reads {
				t.Errorf("%s, %s: reading: %v", name, how, err)
			}
			if _, err := d.ReadDir(filepath.Join(in, ".")); (err == nil) != c.reads {
				t.Errorf("%s, %s: listing: %v", name, how, err)
			}
		}
		look(d, "from above", "profiles/a/")
		_ = d.WithIdentity(func(d *fsutil.Dir) error { look(d, "together", "profiles/a/"); return nil })
		sub, err := d.OpenSubdir("profiles/a")
		if err != nil {
			t.Fatal(err)
		}
		look(sub, "from inside", "")
		if profiles, err := d.OpenSubdir("profiles"); err != nil {
			t.Error(err)
		} else {
			look(profiles, "from profiles", "a/")
			profiles.Close()
		}
		if c.reads {
			if err := d.Replace("profiles/a/g", []byte("y"), fsutil.ReplaceOptions{Mode: 0o600}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			info, err := os.Stat(home + "/g")
			if err != nil {
				t.Fatal(err)
			}
			if uid := fsutil.OwnerUID(info); uid != tenant {
				t.Errorf("a file in the home is of uid %d", uid)
			}
		}
		if err := d.Rename("profiles/a", "profiles/b"); err != nil {
			t.Errorf("%s: the agent can't rename a home: %v", name, err)
		}
		if err := d.Rename("profiles/b", "profiles/a"); err != nil {
			t.Error(err)
		}
		sub.Close()
		d.Close()
	}
}

// A file with another name in another profile's home must be given to no user. One profile could once link a file of another
// profile, and must not own that file later.
func TestAFileWithANameInAnotherHomeIsGivenToNoUser(t *testing.T) {
	testkit.NeedRoot(t)
	root := t.TempDir()
	for _, step := range []error{
		os.Mkdir(root+"/a", 0o700), os.Mkdir(root+"/b", 0o700), os.WriteFile(root+"/b/secret", nil, 0o600), os.Link(root+"/b/secret", root+"/a/mine"),
		os.WriteFile(root+"/a/cache", nil, 0o600), os.Link(root+"/a/cache", root+"/a/cache2"),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	d, err := fsutil.OpenDir(root, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	w := owntree.Walk{NewOwner: fsutil.Owner{UID: 20001, GID: 20001}, RefuseHardLinked: true}
	if err := w.ChangeOwners(d, "a", false); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]uint32{"a/mine": 0, "b/secret": 0, "a/cache": 20001, "a/cache2": 20001, "a": 20001} {
		info, err := os.Stat(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		if uid := fsutil.OwnerUID(info); uid != want {
			t.Errorf("%s is of uid %d, want %d", path, uid, want)
		}
	}
	if w.Refused != 1 {
		t.Errorf("%d are refused", w.Refused)
	}
}
