package profiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"hinit/internal/testkit"
)

// EnvHelper makes the test binary run one of the helpers in helperMain instead of the tests.
const EnvHelper = "PROFILES_TEST_HELPER"

func TestMain(m *testing.M) {
	if mode := os.Getenv(EnvHelper); mode != "" {
		helperMain(mode)
	}
	testkit.IsolateProcess()
	testkit.LimitParallel(6)
	goleak.VerifyTestMain(m)
}

func NewVolume(t *testing.T) *Store {
	t.Helper()
	return Open(t.TempDir(), nil, "")
}

// Write makes a file below the volume, with its directories. Readers see either the whole file or none.
func Write(t *testing.T, s *Store, rel, content string) {
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

func Read(t *testing.T, s *Store, rel string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.root, rel))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func Exists(t *testing.T, s *Store, rel string) bool {
	t.Helper()
	_, err := os.Lstat(filepath.Join(s.root, rel))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func OwnerOf(info fs.FileInfo) int {
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// ObservedState is a state file as the agent writes it.
const ObservedState = `{"pid":4,"kind":"hermes-gateway","argv":["/opt/hermes/.venv/bin/hermes","gateway","run"],` +
	`"start_time":100022,"gateway_state":"running","exit_reason":null,"restart_requested":false,"active_agents":0,` +
	`"platforms":{},"updated_at":"2026-11-21T00:08:46.710169+00:00"}`

// helperMain is the main function of the test binary as another process. It doesn't return.
func helperMain(mode string) {
	s := Open(os.Getenv("PROFILES_TEST_HOME"), nil, "")
	switch mode {
	case "held":
		runStoppedHelper(s)
		os.Exit(0)
	case "set":
	default:
		os.Exit(2)
	}
	for i := 0; ; i++ {
		if err := s.SetDesired(Default, []string{Running, Stopped}[i%2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(i)
	}
}
