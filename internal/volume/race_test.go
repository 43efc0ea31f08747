package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hinit/internal/boot"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// TestSwapper attacks the boot: it keeps exchanging names that the boot uses with links that lead out of the volume. No file
// outside may change.
func TestSwapper(t *testing.T) {
	testkit.NeedRoot(t)
	home := newVolumeDir(t)
	outside := filepath.Dir(home) + "/outside"
	dirs := []string{"cron", "profiles", "workspace", "logs", "logs/gateways", "profiles/coder", "platforms"}
	files := []string{"auth.json", ".env", "config.yaml", "gateway_state.json", "SOUL.md", "profiles/coder/gateway_state.json", "cron/deep/file"}
	for _, name := range append(files, "profiles/other/.env", "pairing/x", "gateways/coder/current", "coder/.env", "deep/file") {
		writeFile(t, outside+"/"+name, "untouched")
	}
	before := testkit.TreeSnapshot(t, outside)
	for _, dir := range dirs {
		must(t, os.MkdirAll(home+"/"+dir, 0o755))
	}
	for _, name := range files {
		writeFile(t, home+"/"+name, "")
	}
	// The attacker uses descriptors, because a path could lead the attacker itself outside.
	places := filepath.Dir(home) + "/links" // the same file system, so that renameat2(2) can exchange the two
	must(t, os.Mkdir(places, 0o755))
	type spot struct {
		dir  int
		name string
		link string
	}
	open := func(path string) int {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	links := open(places)
	var spots []spot
	for i, name := range append(dirs, files...) {
		to := outside
		if i >= len(dirs) {
			to = outside + "/" + name
		}
		link := strings.ReplaceAll(name, "/", "-")
		must(t, os.Symlink(to, places+"/"+link))
		spots = append(spots, spot{open(filepath.Dir(home + "/" + name)), filepath.Base(name), link})
	}

	var stop atomic.Bool
	var swapped, refused atomic.Int64
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for !stop.Load() {
			for _, s := range spots {
				err := unix.Renameat2(s.dir, s.name, links, s.link, unix.RENAME_EXCHANGE)
				if err == nil {
					swapped.Add(1)
				} else if !errors.Is(err, unix.ENOENT) {
					t.Errorf("exchange %s: %v", s.name, err)
					return
				}
			}
		}
	})
	swapper.Go(func() {
		for !stop.Load() {
			for _, s := range spots {
				_ = unix.Fchownat(s.dir, s.name, 0, 0, unix.AT_SYMLINK_NOFOLLOW)
				_ = unix.Fchownat(links, s.link, 0, 0, unix.AT_SYMLINK_NOFOLLOW)
			}
			_ = unix.Lchown(home, 0, 0)
		}
	})
	env := map[string]string{"HERMES_AUTH_JSON_BOOTSTRAP": "evil", "HERMES_GATEWAY_BOOTSTRAP_STATE": "running"}
	runs, start := 0, time.Now()
	const enoughRefused, enoughSwapped = 10, 1000
	span := 5 * time.Second // two attackers, to use both processors
	if testing.Short() {
		span /= 10
	}
	more := func() bool {
		took := time.Since(start)
		// A busy machine may need longer than the deadline.
		return runs < 1000 && took < span || (refused.Load() < enoughRefused || swapped.Load() < enoughSwapped) && took < time.Minute
	}
	for ; more(); runs++ {
		o, _ := options(t, home, env)
		o.Say = func(l boot.LogLine) {
			if strings.Contains(l.Text, "through symlinked path") {
				refused.Add(1)
			}
		}
		if runs == 0 {
			writeInstallDir(t, o)
		}
		prepareBoot(context.Background(), o)
		o.RepairEverything = true
		Repair(context.Background(), o, noProgress)
	}
	stop.Store(true)
	swapper.Wait()
	t.Logf("%d boots in %s, %d exchanges, %d links refused", runs, time.Since(start).Round(time.Millisecond), swapped.Load(), refused.Load())
	if refused.Load() < enoughRefused || swapped.Load() < enoughSwapped {
		t.Errorf("only %d links were met in %d exchanges: nothing was tested", refused.Load(), swapped.Load())
	}
	after := testkit.TreeSnapshot(t, outside)
	if after != before {
		t.Errorf("outside changed:\n%s\nwas\n%s", after, before)
	}
}
