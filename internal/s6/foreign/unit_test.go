package foreign

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/supervisor"
)

type fakeScanner struct{ Scanner }

func (fakeScanner) ForeignSpec(bool) proc.Spec { return proc.Spec{} }

func TestAUnitOfRootIsRunFromItsDirectoryAsLongAsThereIsTheUnit(t *testing.T) {
	path, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := New(fakeScanner{}, "foo")
	begin := func() (supervisor.Unit, os.FileInfo) {
		dir, err := fsutil.OpenNoLink(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		pin, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		want, err := pin.Stat()
		if err != nil {
			t.Fatal(err)
		}
		p := &Directory{dir: dir, Root: true, Pin: pin, Path: path}
		u := s.unit("foo/log", p)
		p.close()
		return u, want
	}
	u, want := begin()
	runtime.GC()
	runtime.GC()
	got, err := os.Stat(u.Spec.Dir)
	if err != nil || !os.SameFile(want, got) {
		t.Errorf("finish would be run from %q, which is not the directory any more (%v)", u.Spec.Dir, err)
	}
	runtime.KeepAlive(&u)
}
