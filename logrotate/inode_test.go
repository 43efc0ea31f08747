package logrotate

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/logrotate/archive"
	"hinit/logrotate/gzipped"
	"hinit/logrotate/packer"
	"hinit/logrotate/reader"
)

// TestLogsShowsAllArchivesWhenTheCurrentFileHasTheInodeOfACompressedOne checks that Read doesn't
// mistake the current file for a compressed archive with the same inode number.
func TestLogsShowsAllArchivesWhenTheCurrentFileHasTheInodeOfACompressedOne(t *testing.T) {
	t.Parallel()
	dir, first := createHistory(t)
	archives := archive.Dir{Path: dir, Actor: fsutil.ProcessActor()}
	names, err := archives.Names()
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.Stat(filepath.Join(dir, names[2]))
	if err != nil {
		t.Fatal(err)
	}
	// Set the archive's time to the time of its last line.
	if err := os.Chtimes(filepath.Join(dir, names[2]), first, first.Add(10*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if r := packer.Pack(t.Context(), fsutil.ProcessActor(), []gzipped.Archives{{Dir: dir, MaxSize: 1 << 20}}, time.Second); r[0] != (gzipped.Result{}) {
		t.Fatal(r)
	}
	current := filepath.Join(dir, archive.CurrentFile)
	text, err := os.ReadFile(current)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		if i == 1999 {
			t.Skip("this file system gives no inode number twice")
		}
		next := filepath.Join(dir, fmt.Sprintf("next%d", i))
		if err := os.WriteFile(next, text, 0o644); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(next)
		if err != nil {
			t.Fatal(err)
		}
		if fsutil.IDOf(st) == fsutil.IDOf(old) {
			if err := os.Rename(next, current); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	for _, o := range []reader.Options{{LastLines: -1, Previous: true}, {LastLines: 20}, {LastLines: -1, Since: first}} {
		o.Dir = dir
		n := 0
		if err := reader.Read(t.Context(), fsutil.ProcessActor(), o, func([]byte) error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
		if n != 20 {
			t.Errorf("%+v: got %d lines of 20", o, n)
		}
	}
}

// TestAFileWhoseNameIsNoTimeHidesNoArchive checks that a file that only looks like an archive does
// not hide real archives.
func TestAFileWhoseNameIsNoTimeHidesNoArchive(t *testing.T) {
	t.Parallel()
	dir, first := createHistory(t)
	poison := filepath.Join(dir, "@ffffffffffffffffffffffff.s")
	if err := os.WriteFile(poison, []byte("9999-12-31 00:00:00.000000000  none\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := reader.Read(t.Context(), fsutil.ProcessActor(), reader.Options{Dir: dir, LastLines: -1, Since: first}, func([]byte) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	if n != 20 {
		t.Errorf("got %d lines of 20", n)
	}
	s := newSet(Options{limits: Limits{Archives: 1}})
	writeRun(t, s.Open("gateway-coder", "coder", filepath.Join(dir, archive.CurrentFile)), "next")
	closeSet(t, s)
	if _, err := os.Stat(poison); err != nil {
		t.Errorf("hinit has removed a file that is no archive: %v", err)
	}
}
