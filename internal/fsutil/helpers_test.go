package fsutil_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

const agentUID, agentGID = 10000, 10001

// childCheckVar names one of childChecks. The test binary then runs this check instead of the tests.
const childCheckVar = "FSUTIL_TEST_CHILD"

func TestMain(m *testing.M) {
	if name := os.Getenv(childCheckVar); name != "" {
		if err := childChecks[name](); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	testkit.IsolateProcess()
	os.Exit(m.Run())
}

// runChild runs a check in a child process. edit may change the command first.
func runChild(t *testing.T, name string, edit func(*exec.Cmd)) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childCheckVar+"="+name)
	edit(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", name, err, out)
	}
}

func mountTmpfs(t *testing.T, dir, options string) {
	t.Helper()
	testkit.NeedRoot(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		testkit.SkipOrFail(t, "mount: "+err.Error())
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
}

// withAndWithoutOpenat2 runs a test twice: with openat2, and with the walk through each path component.
func withAndWithoutOpenat2(t *testing.T, test func(t *testing.T, open func(path string) *fsutil.Dir)) {
	t.Helper()
	for name, walk := range map[string]bool{"openat2": false, "walk": true} {
		t.Run(name, func(t *testing.T) {
			if !walk {
				requireOpenat2(t)
			}
			test(t, func(path string) *fsutil.Dir {
				d := openDir(t, path, fsutil.ProcessActor())
				d.SetNoOpenat2(walk)
				t.Cleanup(func() {
					if d.LacksOpenat2() != walk {
						t.Errorf("the way of resolving changed on the way")
					}
				})
				return d
			})
		})
	}
}

func requireOpenat2(t *testing.T) {
	t.Helper()
	fd, err := unix.Openat2(unix.AT_FDCWD, ".", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC})
	if err != nil {
		t.Skipf("no openat2 here: %v", err)
	}
	_ = unix.Close(fd)
}

func openDir(t *testing.T, path string, a *fsutil.Actor) *fsutil.Dir {
	t.Helper()
	d, err := fsutil.OpenDir(path, a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func dirNames(t *testing.T, path string) string {
	t.Helper()
	entries, err := os.ReadDir(path)
	must(t, err)
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return strings.Join(list, " ")
}
