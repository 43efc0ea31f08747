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
	one, two := open(), open()
	held, err := one.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := two.Lock(); !errors.Is(err, fsutil.ErrLocked) {
		t.Errorf("twice: %v", err)
	}
	_ = one.Close() // the lock belongs to the file
	if _, err := two.Lock(); !errors.Is(err, fsutil.ErrLocked) {
		t.Errorf("after the directory was closed: %v", err)
	}
	_ = held.Close()
	again, err := two.Lock()
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
	proc, err := fsutil.OpenDir("/proc", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if _, err := proc.Lock(); !errors.Is(err, fsutil.ErrNotLocal) {
		t.Errorf("a file system that is not known: %v", err)
	}
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
			switch err := d.Exclusive("f", []byte("mine"), 0o644); {
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
	if err := d.Exclusive("link", nil, 0o644); !errors.Is(err, fs.ErrExist) {
		t.Errorf("in the place of a link: %v", err)
	}
}
