package identity

import (
	"errors"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"

	"hinit/internal/account"
	"hinit/internal/account/db"
	"hinit/internal/testkit"
)

const (
	etcPasswd = "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/false\nhermes:x:10000:10000::/opt/data:/bin/sh\n"
	etcGroup  = "root:x:0:\ndialout:x:20:\nrender:x:105:\nhermes:x:10000:\n"
)

func makeTestEtc(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	writeFile(t, root+"/etc/passwd", etcPasswd)
	writeFile(t, root+"/etc/group", etcGroup)
	return root
}

func updateTestUser(t *testing.T, o Options, env map[string]string) (agent, string, error) {
	t.Helper()
	o.Env = envLookup(env)
	if o.User == "" {
		o.User = "hermes"
	}
	if o.Sockets == nil {
		o.Sockets = []string{}
	}
	if o.GraphicsDir == "" {
		o.GraphicsDir = o.Root + "/none"
	}
	a, err := updateUser(o)
	var lines []string
	for _, l := range a.LogLines {
		lines = append(lines, l.Text)
	}
	return a, strings.Join(lines, "\n"), err
}

func TestRemap(t *testing.T) {
	testkit.NeedRoot(t)
	for _, tt := range []struct {
		name     string
		env      map[string]string
		uid, gid uint32
		lines    string
	}{
		{"nothing", nil, 10000, 10000, ""},
		{"both", map[string]string{"HERMES_UID": "1000", "HERMES_GID": "1001"}, 1000, 1001, "[stage2] Changing hermes UID to 1000\n[stage2] Changing hermes GID to 1001"},
		{"aliases", map[string]string{"PUID": "99", "PGID": "100"}, 99, 100, "[stage2] Changing hermes UID to 99\n[stage2] Changing hermes GID to 100"},
		{"names win over aliases", map[string]string{"HERMES_UID": "5", "PUID": "6", "PGID": "7"}, 5, 7, "[stage2] Changing hermes UID to 5\n[stage2] Changing hermes GID to 7"},
		{"empty falls back", map[string]string{"HERMES_UID": "", "PUID": "6"}, 6, 10000, "[stage2] Changing hermes UID to 6"},
		{"same", map[string]string{"HERMES_UID": "10000", "HERMES_GID": "10000"}, 10000, 10000, ""},
		{"gid of another group", map[string]string{"PGID": "20"}, 10000, 20, "[stage2] Changing hermes GID to 20"},
		{"largest", map[string]string{"PUID": "65534"}, 65534, 10000, "[stage2] Changing hermes UID to 65534"},
		{"zero", map[string]string{"PUID": "0"}, 10000, 10000, `[stage2] Warning: PUID="0" is ignored: it is not a number from 1 to 65534`},
		{"too large", map[string]string{"PGID": "65535"}, 10000, 10000, `[stage2] Warning: PGID="65535" is ignored: it is not a number from 1 to 65534`},
		{"invalid does not fall back", map[string]string{"HERMES_UID": "1e3", "PUID": "6"}, 10000, 10000, `[stage2] Warning: HERMES_UID="1e3" is ignored: it is not a number from 1 to 65534`},
		{"sign", map[string]string{"HERMES_UID": "+5"}, 10000, 10000, `[stage2] Warning: HERMES_UID="+5" is ignored: it is not a number from 1 to 65534`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := makeTestEtc(t)
			a, lines, err := updateTestUser(t, Options{Root: root}, tt.env)
			must(t, err)
			if a.User.UID != tt.uid || a.User.GID != tt.gid {
				t.Errorf("got %+v", a)
			}
			if lines != tt.lines {
				t.Errorf("lines\n%s\nwant\n%s", lines, tt.lines)
			}
			seen, err := account.Lookup(root, "hermes")
			must(t, err)
			if !reflect.DeepEqual(seen, a.User) {
				t.Errorf("/etc says %+v, Identity %+v", seen, a.User)
			}
			before := testkit.TreeSnapshot(t, root)
			if _, lines, err := updateTestUser(t, Options{Root: root}, tt.env); err != nil || strings.Contains(lines, "Changing") {
				t.Errorf("the second time: %s (%v)", lines, err)
			}
			if after := testkit.TreeSnapshot(t, root); after != before {
				t.Error("the second time something was written")
			}
		})
	}
}

func TestRemapToATakenUID(t *testing.T) {
	root := makeTestEtc(t)
	a, lines, err := updateTestUser(t, Options{Root: root}, map[string]string{"HERMES_UID": "33", "HERMES_GID": "34"})
	if !errors.Is(err, db.ErrTaken) || !strings.Contains(err.Error(), `"www-data"`) || !strings.Contains(err.Error(), "HERMES_UID") {
		t.Errorf("error is %v", err)
	}
	if a.User.UID != 10000 || lines != "" || readFile(t, root+"/etc/passwd") != etcPasswd || readFile(t, root+"/etc/group") != etcGroup {
		t.Errorf("something has changed: %+v", a)
	}
}

func TestIdentityWithoutWritableEtc(t *testing.T) {
	testkit.NeedRoot(t)
	root := makeTestEtc(t)
	// Like a bind mount of one file, a symbolic link can't be replaced by rename.
	must(t, os.Rename(root+"/etc/passwd", root+"/etc/real"))
	must(t, os.Symlink("real", root+"/etc/passwd"))
	a, lines, err := updateTestUser(t, Options{Root: root}, map[string]string{"PUID": "99", "PGID": "100"})
	must(t, err)
	if a.User.UID != 99 || a.User.GID != 100 || !reflect.DeepEqual(a.User.Groups, []uint32{100}) {
		t.Errorf("got %+v", a)
	}
	if !strings.Contains(lines, "runs with the ids 99:100") || strings.Count(lines, "Warning") != 1 {
		t.Errorf("lines are %s", lines)
	}
}

func TestIdentityOfOthers(t *testing.T) {
	root := makeTestEtc(t)
	if _, _, err := updateTestUser(t, Options{Root: root, User: "ghost"}, nil); !errors.Is(err, account.ErrNotFound) {
		t.Errorf("a missing user is %v", err)
	}
	a, _, err := updateTestUser(t, Options{Root: root, User: "500:501"}, map[string]string{"PUID": "99"})
	if err != nil || a.User.UID != 99 || a.User.GID != 501 {
		t.Errorf("numbers: %+v, %v", a, err)
	}
	if a, _, err := updateTestUser(t, Options{Root: root, User: "root"}, map[string]string{"PUID": "99"}); err != nil || a.User.UID != 0 {
		t.Errorf("root: %+v, %v", a, err)
	}
	if readFile(t, root+"/etc/passwd") != etcPasswd {
		t.Error("/etc/passwd has changed")
	}
}

func makeSocket(t *testing.T, dir string, gid int) string {
	t.Helper()
	path := dir + "/docker.sock"
	l, err := net.Listen("unix", path)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	must(t, os.Chown(path, 0, gid))
	return path
}

func TestDockerGroup(t *testing.T) {
	testkit.NeedRoot(t)
	for _, tt := range []struct {
		name, lines, group string
		gid                int
		groups             []uint32
	}{
		{"new", "[stage2] Created group hostdocker (GID 998) for Docker socket\n[stage2] Added hermes to group hostdocker (GID 998) for SOCK", "hostdocker:x:998:hermes", 998, []uint32{10000, 998}},
		{"existing", "[stage2] Added hermes to group dialout (GID 20) for SOCK", "dialout:x:20:hermes", 20, []uint32{10000, 20}},
		{"root's", "[stage2] Added hermes to group root (GID 0) for SOCK", "root:x:0:hermes", 0, []uint32{10000, 0}},
		{"own", "[stage2] hermes already in group 10000 for SOCK", "hermes:x:10000:", 10000, []uint32{10000}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := makeTestEtc(t)
			path := makeSocket(t, root, tt.gid)
			o := Options{Root: root, Sockets: []string{root + "/etc/passwd", path, "/nowhere"}}
			a, lines, err := updateTestUser(t, o, nil)
			must(t, err)
			if want := strings.ReplaceAll(tt.lines, "SOCK", path); lines != want {
				t.Errorf("lines\n%s\nwant\n%s", lines, want)
			}
			if !reflect.DeepEqual(a.User.Groups, tt.groups) {
				t.Errorf("groups are %v", a.User.Groups)
			}
			if text := readFile(t, root+"/etc/group"); !strings.Contains(text, tt.group+"\n") {
				t.Errorf("group is\n%s", text)
			}
			before := testkit.TreeSnapshot(t, root)
			_, lines, err = updateTestUser(t, o, nil)
			if want := "[stage2] hermes already in group "; err != nil || !strings.HasPrefix(lines, want) {
				t.Errorf("the second time: %s (%v)", lines, err)
			}
			if testkit.TreeSnapshot(t, root) != before {
				t.Error("the second time something was written")
			}
		})
	}
}

func TestDockerGroupWhoseNameIsInUse(t *testing.T) {
	testkit.NeedRoot(t)
	root := makeTestEtc(t)
	writeFile(t, root+"/etc/group", etcGroup+"hostdocker:x:997:hermes\n")
	_, lines, err := updateTestUser(t, Options{Root: root, Sockets: []string{makeSocket(t, root, 998)}}, nil)
	must(t, err)
	if !strings.Contains(lines, "Created group hostdocker998 (GID 998)") {
		t.Errorf("lines are %s", lines)
	}
}

func TestGraphicsGroups(t *testing.T) {
	testkit.NeedRoot(t)
	root := makeTestEtc(t)
	for name, gid := range map[string]int{"card0": 0, "renderD128": 105, "renderD129": 777, "renderD130": 777} {
		writeFile(t, root+"/dri/"+name, "")
		must(t, os.Chown(root+"/dri/"+name, 0, gid))
	}
	must(t, os.Mkdir(root+"/dri/by-path", 0o755))
	must(t, os.Chown(root+"/dri/by-path", 0, 4711))
	o := Options{Root: root, GraphicsDir: root + "/dri"}
	a, lines, err := updateTestUser(t, o, nil)
	must(t, err)
	want := "[stage2] Added hermes to group render (GID 105) for " + root + "/dri/renderD128\n" +
		"[stage2] Created group hostdri (GID 777) for graphics device\n[stage2] Added hermes to group hostdri (GID 777) for " + root + "/dri/renderD129"
	if lines != want {
		t.Errorf("lines\n%s\nwant\n%s", lines, want)
	}
	if !reflect.DeepEqual(a.User.Groups, []uint32{10000, 105, 777}) {
		t.Errorf("groups are %v", a.User.Groups)
	}
	before := testkit.TreeSnapshot(t, root)
	if _, lines, err := updateTestUser(t, o, nil); err != nil || lines != "" || testkit.TreeSnapshot(t, root) != before {
		t.Errorf("the second time: %s (%v)", lines, err)
	}
}
