package control

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"hinit/internal/testkit"
)

func socketDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestListenMakesASocketThatEverybodyMayOpen(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o666 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if l.Addr().String() != path {
		t.Errorf("address %s", l.Addr())
	}
	_, err = Listen(path)
	want := `another hinit listens on "` + path + `"; give this one its own HINIT_RUNTIME_DIR`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a second one: %v", err)
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
}

func TestListenReplacesADeadSocket(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Close(), l.Close()
}

func TestCloseLeavesTheSocketOfAnotherAlone(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	other, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the other's socket: %v", err)
	}
}

func TestListenRefusesWhatIsNotSafe(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(t *testing.T, dir string) string
		want    string
	}{
		"others may write": {func(t *testing.T, dir string) string {
			return chmodDir(t, dir, 0o777)
		}, "has mode 0777, so others could replace the socket"},
		"the group may write": {func(t *testing.T, dir string) string {
			testkit.NeedRoot(t)
			return chmodDir(t, dir, 0o775)
		}, "has mode 0775"},
		"somebody else's": {func(t *testing.T, dir string) string {
			testkit.NeedRoot(t)
			if err := os.Chown(dir, 10000, 0); err != nil {
				t.Fatal(err)
			}
			return dir
		}, "belongs to uid 10000"},
		"missing": {func(_ *testing.T, dir string) string { return filepath.Join(dir, "x") }, "no such file or directory"},
		"a file in its place": {func(t *testing.T, dir string) string {
			if err := os.WriteFile(filepath.Join(dir, "s"), []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
			return dir
		}, "it exists and is not a socket"},
		"a link in its place": {func(t *testing.T, dir string) string {
			if err := os.Symlink("elsewhere", filepath.Join(dir, "s")); err != nil {
				t.Fatal(err)
			}
			return dir
		}, "it exists and is not a socket"},
		"too long": {func(_ *testing.T, dir string) string {
			return filepath.Join(dir, strings.Repeat("x", maxSocketPath))
		}, "set HINIT_RUNTIME_DIR to a shorter one"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(tt.prepare(t, socketDir(t)), "s")
			l, err := Listen(path)
			if err == nil {
				_ = l.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "cannot listen on \""+path+"\": ") {
				t.Errorf("got %v", err)
			}
		})
	}
	sticky := filepath.Join(chmodDir(t, socketDir(t), 0o777|os.ModeSticky), "s")
	l, err := Listen(sticky)
	if err != nil {
		t.Fatalf("a sticky directory: %v", err)
	}
	_ = l.Close()
}

func chmodDir(t *testing.T, dir string, mode os.FileMode) string {
	t.Helper()
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAnAbstractNameWorksWithoutAFileSystem(t *testing.T) {
	name := "@hinit-control-test-" + strconv.Itoa(os.Getpid())
	s := newServer(newGoldenBackend(), readableByAll)
	l, err := Listen(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(name); err == nil || !strings.Contains(err.Error(), "another hinit listens on") {
		t.Errorf("a second one: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	h := &testServer{Server: s, socket: name}
	st, err := h.client().Status(t.Context())
	if err != nil || len(st.Services) != 3 {
		t.Errorf("%+v, %v", st, err)
	}
	if err := errors.Join(s.Close(t.Context()), <-ended); err != nil {
		t.Error(err)
	}
}
