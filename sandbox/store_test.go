package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

func TestADirectoryIsLockedOnlyOnALocalFileSystem(t *testing.T) {
	for path, want := range map[string]error{t.TempDir(): nil, "/proc": errNotLocal} {
		dir, err := fsutil.OpenDir(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		held, err := tryLock(dir)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
		if err != nil {
			continue
		}
		defer held.Close()
		if _, err := tryLock(dir); !errors.Is(err, errLocked) {
			t.Errorf("%s, twice: %v", path, err)
		}
	}
}

// TestRootPutAHelperOfTheAgentIntoSandboxes checks that root takes the helper, which guards the mounts of sandboxes, from
// no directory of PATH that the agent can change.
func TestRootPutAHelperOfTheAgentIntoSandboxes(t *testing.T) {
	testkit.NeedRoot(t)
	dir := t.TempDir()
	helper := filepath.Join(dir, helperName)
	if err := os.WriteFile(helper, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if found, err := FindHelper(""); found != helper || err != nil {
		t.Errorf("in a directory of root's: %q, %v", found, err)
	}
	if err := os.Chown(dir, 10000, 10000); err != nil {
		t.Fatal(err)
	}
	if found, err := FindHelper(""); found != "" || err == nil {
		t.Errorf("in a directory of the agent: %q, %v", found, err)
	}
}
