package fsutil_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"hinit/internal/fsutil"
)

func TestADirectoryWithTooManyNamesIsNotHeldInMemory(t *testing.T) {
	base := t.TempDir()
	for i := range fsutil.MaxDirNames + 1 {
		must(t, os.Symlink("x", fmt.Sprintf("%s/%d", base, i)))
	}
	d := openDir(t, base, nil)
	if entries, err := d.ReadDir(""); !errors.Is(err, fsutil.ErrTooManyNames) || entries != nil {
		t.Errorf("%d entries, %v", len(entries), err)
	}
	seen := 0
	must(t, d.EachName("", func(string, fs.FileMode) bool { seen++; return true }))
	if seen != fsutil.MaxDirNames+1 {
		t.Errorf("one by one there are %d", seen)
	}
	must(t, d.Remove("0"))
	if entries, err := d.ReadDir(""); err != nil || len(entries) != fsutil.MaxDirNames {
		t.Errorf("%d entries, %v", len(entries), err)
	}
}

func TestRemoveAllOfManyDirectories(t *testing.T) {
	base := t.TempDir()
	n := 2*fsutil.MaxRemoveNames + 1
	if testing.Short() {
		n -= fsutil.MaxRemoveNames
	}
	for i := range n {
		must(t, os.MkdirAll(fmt.Sprintf("%s/t/%d/x", base, i), 0o755))
	}
	must(t, openDir(t, base, nil).RemoveAll("t"))
	if got := dirNames(t, base); got != "" {
		t.Errorf("left: %q", got)
	}
}
