package boot

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/testkit"
)

const testAbstractSocket = "@hinit-test"

func TestPlaces(t *testing.T) {
	for _, tt := range []struct {
		name   string
		socket string
		env    map[string]string
		uid    int
		want   []string
	}{
		{"root", "", nil, 0, []string{"/run/hinit/control.sock", "/tmp/hinit-0/control.sock"}},
		{"user", "", nil, 10000, []string{"/run/hinit/control.sock", "/tmp/hinit-10000/control.sock"}},
		{"configured", "/a/b.sock", nil, 0, []string{"/a/b.sock", "/run/hinit/control.sock", "/tmp/hinit-0/control.sock"}},
		{
			"variable", "",
			map[string]string{"HINIT_RUNTIME_DIR": "/x"},
			0,
			[]string{"/x/control.sock", "/run/hinit/control.sock", "/tmp/hinit-0/control.sock"},
		},
		{"configured as by default", "/run/hinit/control.sock", nil, 0, []string{"/run/hinit/control.sock", "/tmp/hinit-0/control.sock"}},
		{
			"user with session", "",
			map[string]string{"XDG_RUNTIME_DIR": "/run/user/5", "TMPDIR": "/t"},
			5,
			[]string{"/run/hinit/control.sock", "/run/user/5/hinit/control.sock", "/t/hinit-5/control.sock", "/tmp/hinit-5/control.sock"},
		},
		{"root has no session", "", map[string]string{"XDG_RUNTIME_DIR": "/run/user/5"}, 0, []string{"/run/hinit/control.sock", "/tmp/hinit-0/control.sock"}},
		{"relative and double", "", map[string]string{"HINIT_RUNTIME_DIR": "x", "TMPDIR": "/tmp"}, 0, []string{"/run/hinit/control.sock", "/tmp/hinit-0/control.sock"}},
	} {
		if got := client.SocketPaths(tt.socket, envLookup(tt.env), tt.uid); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func makeDirWithMode(t *testing.T, path string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPrepareMakesTheDirectory(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	uid, dir := os.Geteuid(), t.TempDir()
	for _, mode := range []os.FileMode{0o755, 0o711, 0o700} {
		socket := filepath.Join(dir, strconv.Itoa(int(mode)), "deep", "control.sock")
		want, bad := Runtime{Socket: socket, Dir: filepath.Dir(socket)}, "/proc/none/control.sock"
		list := []string{socket}
		switch {
		case mode == 0o700 && uid == 0, mode == 0o711 && uid != 0:
			continue
		case mode != 0o755:
			list = []string{bad, socket}
			want.Warning = `cannot use "/proc/none" for the control socket: no such file or directory; using ` + strconv.Quote(want.Dir)
		}
		for range 2 {
			if got := prepareSocketDir(list, testAbstractSocket, uid, false); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		}
		info, err := os.Stat(want.Dir)
		if err != nil || info.Mode() != os.ModeDir|mode {
			t.Errorf("directory is %v (%v), want mode %v", info.Mode(), err, mode)
		}
	}
}

// Root must replace a runtime directory of the agent's user, as an image may have made it, unless somebody may use the
// directory.
func TestRootTakesTheDirectoryOver(t *testing.T) {
	testkit.NeedRoot(t)
	dir := makeDirWithMode(t, t.TempDir()+"/run", 0o755)
	theirs := makeDirWithMode(t, dir+"/hinit", 0o755)
	writeFile(t, theirs+"/control.sock", "theirs")
	must(t, os.Lchown(theirs, 4711, 4711))
	if removeForeignDir(theirs, false); func() bool { _, err := os.Lstat(theirs + "/control.sock"); return err != nil }() {
		t.Error("took over what somebody may be using")
	}
	removeForeignDir(theirs, true)
	socket := theirs + "/control.sock"
	if got := prepareSocketDir([]string{socket}, testAbstractSocket, 0, false); got.Socket != socket || got.Warning != "" {
		t.Errorf("got %+v", got)
	}
	if _, err := os.Lstat(socket); err == nil {
		t.Error("what was in it is still there")
	}
	writeFile(t, socket, "ours")
	if removeForeignDir(theirs, true); func() bool { _, err := os.Lstat(socket); return err != nil }() {
		t.Error("took over root's own")
	}
	open := makeDirWithMode(t, t.TempDir()+"/run", 0o777)
	must(t, os.Mkdir(open+"/hinit", 0o755))
	must(t, os.Lchown(open+"/hinit", 4711, 4711))
	if removeForeignDir(open+"/hinit", true); func() bool { _, err := os.Lstat(open + "/hinit"); return err != nil }() {
		t.Error("removed a directory below one that everybody can write")
	}
}

func TestPrepareRefuses(t *testing.T) {
	uid, dir := os.Geteuid(), t.TempDir()
	good := filepath.Join(dir, "good", "control.sock")
	link := filepath.Join(dir, "link")
	if err := os.Symlink(makeDirWithMode(t, dir+"/target", 0o755), link); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, bad, why string
		root           bool
	}{
		{name: "world-writable", bad: makeDirWithMode(t, dir+"/open", 0o777), why: "it can be written by other users (mode 0777)"},
		{name: "below a world-writable one", bad: makeDirWithMode(t, dir+"/openparent", 0o777) + "/x", why: "its parent directory can be written by other users (mode 0777)"},
		{name: "a link", bad: link, why: "it is not a directory"},
		{name: "a file", bad: file, why: "it is not a directory"},
		{name: "below a file", bad: file + "/x", why: "not a directory"},
		{name: "nowhere", bad: "/proc/hinit-test", why: "no such file or directory"},
		{name: "another user's", bad: dir + "/theirs", why: "it belongs to uid 4711", root: true},
		{name: "below another user's", bad: dir + "/theirs/x", why: "its parent directory belongs to uid 4711", root: true},
		{name: "read-only", bad: dir + "/readonly", why: "read-only file system", root: true},
		{name: "below a read-only one", bad: dir + "/readonly/x", why: "read-only file system", root: true},
		{name: "group-writable", bad: makeDirWithMode(t, dir+"/group", 0o770), why: "it can be written by other users (mode 0770)", root: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.root {
				testkit.NeedRoot(t)
			}
			switch tt.name {
			case "another user's", "below another user's":
				if err := os.Chown(makeDirWithMode(t, dir+"/theirs", 0o755), 4711, 4711); err != nil {
					t.Fatal(err)
				}
			case "read-only", "below a read-only one":
				mount := makeDirWithMode(t, dir+"/readonly", 0o755)
				if err := unix.Mount("tmpfs", mount, "tmpfs", unix.MS_RDONLY, "mode=755"); err != nil {
					if os.Getenv("CI") == "true" {
						t.Fatal(err)
					}
					t.Skip(err)
				}
				defer unix.Unmount(mount, unix.MNT_DETACH)
			}
			got := prepareSocketDir([]string{tt.bad + "/control.sock", good}, testAbstractSocket, uid, false)
			want := Runtime{
				Socket: good, Dir: filepath.Dir(good),
				Warning: "cannot use " + strconv.Quote(tt.bad) + " for the control socket: " + tt.why + "; using " + strconv.Quote(filepath.Dir(good)),
			}
			if got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
			if _, err := os.Lstat(filepath.Join(dir, "target", "control.sock")); err == nil {
				t.Error("a link was followed")
			}
		})
	}
}

func TestPrepareAcceptsSticky(t *testing.T) {
	sticky := makeDirWithMode(t, t.TempDir()+"/tmp", 0o777|os.ModeSticky)
	for _, dir := range []string{sticky, sticky + "/hinit-x"} {
		got := prepareSocketDir([]string{dir + "/control.sock"}, testAbstractSocket, os.Geteuid(), false)
		if got != (Runtime{Socket: dir + "/control.sock", Dir: dir}) {
			t.Errorf("%s: got %+v", dir, got)
		}
	}
}

// An emptyDir of a pod on /run is accepted for the control socket. The alternative is an abstract name, and two containers of
// the pod would share it.
func TestAPlainEmptyDirOnRunHoldsTheSocket(t *testing.T) {
	testkit.NeedRoot(t)
	run := makeDirWithMode(t, t.TempDir()+"/run", 0o777)
	if mine := makeDirWithMode(t, run+"/hinit", 0o755); os.Lchown(mine, 4711, 4711) != nil || checkTamperProof(mustStat(t, mine), 4711) != nil {
		t.Fatal("the directory of the test is no good")
	}
	for pod, refused := range map[bool]bool{false: true, true: false} {
		err := makeDir(run+"/hinit", 0o755, 4711, pod)
		if (err != nil) != refused {
			t.Errorf("in a pod %v: %v", pod, err)
		}
	}
	if err := makeDir(run+"/other", 0o755, 0, true); err == nil {
		t.Error("root takes a place where others can replace its directory")
	}
	setStickyBit(run)
	if err := makeDir(run+"/other", 0o755, 0, true); err != nil {
		t.Errorf("root, after it has closed the volume: %v", err)
	}
}

func mustStat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info
}

func TestPrepareWithoutAnyPlace(t *testing.T) {
	nowhere := []string{"/proc/a/control.sock", "/proc/b/control.sock"}
	got := prepareSocketDir(nowhere, testAbstractSocket, os.Geteuid(), false)
	want := Runtime{
		Socket: testAbstractSocket,
		Warning: `cannot use "/proc/a" for the control socket: no such file or directory; no other place can be written, so the socket is ` +
			`"@hinit-test" without a file (mount a tmpfs on /run to have one)`,
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	got = prepareSocketDir(nowhere, "", os.Geteuid(), false)
	want = Runtime{
		Warning: `cannot use "/proc/a" for the control socket: no such file or directory; no other place can be written, so there is no control socket`,
	}
	if got != want {
		t.Errorf("without an abstract socket: got  %+v\nwant %+v", got, want)
	}
}

func TestPrepareRuntimeUsesWhatItIsTold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	got := PrepareRuntime("", envLookup(map[string]string{"HINIT_RUNTIME_DIR": dir}), os.Geteuid())
	if got != (Runtime{Socket: dir + "/control.sock", Dir: dir}) {
		t.Errorf("by the variable: got %+v", got)
	}
	got = PrepareRuntime(dir+"/x.sock", envLookup(nil), os.Geteuid())
	if got != (Runtime{Socket: dir + "/x.sock", Dir: dir}) {
		t.Errorf("by the configuration: got %+v", got)
	}
}

func TestAbstractSocketNamesTheContainer(t *testing.T) {
	want := "@hinit"
	for _, space := range []string{"pid", "mnt"} {
		link, err := os.Readlink("/proc/self/ns/" + space)
		if err != nil {
			t.Skip(err)
		}
		want += "-" + strings.Trim(link, space+":[]")
	}
	if client.AbstractSocket() != want {
		t.Errorf("got %q, want %q", client.AbstractSocket(), want)
	}
}

func TestClientFindsTheServer(t *testing.T) {
	dir := t.TempDir()
	env := envLookup(map[string]string{"TMPDIR": makeDirWithMode(t, dir+"/tmp", 0o777|os.ModeSticky), "HINIT_RUNTIME_DIR": dir + "/named"})
	init, ok := ownerOf("/proc/1")
	if !ok {
		t.Skip("no /proc")
	}
	for _, uid := range []int{0, 10000, init} {
		candidates := dial.Sockets("", env, uid)
		for _, server := range []int{0, uid, init} {
			for _, socket := range client.SocketPaths("", env, server) {
				if owner, exists := ownerOf(filepath.Dir(socket)); exists && owner != 0 && owner != uid && owner != init {
					continue
				}
				if !slices.Contains(candidates, socket) {
					t.Errorf("client %d does not look at %q of server %d", uid, socket, server)
				}
			}
		}
		if last := candidates[len(candidates)-1]; last != client.AbstractSocket() {
			t.Errorf("the last candidate is %q", last)
		}
		if candidates[0] != dir+"/named/control.sock" {
			t.Errorf("the first candidate is %q", candidates[0])
		}
		if unique := slices.Compact(slices.Sorted(slices.Values(candidates))); len(unique) != len(candidates) {
			t.Errorf("candidates repeat: %q", candidates)
		}
	}
}

func TestClientShunsDirectoriesOfOthers(t *testing.T) {
	testkit.NeedRoot(t)
	dir := t.TempDir()
	theirs := makeDirWithMode(t, dir+"/hinit-0", 0o755)
	env := envLookup(map[string]string{"TMPDIR": dir})
	if !slices.Contains(dial.Sockets("", env, 0), theirs+"/control.sock") {
		t.Error("the directory is not looked at to begin with")
	}
	if err := os.Chown(theirs, 4711, 4711); err != nil {
		t.Fatal(err)
	}
	if slices.Contains(dial.Sockets("", env, 0), theirs+"/control.sock") {
		t.Error("another user's directory is trusted")
	}
	a, b := dial.Sockets("/x/y", env, 0), dial.Sockets("/x/y", env, 0)
	if !reflect.DeepEqual(a, b) {
		t.Errorf("the order changes: %q, %q", a, b)
	}
}

// ownerOf returns the owner of a file or symbolic link, and whether it exists.
func ownerOf(path string) (uid int, exists bool) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, false
	}
	return int(info.Sys().(*syscall.Stat_t).Uid), true
}
