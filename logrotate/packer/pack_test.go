package packer

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/logrotate/archive"
	"hinit/logrotate/gzipped"
)

// TestAnArchiveThatIsPrunedStaysPruned checks that an archive that is removed during its
// compression does not come back.
func TestAnArchiveThatIsPrunedStaysPruned(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := packer{actor: fsutil.ProcessActor().WithPool(blocking.Logs)}
	list := archive.List{Dir: dir}
	name := archive.NameAt(time.Now().Add(-time.Hour))
	path := filepath.Join(dir, name)
	for i := range 50 {
		if err := os.WriteFile(path, []byte(strings.Repeat("x\n", packChunk)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := list.Read(); err != nil {
			t.Fatal(err)
		}
		pruned := make(chan error, 1)
		go func() {
			<-time.After(time.Duration(i) * 200 * time.Microsecond)
			pruned <- list.RemoveOldest()
		}()
		err := p.packArchive(t.Context(), archive.Dir{Path: dir, Actor: p.actor}, name, math.MaxInt64)
		if err := <-pruned; err != nil {
			t.Fatal(err)
		}
		if err != nil && !errors.Is(err, errAbandoned) && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Fatalf("round %d: %q is left", i, left)
		}
	}
}

// TestThousandsOfArchivesOfOneLogHoldUpNoOtherLog checks that Pack compresses only a few archives
// of each log in turn.
func TestThousandsOfArchivesOfOneLogHoldUpNoOtherLog(t *testing.T) {
	t.Parallel()
	logs := []gzipped.Archives{{Dir: t.TempDir(), MaxSize: 1 << 20}, {Dir: t.TempDir(), MaxSize: 1 << 20}}
	for i := range 25 {
		if err := os.WriteFile(filepath.Join(logs[0].Dir, archive.NameAt(time.Now().Add(time.Duration(i-100)*time.Minute))), []byte("x\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(logs[1].Dir, archive.NameAt(time.Now().Add(-time.Hour))), []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for call, again := range []bool{true, true, false} {
		results := Pack(t.Context(), fsutil.ProcessActor(), logs, time.Second)
		if results[0] != (gzipped.Result{CallAgain: again}) || results[1] != (gzipped.Result{}) {
			t.Errorf("call %d: %+v", call, results)
		}
		left, err := filepath.Glob(filepath.Join(logs[0].Dir, "*.s"))
		if want := max(25-10*(call+1), 0); err != nil || len(left) != want {
			t.Errorf("call %d: %d archives are not compressed, want %d (%v)", call, len(left), want, err)
		}
	}
}
