package fsutil_test

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

// TestSwapper attacks every operation that writes: the owner of the tree keeps exchanging a directory and a file with links
// that lead outside. No file outside may change.
func TestSwapper(t *testing.T) {
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		root := t.TempDir()
		base, outside := root+"/base", root+"/outside"
		for _, name := range []string{"log", "state", "gone", "tree/x", "tree/y/z", "file"} {
			writeFile(t, outside+"/"+name, "untouched")
		}
		before := treeListing(t, outside)
		must(t, os.MkdirAll(base+"/dir", 0o755))
		must(t, os.Symlink(outside, base+"/dir-link"))
		writeFile(t, base+"/file", "")
		must(t, os.Symlink(outside+"/file", base+"/file-link"))
		d := open(base)

		var stop atomic.Bool
		var swapper sync.WaitGroup
		swapper.Go(func() {
			exchange := func(name string) {
				err := unix.Renameat2(unix.AT_FDCWD, base+name, unix.AT_FDCWD, base+name+"-link", unix.RENAME_EXCHANGE)
				if err != nil {
					t.Errorf("exchange %s: %v", name, err)
					stop.Store(true)
				}
			}
			for !stop.Load() {
				exchange("/dir")
				// Replace may remove the link at the last moment, so the attacker makes a new link each time.
				for _, make := range []func(string) error{
					func(path string) error { return os.Symlink(outside+"/file", path) },
					func(path string) error { return os.WriteFile(path, nil, 0o600) },
				} {
					if err := errors.Join(make(base+"/spare"), os.Rename(base+"/spare", base+"/file-link")); err != nil {
						t.Error(err)
						return
					}
					exchange("/file")
				}
			}
		})
		ops := map[string]func() error{
			"Append":      func() error { return d.Append("dir/log", []byte("evil"), 0o600) },
			"Replace":     func() error { return d.Replace("dir/state", []byte("evil"), fsutil.ReplaceOptions{Mode: 0o600}) },
			"Mkdir":       func() error { return d.Mkdir("dir/tree/new", 0o755) },
			"Remove":      func() error { return d.Remove("dir/gone") },
			"RemoveAll":   func() error { return d.RemoveAll("dir/tree") },
			"Rename":      func() error { return d.Rename("dir/log", "dir/log2") },
			"Append file": func() error { return d.Append("file", []byte("evil"), 0o600) },
			"Replace file": func() error {
				return d.Replace("file", []byte("evil"), fsutil.ReplaceOptions{Mode: 0o600})
			},
		}
		span := 300 * time.Millisecond
		if testing.Short() {
			span /= 3
		}
		deadline, giveUp := time.Now().Add(span), time.Now().Add(testkit.Patience)
		var users sync.WaitGroup
		for name, op := range ops {
			users.Go(func() {
				refused, other := 0, 0
				// A busy machine may need longer until both outcomes have occurred.
				for time.Now().Before(deadline) || (refused == 0 || other == 0) && time.Now().Before(giveUp) {
					if err := op(); errors.Is(err, fsutil.ErrSymlink) {
						refused++
					} else {
						other++
					}
				}
				if refused == 0 || other == 0 {
					t.Errorf("%s met the link %d times and the real thing %d times: nothing was tested", name, refused, other)
				}
			})
		}
		users.Wait()
		stop.Store(true)
		swapper.Wait()
		if after := treeListing(t, outside); after != before {
			t.Errorf("outside changed:\n%s\nwas\n%s", after, before)
		}
	})
}
