package testkit

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// All test binaries of one run must share one build of each program.
func TestBuiltOnceForAll(t *testing.T) {
	SkipIfShort(t)
	dir, before, all := t.TempDir(), sharedDir, programs
	defer func() { sharedDir, programs = before, all }()
	sharedDir = t.TempDir()
	programs = map[string]program{"hinit-shim": all["hinit-shim"], "faulty/name": all["hinit-isolate"]}
	build := LockPrograms(sharedDir)
	lock, err := os.Open(filepath.Join(sharedDir, "faulty/name.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("a test binary that wants a claimed program does not wait: %v", err)
	}
	if err := errors.Join(build(), Build(dir, "hinit-shim", "faulty/name")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"hinit-shim", "faulty/name"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || len(got) < 1<<20 {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	programs = all
	if err := os.MkdirAll(filepath.Join(sharedDir, "faulty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(sharedDir, "faulty", "hinit"), []byte("built by another"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Build(dir, "faulty/hinit"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "faulty", "hinit")); err != nil || string(got) != "built by another" {
		t.Errorf("%q, %v", got, err)
	}
	if err := Build(dir, "no-such-program"); err == nil {
		t.Error("what nobody knows was built")
	}
}
