package db_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hinit/internal/account"
	"hinit/internal/account/db"
)

// FuzzAccounts puts any bytes into /etc/passwd and /etc/group. Reading and changing them must not panic, and a change
// must be found when the files are read again. All lines that the change does not concern must keep every byte.
func FuzzAccounts(f *testing.F) {
	f.Add("root:x:0:0::/root:/bin/sh\nhermes:x:10000:10000::/opt/data:/bin/sh\n", "hermes:x:10000:\nvideo:x:44:hermes,a\n", "hermes", uint32(1000))
	f.Add("# comment\n+::::::\nhermes:x:4294967295:1\r\nhermes", ":::\nhermes:x:-1:\n\x00", "hermes", uint32(1))
	f.Add("a:x:1:1:a:/a:", "", "1:2", uint32(7))
	f.Fuzz(func(t *testing.T, passwd, group, name string, id uint32) {
		root := t.TempDir()
		etc := filepath.Join(root, "etc")
		for file, text := range map[string]string{"passwd": passwd, "group": group} {
			if err := os.MkdirAll(etc, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(etc, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		u, err := account.Lookup(root, name)
		if err == nil && (u.UID == 1<<32-1 || u.GID == 1<<32-1) {
			t.Fatalf("%q is %+v, which the kernel reads as \"unchanged\"", name, u)
		}
		d, err := db.Open(root)
		if err != nil {
			t.Fatal(err)
		}
		if d.SetUID(name, id) != nil {
			return
		}
		if err := d.Save(); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(etc, "passwd"))
		if err != nil {
			t.Fatal(err)
		}
		again, err := db.Open(root)
		if err != nil {
			t.Fatal(err)
		}
		if uid, _, _ := again.User(name); uid != id && d.Changed() {
			t.Errorf("%q has the uid %d, not %d, in %q", name, uid, id, text)
		}
		was, is := strings.SplitAfter(passwd, "\n"), strings.SplitAfter(string(text), "\n")
		for i, line := range was {
			about := strings.HasPrefix(line, name+":")
			if !about && (i >= len(is) || is[i] != line) && strings.HasSuffix(line, "\n") {
				t.Errorf("line %d of %q changed in %q", i+1, passwd, text)
			}
		}
	})
}
