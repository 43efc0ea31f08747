package db_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"hinit/internal/account/db"
	"hinit/internal/fsutil"
)

const (
	testPasswd = "root:x:0:0:root:/root:/bin/sh\r\n# a comment : with : colons : in\nbroken\n+nis:::::\n" +
		"www:x:33:33::/:/bin/false\nhermes:x:10000:10000:The agent:/opt/data:/bin/sh\nother:x:7:10000::/:\n"
	testGroup = "root:x:0:\ndialout:x:20:www, other\nhermes:x:10000:\nlast:x:99:www"
)

func makeTestEtc(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range map[string]string{"/etc/passwd": testPasswd, "/etc/group": testGroup} {
		must(t, os.MkdirAll(root+"/etc", 0o755))
		must(t, os.WriteFile(root+path, []byte(text), 0o604))
		must(t, os.Chmod(root+path, 0o604))
	}
	return root
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openDB(t *testing.T, root string) *db.DB {
	t.Helper()
	d, err := db.Open(root)
	must(t, err)
	return d
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

func TestRemapKeepsEveryOtherByte(t *testing.T) {
	root := makeTestEtc(t)
	d := openDB(t, root)
	must(t, d.SetUID("hermes", 99))
	must(t, d.SetGID("hermes", 20)) // another group has this gid already, which is allowed
	must(t, d.AddMember("dialout", "hermes"))
	must(t, d.AddGroup("hostdocker", 998))
	must(t, d.AddMember("hostdocker", "hermes"))
	if got := d.Groups("hermes", 20); !reflect.DeepEqual(got, []uint32{20, 998}) {
		t.Errorf("groups are %v", got)
	}
	must(t, d.Save())
	want := strings.Replace(strings.Replace(testPasswd, "hermes:x:10000:10000:", "hermes:x:99:20:", 1), "other:x:7:10000", "other:x:7:20", 1)
	if got := readFile(t, root+"/etc/passwd"); got != want {
		t.Errorf("passwd is\n%q, want\n%q", got, want)
	}
	want = "root:x:0:\ndialout:x:20:www,other,hermes\nhermes:x:20:\nlast:x:99:www\nhostdocker:x:998:hermes\n"
	if got := readFile(t, root+"/etc/group"); got != want {
		t.Errorf("group is\n%q, want\n%q", got, want)
	}
	for _, name := range []string{"passwd", "group"} {
		info, err := os.Stat(root + "/etc/" + name)
		must(t, err)
		if info.Mode() != 0o604 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
	if left, _ := filepath.Glob(root + "/etc/.*"); len(left) > 0 {
		t.Errorf("left over: %q", left)
	}
}

func TestSameAgainWritesNothing(t *testing.T) {
	root := makeTestEtc(t)
	d := openDB(t, root)
	must(t, d.SetUID("hermes", 10000))
	must(t, d.SetGID("hermes", 10000))
	must(t, d.AddMember("dialout", "www"))
	if d.Changed() {
		t.Fatal("something has changed")
	}
	before, err := os.Stat(root + "/etc/passwd")
	must(t, err)
	must(t, d.Save())
	after, err := os.Stat(root + "/etc/passwd")
	must(t, err)
	if !os.SameFile(before, after) {
		t.Error("the file was replaced")
	}
}

func TestRefuses(t *testing.T) {
	root := makeTestEtc(t)
	d := openDB(t, root)
	for name, tt := range map[string]struct{ got, want error }{
		"uid of another user": {d.SetUID("hermes", 33), db.ErrTaken},
		"uid of nobody's":     {d.SetUID("nobody", 5), db.ErrNoEntry},
		"gid of nobody's":     {d.SetGID("nobody", 5), db.ErrNoEntry},
		"group name taken":    {d.AddGroup("root", 5), db.ErrTaken},
		"gid taken":           {d.AddGroup("five", 20), db.ErrTaken},
		"no such group":       {d.AddMember("five", "hermes"), db.ErrNoEntry},
		"bad name":            {d.AddGroup("a:b", 5), os.ErrInvalid},
	} {
		if !errors.Is(tt.got, tt.want) {
			t.Errorf("%s: got %v, want %v", name, tt.got, tt.want)
		}
	}
	if d.Changed() {
		t.Error("a refused change was made")
	}
	if want := `cannot give user "hermes" the uid 33: it belongs to user "www": taken`; d.SetUID("hermes", 33).Error() != want {
		t.Errorf("got %v", d.SetUID("hermes", 33))
	}
}

func TestLooksUp(t *testing.T) {
	d := openDB(t, makeTestEtc(t))
	if uid, gid, ok := d.User("hermes"); uid != 10000 || gid != 10000 || !ok {
		t.Error("hermes is", uid, gid, ok)
	}
	if _, _, ok := d.User("#"); ok {
		t.Error("a comment is a user")
	}
	if gid, ok := d.Group("dialout"); gid != 20 || !ok {
		t.Error("dialout is", gid, ok)
	}
	if name, ok := d.GroupName(99); name != "last" || !ok {
		t.Error("99 is", name, ok)
	}
	if _, ok := d.GroupName(12345); ok {
		t.Error("12345 is a group")
	}
}

func TestLinkIsLeftAlone(t *testing.T) {
	root := makeTestEtc(t)
	must(t, os.Rename(root+"/etc/passwd", root+"/real"))
	must(t, os.Symlink(root+"/real", root+"/etc/passwd"))
	d := openDB(t, root)
	must(t, d.SetUID("hermes", 99))
	if err := d.Save(); !errors.Is(err, fsutil.ErrSymlink) {
		t.Errorf("got %v", err)
	}
	if readFile(t, root+"/real") != testPasswd {
		t.Error("the target has changed")
	}
	if left, _ := filepath.Glob(root + "/etc/.*"); len(left) > 0 {
		t.Errorf("left over: %q", left)
	}
}

func TestNoFilesAtAll(t *testing.T) {
	root := t.TempDir()
	must(t, os.Mkdir(root+"/etc", 0o755))
	d := openDB(t, root)
	must(t, d.AddGroup("video", 44))
	must(t, d.Save())
	if got := readFile(t, root+"/etc/group"); got != "video:x:44:\n" {
		t.Errorf("got %q", got)
	}
}
