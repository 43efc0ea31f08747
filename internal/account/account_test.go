package account_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"hinit/internal/account"
)

const testPasswd = "# a comment:x:1:1::/c:/bin/sh\n" +
	"root:x:0:0:root:/root:/bin/bash\n" +
	"\n" +
	"garbage\n" +
	":x:5:5::/noname:/bin/sh\n" +
	"hermes:x:notanumber:10000::/wrong:/bin/sh\n" +
	"hermes:x:-1:10000::/wrong:/bin/sh\n" +
	"hermes:x:4294967295:10000::/wrong:/bin/sh\n" +
	"hermes:x:4294967296:10000::/wrong:/bin/sh\n" +
	"hermes:x:10000\n" +
	"+::::::\n" +
	"+nis:x:77:77::/nis:\n" +
	"hermes:x:10000:10000:Hermes Agent,,,:/opt/data:/bin/bash\r\n" +
	"hermes:x:6:6::/second:/bin/bash\n" +
	"noshell:x:7:8::/noshell\n" +
	"1234:x:55:56::/digits:/bin/sh\n" +
	"other:x:1234:1234::/other:/bin/sh\n" +
	"last:x:9:9::/last:/bin/sh" // the last line of the file may lack its newline

const testGroup = "root:x:0:\n" +
	"hermes:x:10000:hermes\n" +
	"video:x:44:alice,hermes,bob\r\n" +
	"# comment:x:45:hermes\n" +
	"bad:x:nan:hermes\n" +
	"bad:x:4294967295:hermes\n" +
	"+bad:x:46:hermes\n" +
	"short:x:47\n" +
	"almost:x:48:hermes2,ahermes,Hermes\n" +
	"render:x:109: hermes \n" +
	"again:x:44:hermes\n" +
	"zero:x:0:hermes\n" +
	"empty:x:50:,,\n" +
	"end:x:4294967294:noshell,hermes"

func makeTestRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, "etc", name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLookup(t *testing.T) {
	dir := makeTestRoot(t, map[string]string{"passwd": testPasswd, "group": testGroup})
	hermes := account.User{
		Name: "hermes", UID: 10000, GID: 10000, Home: "/opt/data",
		Groups: []uint32{10000, 44, 109, 0, 4294967294},
	}
	other := account.User{Name: "other", UID: 1234, GID: 1234, Home: "/other", Groups: []uint32{1234}}
	digits := account.User{Name: "1234", UID: 55, GID: 56, Home: "/digits", Groups: []uint32{56}}
	withGID := func(u account.User, gid uint32) account.User {
		u.GID, u.Groups = gid, []uint32{gid}
		return u
	}
	for who, want := range map[string]account.User{
		"hermes":                hermes,
		"10000":                 hermes,
		"10000:5":               withGID(hermes, 5),
		"10000:10000":           withGID(hermes, 10000),
		"root":                  {Name: "root", Home: "/root", Groups: []uint32{0}},
		"0":                     {Name: "root", Home: "/root", Groups: []uint32{0}},
		"noshell":               {Name: "noshell", UID: 7, GID: 8, Home: "/noshell", Groups: []uint32{8, 4294967294}},
		"last":                  {Name: "last", UID: 9, GID: 9, Home: "/last", Groups: []uint32{9}},
		"1234":                  digits,
		"1234:7":                withGID(other, 7),
		"4242":                  {UID: 4242, GID: 4242, Home: "/", Groups: []uint32{4242}},
		"4242:44":               {UID: 4242, GID: 44, Home: "/", Groups: []uint32{44}},
		"4294967294:4294967294": {UID: 4294967294, GID: 4294967294, Home: "/", Groups: []uint32{4294967294}},
	} {
		if got, err := account.Lookup(dir, who); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Lookup(%q) = %+v, %v\nwant %+v", who, got, err, want)
		}
	}
}

func TestLookupRefuses(t *testing.T) {
	dir := makeTestRoot(t, map[string]string{"passwd": testPasswd, "group": testGroup})
	for _, who := range []string{
		"", "nobody", "hermes2", "herme", "+", "+nis", "#", "# a comment", "garbage",
		"hermes:5", "hermes:hermes", "10000:hermes", "10000:", ":5", ":", "1:2:3", "hermes:x",
		"-1", "+5", "4294967295", "4294967296", "1:4294967295", "0x10", " 0", "99999999999999999999", "hermes\n",
	} {
		got, err := account.Lookup(dir, who)
		if !errors.Is(err, account.ErrNotFound) {
			t.Errorf("Lookup(%q) = %+v, %v, want ErrNotFound", who, got, err)
		} else if !strings.HasPrefix(err.Error(), "cannot look up user \"") {
			t.Errorf("Lookup(%q): message %q", who, err)
		}
	}
}

func TestVeryLongLines(t *testing.T) {
	long := strings.Repeat("x", 3<<20)
	members := strings.Repeat("somebody,", 1<<18)
	dir := makeTestRoot(t, map[string]string{
		"passwd": long + "\na:x:1:2:" + long + ":/home/a:/bin/sh\n",
		"group":  "big:x:3:" + members + "a\n" + long,
	})
	got, err := account.Lookup(dir, "a")
	if want := (account.User{Name: "a", UID: 1, GID: 2, Home: "/home/a", Groups: []uint32{2, 3}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

func TestMissingAndUnreadableFiles(t *testing.T) {
	none := t.TempDir()
	if _, err := account.Lookup(none, "hermes"); !errors.Is(err, account.ErrNotFound) {
		t.Errorf("name without passwd: %v", err)
	}
	if u, err := account.Lookup(none, "10000:5"); err != nil || u.UID != 10000 || u.GID != 5 {
		t.Errorf("number without passwd: %+v, %v", u, err)
	}
	noGroup := makeTestRoot(t, map[string]string{"passwd": testPasswd})
	if u, err := account.Lookup(noGroup, "hermes"); err != nil || !reflect.DeepEqual(u.Groups, []uint32{10000}) {
		t.Errorf("without group: %+v, %v", u, err)
	}
	// A directory in place of the file can't be read, not even by root.
	for _, broken := range []string{"passwd", "group"} {
		files := map[string]string{"passwd": testPasswd, "group": testGroup}
		delete(files, broken)
		dir := makeTestRoot(t, files)
		if err := os.Mkdir(dir+"/etc/"+broken, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := account.Lookup(dir, "hermes"); err == nil || errors.Is(err, account.ErrNotFound) {
			t.Errorf("unreadable %s: %v", broken, err)
		}
	}
}

func TestRealFiles(t *testing.T) {
	u, err := account.Lookup("", "0")
	if err != nil || u.UID != 0 {
		t.Errorf("%+v, %v", u, err)
	}
}

func FuzzLookup(f *testing.F) {
	f.Add(testPasswd, testGroup, "hermes")
	f.Add("a:b:1:2:c:d:e", "x:y:3:a", "1")
	f.Fuzz(func(t *testing.T, passwd, group, who string) {
		u, err := account.Lookup(makeTestRoot(t, map[string]string{"passwd": passwd, "group": group}), who)
		if err != nil {
			if !errors.Is(err, account.ErrNotFound) {
				t.Errorf("an error that isn't ErrNotFound: %v", err)
			}
			return
		}
		if len(u.Groups) == 0 || u.Groups[0] != u.GID || u.UID == 1<<32-1 || u.GID == 1<<32-1 {
			t.Errorf("Lookup(%q) = %+v", who, u)
		}
		seen := map[uint32]bool{}
		for _, g := range u.Groups {
			if seen[g] {
				t.Errorf("group %d twice", g)
			}
			seen[g] = true
		}
	})
}
