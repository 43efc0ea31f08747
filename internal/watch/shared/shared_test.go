package shared

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"hinit/internal/fsutil"
	"hinit/internal/testkit"
	"hinit/internal/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The fallback must work for file systems and kernels that report no changes.
func TestWatchWithoutInotify(t *testing.T) {
	t.Parallel()
	const pollEvery = time.Second
	none := Watch{open: func(*watch.Set) error { return errors.New("too many instances") }, followers: make(map[string][]*Follower)}
	w := none.Follow(t.TempDir(), nil)
	defer w.Close()
	begin := time.Now()
	bounded, end := context.WithTimeout(t.Context(), testkit.Patience)
	defer end()
	if changed, err := w.Wait(bounded, pollEvery); err != nil || changed || time.Since(begin) < pollEvery/2 {
		t.Errorf("waited %v, %v", time.Since(begin), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.Wait(ctx, pollEvery); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// A change must wake the followers of its directory, which would otherwise sleep for an hour.
func TestWatchesAreWoken(t *testing.T) {
	h := Watch{open: (*watch.Set).Open, followers: make(map[string][]*Follower)}
	root := t.TempDir()
	dirs := make([]string, 3)
	all := make([]*Follower, 0, 2*len(dirs))
	for i := range dirs {
		dirs[i] = filepath.Join(root, strconv.Itoa(i))
		if err := os.Mkdir(dirs[i], 0o755); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			w := h.Follow(dirs[i], nil)
			defer w.Close()
			all = append(all, w)
		}
	}
	woken := func(w *Follower, what string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		if _, err := w.Wait(ctx, time.Hour); err != nil {
			t.Fatalf("%s: the watch of %s is not woken: %v", what, w.dir, err)
		}
	}
	for i := range dirs {
		woken(all[2*i], "a directory that is watched from now on")
	}
	for i, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "current"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		woken(all[2*i], "a file")
		woken(all[2*i+1], "a file")
	}
	// A new directory gets the name of a removed one, and perhaps its inode number. No step of the test waits while the
	// directory is missing.
	if err := errors.Join(os.RemoveAll(dirs[0]), os.Mkdir(dirs[0], 0o755)); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the new directory is watched", func() bool {
		woken(all[0], "a directory that goes")
		if err := os.WriteFile(filepath.Join(dirs[0], "current"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		st, err := os.Stat(dirs[0])
		return err == nil && h.set.ID(dirs[0]) == fsutil.IDOf(st)
	})
	woken(all[1], "a directory that came")
	// An overflow of the kernel's queue must wake all followers.
	for len(all[3].woken) > 0 {
		<-all[3].woken
	}
	h.wakeAll()
	woken(all[3], "an overflow")
}
