package fsutil_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"hinit/internal/fsutil"
)

func TestLockOfADirectory(t *testing.T) {
	path := t.TempDir()
	open := func() *fsutil.Dir {
		d, err := fsutil.OpenDir(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		return d
	}
	errBusy := errors.New("another process holds it")
	refuse := func(*os.File) error { return errBusy }
	one, two := open(), open()
	held, err := one.Lock(refuse)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := two.Lock(refuse); !errors.Is(err, errBusy) {
		t.Errorf("twice: %v", err)
	}
	_ = one.Close()
	if _, err := two.Lock(refuse); !errors.Is(err, errBusy) {
		t.Errorf("after the directory was closed: %v", err)
	}
	_ = held.Close()
	again, err := two.Lock(refuse)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

func TestExclusiveLetsOneSucceed(t *testing.T) {
	path := t.TempDir()
	d, err := fsutil.OpenDir(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var made atomic.Int32
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			switch err := d.CreateExclusive("f", []byte("mine"), 0o644); {
			case err == nil:
				made.Add(1)
			case !errors.Is(err, fs.ErrExist):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 {
		t.Errorf("%d have made it", made.Load())
	}
	if err := os.Symlink("f", filepath.Join(path, "link")); err != nil {
		t.Fatal(err)
	}
	if err := d.CreateExclusive("link", nil, 0o644); !errors.Is(err, fs.ErrExist) {
		t.Errorf("in the place of a link: %v", err)
	}
}
