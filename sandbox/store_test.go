package sandbox

import (
	"errors"
	"testing"

	"hinit/internal/fsutil"
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
