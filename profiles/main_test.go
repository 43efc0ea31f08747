package profiles

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// envHelper makes the test binary do something else than test; see helperMain.
const envHelper = "PROFILES_TEST_HELPER"

func TestMain(m *testing.M) {
	if mode := os.Getenv(envHelper); mode != "" {
		helperMain(mode)
	}
	goleak.VerifyTestMain(m)
}

// newVolume returns the store of an empty volume.
func newVolume(t *testing.T) *Store {
	t.Helper()
	return Open(t.TempDir(), nil, "")
}

// write makes a file beneath the volume, and its directories. It is there whole or not at all.
func write(t *testing.T, s *Store, rel, content string) {
	t.Helper()
	path := filepath.Join(s.root, rel)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	temp := filepath.Join(s.root, ".being-written")
	if err := errors.Join(os.WriteFile(temp, []byte(content), 0o644), os.Rename(temp, path)); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, s *Store, rel string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.root, rel))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func exists(t *testing.T, s *Store, rel string) bool {
	t.Helper()
	_, err := os.Lstat(filepath.Join(s.root, rel))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// testPatience is how long a test waits for what has to come. It costs nothing when all is well.
const testPatience = 40 * time.Second

// eventually polls until ok, and fails the test when that takes too long.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(testPatience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("still not after %v: %s", testPatience, what)
		}
		<-tick.C
	}
}

func ownerOf(info fs.FileInfo) int {
	return int(info.Sys().(*syscall.Stat_t).Uid)
}
