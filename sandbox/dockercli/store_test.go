package dockercli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"hinit/internal/testkit"
)

func TestStoreKeeps(t *testing.T) {
	s, err := NewStore(filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Get("a"); ok {
		t.Error("it has what nobody put")
	}
	s.Put("a", []byte("1"))
	s.Put("a", []byte("2"))
	if v, ok := s.Get("a"); !ok || string(v) != "2" {
		t.Errorf("%q %v", v, ok)
	}
	s.Put("a", nil)
	if _, ok := s.Get("a"); ok {
		t.Error("it has what was forgotten")
	}
}

// TestStoreIsBounded: failed commands of an agent's, with as much output as is kept.
func TestStoreIsBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	s, err := NewStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		s.Put("long"+strconv.Itoa(i), make([]byte, recordMost))
	}
	size, entries := int64(0), []os.DirEntry(nil)
	entries, err = os.ReadDir(dir)
	for _, e := range entries {
		info, infoErr := e.Info()
		if err = errors.Join(err, infoErr); err == nil {
			size += info.Size()
		}
	}
	if err != nil || size > storeBytes+sweepBytes+recordMost || size < storeBytes/2 {
		t.Errorf("it keeps %d bytes (%v)", size, err)
	}
	if _, ok := s.Get("long199"); !ok {
		t.Error("it forgot the newest one")
	}
}

func TestDirStoreTrustsNobodyElse(t *testing.T) {
	dir := t.TempDir()
	open, link := filepath.Join(dir, "open"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777), os.Symlink(open, link)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{open, link, filepath.Join(dir, "no", "parent")} {
		if _, err := NewStore(bad); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

func TestProcess(t *testing.T) {
	name, parent, err := Process(os.Getpid())
	if err != nil || parent != os.Getppid() {
		t.Errorf("%s, %d, %v", name, parent, err)
	}
	if again, _, _ := Process(os.Getpid()); again != name {
		t.Errorf("%s and %s", name, again)
	}
	if _, _, err := Process(1 << 30); err == nil {
		t.Error("there is no such process")
	}
}

func TestRecorder(t *testing.T) {
	r := &recorder{}
	w := r.before(writer(func(b []byte) (int, error) { return len(b), nil }))
	fmt.Fprint(w, "nginx is not")
	if r.looksGone() {
		t.Error("half of it is not it")
	}
	fmt.Fprint(w, " running\n")
	if !r.looksGone() {
		t.Error("it is in two pieces, and not seen")
	}
	for range 5 {
		_, _ = w.Write(make([]byte, recordMost))
	}
	if !r.looksGone() || len(r.output()) > 2*recordMost+100 {
		t.Errorf("after much output: %v, %d bytes kept", r.looksGone(), len(r.output()))
	}
	if got := unlike("No such container: x is not running"); containsAny([]byte(got)) {
		t.Error(got)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// TestLives: a process that has ended is dead before it is reaped, and no other one has its name.
func TestLives(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	name, _, err := Process(cmd.Process.Pid)
	if err != nil || !Lives(name) {
		t.Fatal("it lives", err)
	}
	_ = cmd.Process.Kill()
	testkit.Until(t, "it has ended", func() bool { return !Lives(name) })
	_ = cmd.Wait()
	for _, name := range []string{name, "", "x", "-1.5", "1073741824.1"} {
		if Lives(name) {
			t.Errorf("%q lives", name)
		}
	}
}
