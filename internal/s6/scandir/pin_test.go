package scandir

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/s6"
	"hinit/supervisor"
)

// identities is a host that is only asked who runs a service.
type identities struct{ Host }

func (identities) Identity(bool) (*proc.Cred, []string) { return nil, nil }

func TestAUnitOfRootIsRunFromItsDirectoryAsLongAsThereIsTheUnit(t *testing.T) {
	path, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &Scanner{host: identities{}, ctx: context.Background()}
	begin := func() (supervisor.Unit, os.FileInfo) {
		dir, err := fsutil.OpenReal(path, nil)
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
		p := &place{dir: dir, root: true, pin: pin, path: path}
		u := s.unit("foo/log", p, s6.Definition{})
		p.close() // the directory is gone; the logger and its finish program are not
		return u, want
	}
	u, want := begin()
	runtime.GC()
	runtime.GC()
	got, err := os.Stat(u.Finish(supervisor.Exit{}).Dir)
	if err != nil || !os.SameFile(want, got) {
		t.Errorf("finish would be run from %q, which is not the directory any more (%v)", u.Spec.Dir, err)
	}
	runtime.KeepAlive(u.Finish)
}
