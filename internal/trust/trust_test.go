package trust_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/trust"
)

// makeTree is a directory that only root can change, with the files of a test.
func makeTree(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	for at := dir; at != "/" && filepath.Base(at) != "tmp"; at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestEveryComponentOnTheWayIsJudged(t *testing.T) {
	const agent = 10000
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string) string // changes the tree, and returns the path to open
		doubt string                                // expected place of the violation, below dir; "": none
		why   string
	}{
		"root's alone": {func(t *testing.T, dir string) string { return dir + "/a/b/file" }, "", ""},
		"the file is another's": {func(t *testing.T, dir string) string {
			must(t, os.Chown(dir+"/a/b/file", agent, 0))
			return dir + "/a/b/file"
		}, "/a/b/file", "belongs to uid 10000"},
		"its group can write it": {func(t *testing.T, dir string) string {
			must(t, os.Chown(dir+"/a/b/file", 0, 50), os.Chmod(dir+"/a/b/file", 0o664))
			return dir + "/a/b/file"
		}, "/a/b/file", "can be written by gid 50"},
		"everybody can write it": {func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir+"/a/b/file", 0o646))
			return dir + "/a/b/file"
		}, "/a/b/file", "can be written by everybody"},
		"a directory far above is another's": {func(t *testing.T, dir string) string {
			must(t, os.Chown(dir+"/a", agent, 0))
			return dir + "/a/b/file"
		}, "/a", "belongs to uid 10000"},
		"everybody can write the directory": {func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir+"/a/b", 0o777))
			return dir + "/a/b/file"
		}, "/a/b", "can be written by everybody"},
		"a sticky directory of root's": {func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir+"/a/b", 0o777|os.ModeSticky))
			return dir + "/a/b/file"
		}, "", ""},
		"a sticky directory of another's": {func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir+"/a/b", 0o777|os.ModeSticky), os.Chown(dir+"/a/b", agent, 0))
			return dir + "/a/b/file"
		}, "/a/b", "belongs to uid 10000"},
		"through a link of root's": {func(t *testing.T, dir string) string {
			must(t, os.Symlink(dir+"/a/b/file", dir+"/link"))
			return dir + "/link"
		}, "", ""},
		"a link of another's in a sticky directory": {func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir, 0o777|os.ModeSticky), os.Symlink("a/b/file", dir+"/link"), os.Lchown(dir+"/link", agent, agent))
			return dir + "/link"
		}, "/link", "belongs to uid 10000"},
		"a link through another's directory": {func(t *testing.T, dir string) string {
			must(t, os.Mkdir(dir+"/his", 0o755), os.Symlink("../a/b/file", dir+"/his/next"), os.Symlink("his/next", dir+"/link"), os.Chown(dir+"/his", agent, agent))
			return dir + "/link"
		}, "/his", "belongs to uid 10000"},
		"by way of another's directory and back": {func(t *testing.T, dir string) string {
			must(t, os.Mkdir(dir+"/his", 0o755), os.Chown(dir+"/his", agent, agent))
			return dir + "/his/../a/b/file"
		}, "/his", "belongs to uid 10000"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := makeTree(t)
			must(t, os.MkdirAll(dir+"/a/b", 0o755), os.WriteFile(dir+"/a/b/file", []byte("text"), 0o644))
			fd, violation, err := trust.Open(c.spoil(t, dir), trust.RootOnly)
			if err != nil {
				t.Fatal(err)
			}
			f := os.NewFile(uintptr(fd), "file")
			defer f.Close()
			text := make([]byte, 10)
			if n, _ := f.Read(text); string(text[:n]) != "text" {
				t.Errorf("read %q", text[:n])
			}
			switch {
			case c.doubt == "" && violation != nil:
				t.Errorf("doubted: %v", violation)
			case c.doubt != "" && (violation == nil || violation.Path != dir+c.doubt || violation.Why != c.why || !strings.HasSuffix(violation.Remedy, " "+violation.Path)):
				t.Errorf("got violation %+v, want one about %s: %s", violation, dir+c.doubt, c.why)
			}
		})
	}
}

func TestWhatIsNoFileIsNotOpened(t *testing.T) {
	dir := makeTree(t)
	must(t, unix.Mkfifo(dir+"/fifo", 0o644), os.Symlink("loop", dir+"/loop"), os.WriteFile(dir+"/file", nil, 0o644))
	for path, want := range map[string]string{
		dir + "/fifo": "not a regular file", dir: "not a regular file", "relative": "not an absolute path", dir + "/gone": unix.ENOENT.Error(),
		dir + "/loop": unix.ELOOP.Error(), dir + "/file/below": unix.ENOTDIR.Error(), dir + "/file/": "",
	} {
		fd, _, err := trust.Open(path, trust.RootOnly)
		if err == nil {
			unix.Close(fd)
		}
		if want == "" != (err == nil) || err != nil && err.Error() != want {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func TestAReadOnlyMountLeavesNoDoubt(t *testing.T) {
	dir := makeTree(t)
	must(t, os.WriteFile(dir+"/file", nil, 0o666), os.Chmod(dir+"/file", 0o666))
	if err := unix.Mount(dir+"/file", dir+"/file", "", unix.MS_BIND, ""); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	defer func() { must(t, unix.Unmount(dir+"/file", 0)) }()
	must(t, unix.Mount("", dir+"/file", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	fd, violation, err := trust.Open(dir+"/file", trust.RootOnly)
	must(t, err, unix.Close(fd))
	if violation != nil {
		t.Errorf("doubted: %v", violation)
	}
	// A file on a read-only mount must be refused if a user can change it through another mount. Otherwise a program of the
	// agent could become PID 1.
	fd, violation, err = trust.OpenAnyMount(dir+"/file", trust.RootOnly)
	must(t, err, unix.Close(fd))
	if violation == nil {
		t.Error("not doubted, though another mount is writable")
	}
}

func TestADirectoryIsDoubtedWhereOthersCouldMakeIt(t *testing.T) {
	dir := makeTree(t)
	must(t, os.Mkdir(dir+"/shared", 0o755), os.Chmod(dir+"/shared", 0o777|os.ModeSticky), os.Mkdir(dir+"/group", 0o755), os.Chown(dir+"/group", 0, 50), os.Chmod(dir+"/group", 0o775))
	for path, doubted := range map[string]bool{"/gone": false, "/shared/gone": true, "/shared": true, "/group": true} {
		violation, err := trust.Check(dir+path, trust.NotChangeableBy(10000, []uint32{50}))
		if missing := strings.HasSuffix(path, "gone"); missing != errors.Is(err, unix.ENOENT) || doubted != (violation != nil) {
			t.Errorf("%s: %v, %v", path, violation, err)
		}
	}
	if violation, _ := trust.Check(dir+"/group", trust.NotChangeableBy(10000, []uint32{10000})); violation != nil {
		t.Errorf("a user who is not in the group: %v", violation)
	}
}

// TestSwapper exchanges a directory and a link to another user's directory during the opening of the path. A file without a
// doubt must always be root's.
func TestSwapper(t *testing.T) {
	dir := makeTree(t)
	must(t, os.Mkdir(dir+"/root", 0o755), os.WriteFile(dir+"/root/file", []byte("root's"), 0o644),
		os.Mkdir(dir+"/his", 0o755), os.WriteFile(dir+"/his/file", []byte("his"), 0o644), os.Chown(dir+"/his", 10000, 10000), os.Chown(dir+"/his/file", 10000, 10000),
		os.Symlink("root", dir+"/a"), os.Symlink("his", dir+"/b"))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, dir+"/a", unix.AT_FDCWD, dir+"/b", unix.RENAME_EXCHANGE)
			}
		}
	}()
	seen := map[string]int{}
	for range 20000 {
		fd, violation, err := trust.Open(dir+"/a/file", trust.RootOnly)
		if err != nil {
			t.Fatal(err)
		}
		text := make([]byte, 10)
		n, err := unix.Read(fd, text)
		must(t, err, unix.Close(fd))
		seen[string(text[:n])]++
		if (violation != nil) != (string(text[:n]) == "his") {
			t.Fatalf("read %q with violation %v", text[:n], violation)
		}
	}
	close(stop)
	<-stopped
	t.Logf("read %v", seen)
}

func TestAValueThatLeadsIntoTheVolume(t *testing.T) {
	for value, want := range map[string]bool{
		"/opt/data": true, "/opt/data/x": true, "/usr/lib:/opt/data/lib": true, "--require=/opt/data/x.js": true, "-I/opt/data": true,
		"file:///opt/data/x": true, "/lib/x.so /opt/data/y.so": true, "/opt/database": false, "/opt/data.old": false, "/opt/data-2 /opt/data": true,
		"": false, "opt/data": false, "/opt/dat": false,
	} {
		if got := trust.ContainsPath(value, "/opt/data"); got != want {
			t.Errorf("%q: %t", value, got)
		}
	}
}

func FuzzOpen(f *testing.F) {
	for _, path := range []string{"/", "/etc/passwd", "/proc/self/exe", "/..//etc/./passwd", "/proc/self/fd/0", "\x00", "/a\x00b"} {
		f.Add(path)
	}
	f.Fuzz(func(_ *testing.T, path string) {
		if fd, _, err := trust.Open(path, trust.RootOnly); err == nil {
			unix.Close(fd)
		}
	})
}
