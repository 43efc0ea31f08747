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
)

// TestAnArchiveThatIsPrunedStaysPruned checks that an archive which is removed at any point of its compression does not
// come back.
func TestAnArchiveThatIsPrunedStaysPruned(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := packer{actor: fsutil.Self().Limited(blocking.Logs)}
	list := archive.List{Dir: dir}
	name := archive.Name(time.Now().Add(-time.Hour))
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
