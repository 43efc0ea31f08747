package fsutil_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

func TestRemoveAllTree(t *testing.T) {
	withAndWithoutOpenat2(t, func(t *testing.T, open func(string) *fsutil.Dir) {
		root := t.TempDir()
		writeFile(t, root+"/outside/x", "untouched")
		before := treeListing(t, root+"/outside")
		base := root + "/base"
		for i := range 200 {
			writeFile(t, fmt.Sprintf("%s/t/%d/%d/f", base, i%7, i), "x")
		}
		must(t, os.Symlink(root+"/outside", base+"/t/link"))
		must(t, os.Symlink(root+"/outside/x", base+"/t/3/link"))
		must(t, unix.Mkfifo(base+"/t/fifo", 0o600))
		writeFile(t, base+"/stays", "")
		d := open(base)
		must(t, d.RemoveAll("t"))
		if got := dirNames(t, base); got != "stays" {
			t.Errorf("left: %q", got)
		}
		if after := treeListing(t, root+"/outside"); after != before {
			t.Errorf("outside changed:\n%s", after)
		}
		must(t, d.RemoveAll("stays"))
	})
}

func TestRemoveAllDeepTreeWithFewDescriptors(t *testing.T) {
	base := t.TempDir()
	d := openDir(t, base, nil)
	const depth = 1500
	fd, err := unix.Openat(unix.AT_FDCWD, base, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	for range depth {
		must(t, unix.Mkdirat(fd, "deep", 0o700))
		next, err := unix.Openat(fd, "deep", unix.O_PATH|unix.O_DIRECTORY, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	file, err := unix.Openat(fd, "f", unix.O_WRONLY|unix.O_CREAT, 0o600)
	must(t, err)
	unix.Close(file)
	unix.Close(fd)

	var old unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 100, Max: old.Max}))
	err = d.RemoveAll("deep")
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	if err != nil {
		t.Error(err)
	}
	if got := dirNames(t, base); got != "" {
		t.Errorf("left: %q", got)
	}
}

func TestRemoveAllAgainstAWriter(t *testing.T) {
	base := t.TempDir()
	d := openDir(t, base, nil)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; !stop.Load(); i++ {
			name := fmt.Sprintf("%s/t/%d", base, i%50)
			os.MkdirAll(name, 0o700)
			os.WriteFile(name+"/f", nil, 0o600)
		}
	}()
	for range 50 {
		if err := d.RemoveAll("t"); err != nil {
			t.Error(err)
		}
	}
	stop.Store(true)
	<-done
	must(t, d.RemoveAll("t"))
	if got := dirNames(t, base); got != "" {
		t.Errorf("left: %q", got)
	}
}

// A tree must be removed although its own user can't read, write or enter its directories. Most of them are so deep that they
// are moved to the top of the tree first, which changes their entry "..".
func TestATreeWhosePermissionsAnAgentHasTakenIsRemoved(t *testing.T) {
	for _, mode := range []fs.FileMode{0o500, 0o300, 0} {
		t.Run(mode.String(), func(t *testing.T) {
			actor, base := fsutil.ProcessActor(), t.TempDir()
			if os.Geteuid() == 0 {
				actor, base = agentActor(t), makeWorldWritableDir(t)
				must(t, os.Chown(base, agentUID, agentGID))
			}
			d := openDir(t, base, actor)
			const depth = 40
			for i := range depth {
				dir := "t" + strings.Repeat("/deep", i)
				must(t, d.Mkdir(dir+"/empty", 0o700))
				must(t, d.Create(dir+"/file", nil, 0o400))
			}
			for i := range depth {
				dir := "t" + strings.Repeat("/deep", depth-1-i)
				for _, name := range []string{dir + "/empty", dir} {
					if err := d.Chmod(name, mode); err != nil {
						t.Fatal(err)
					}
				}
			}
			ended, end := context.WithCancel(t.Context())
			end()
			if err := d.RemoveAllUntil(ended, "t"); !errors.Is(err, context.Canceled) || dirNames(t, base) != "t" {
				t.Errorf("after the end of the context: %q, %v", dirNames(t, base), err)
			}
			must(t, d.RemoveAll("t"))
			if got := dirNames(t, base); got != "" {
				t.Errorf("left: %q", got)
			}
		})
	}
}
