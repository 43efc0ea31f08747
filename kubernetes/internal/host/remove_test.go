package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func emptyWholeTrash(ctx context.Context, s *Store) error {
	_, err := s.emptyTrash(ctx)
	return err
}

// TestDeleteWithDamagedTrash checks that a host deletes a large home in the background although an
// agent has removed the trash directory, replaced it, or made it inaccessible (mode 0). The next
// start of the host must succeed.
func TestDeleteWithDamagedTrash(t *testing.T) {
	for how, spoil := range map[string]func(trash string) error{
		"removed": os.Remove,
		"a file":  func(trash string) error { return errors.Join(os.Remove(trash), os.WriteFile(trash, nil, 0o600)) },
		"a link":  func(trash string) error { return errors.Join(os.Remove(trash), os.Symlink("live", trash)) },
		"closed":  func(trash string) error { return os.Chmod(trash, 0) },
	} {
		withMemoryVolume(t, func(s *Store, dir string) {
			trash, home := filepath.Join(dir, trashDir), filepath.Join(dir, s.Home("coder"))
			if err := errors.Join(os.MkdirAll(filepath.Join(home, "cache"), 0o700), spoil(trash)); err != nil {
				t.Fatal(err)
			}
			if err := s.Delete("coder", "u1", true); err != nil || s.exists(s.Home("coder")) {
				t.Errorf("%s: %v", how, err)
			}
			if kept, err := filepath.Glob(filepath.Join(trash, "*", "cache")); err != nil || len(kept) != 1 {
				t.Errorf("%s: a worker has deleted the files: %q, %v", how, kept, err)
			}
			if err := emptyWholeTrash(t.Context(), s); err != nil {
				t.Errorf("%s: %v", how, err)
			}
			if rest, err := os.ReadDir(trash); err != nil || len(rest) > 0 {
				t.Errorf("%s: %d are left: %v", how, len(rest), err)
			}
			if err := os.Chmod(trash, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := spoil(trash); err != nil {
				t.Fatal(err)
			}
			if _, err := OpenStore(dir); err != nil {
				t.Errorf("%s: the next start: %v", how, err)
			}
		})
	}
}

// TestADirectoryOfTheStoreThatAnAgentHasSpoiltStopsNoStart checks that a host starts although a file, a link or a
// closed directory is in place of a directory of its store.
func TestADirectoryOfTheStoreThatAnAgentHasSpoiltStopsNoStart(t *testing.T) {
	for _, name := range []string{storeDir, liveDir, asideDir, incomingDir, retainedDir, backupsDir, partDir} {
		for how, spoil := range map[string]func(at string) error{
			"a file": func(at string) error { return errors.Join(os.RemoveAll(at), os.WriteFile(at, nil, 0o600)) },
			"a link": func(at string) error { return errors.Join(os.RemoveAll(at), os.Symlink("nowhere", at)) },
			"closed": func(at string) error { return os.Chmod(at, 0) },
		} {
			withMemoryVolume(t, func(_ *Store, dir string) {
				at := filepath.Join(dir, name)
				if err := spoil(at); err != nil {
					t.Fatal(err)
				}
				s, err := OpenStore(dir)
				if err != nil {
					t.Fatalf("%s is %s: %v", name, how, err)
				}
				if err := s.writeRecord("coder", &record{UID: "u1"}); err != nil {
					t.Errorf("%s was %s: %v", name, how, err)
				}
			})
		}
	}
}

// TestAHomeThatCannotBeMovedStaysUntilItCan checks that a home stays in place while it can't be
// moved into the trash. A worker must not delete it in place, which may take long.
func TestAHomeThatCannotBeMovedStaysUntilItCan(t *testing.T) {
	withMemoryVolume(t, func(s *Store, dir string) {
		give := func(uid int) {
			done := make(chan error)
			go func() { done <- os.Chown(filepath.Join(dir, trashDir), uid, uid) }() // This thread is still root.
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if err := os.MkdirAll(filepath.Join(dir, s.Home("coder"), "cache"), 0o700); err != nil {
			t.Fatal(err)
		}
		give(0)
		if err := s.Delete("coder", "u1", true); err == nil || !s.exists(s.Home("coder")+"/cache") || !inspectStore(t, s, "u1").Live {
			t.Errorf("the home is gone: %v", err)
		}
		give(10000)
		if err := s.Delete("coder", "u1", true); err != nil || s.exists(s.Home("coder")) {
			t.Error(err)
		}
	})
}

// TestAProcessThatIsLeftInItsOldHomeKeepsNoOtherTrash checks that other homes in the trash are deleted, although a
// process creates files in its deleted home all the time.
func TestAProcessThatIsLeftInItsOldHomeKeepsNoOtherTrash(t *testing.T) {
	s, dir := newVolume(t, "", "")
	s.removeTime = 50 * time.Millisecond
	trash := filepath.Join(dir, trashDir)
	for _, name := range []string{"a", "b", "busy", "y", "z"} {
		if err := os.MkdirAll(filepath.Join(trash, name, "cache"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for n := range 4 {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				_ = os.MkdirAll(fmt.Sprintf("%s/busy/%d/%d", trash, n, i), 0o700) // Ignore the error: the host may have deleted the directories above.
			}
		})
	}
	done := make(chan error, 1)
	go func() { done <- emptyWholeTrash(t.Context(), s) }()
	select {
	case <-done: // Ignore the error: the process may have been between two files.
	case <-time.After(20 * time.Second):
		t.Error("the host is still in the home of the process")
	}
	for _, name := range []string{"a", "b", "y", "z"} {
		if s.exists(trashDir + "/" + name) {
			t.Errorf("%s is left", name)
		}
	}
	cancel()
	all.Wait()
	s.removeTime = defaultRemoveTime
	if err := emptyWholeTrash(t.Context(), s); err != nil || s.exists(trashDir+"/busy") {
		t.Errorf("after the end of the process: %v", err)
	}
}

// TestDataThatCouldNotBeDeletedIsDeletedLater checks that the trash of a store that can't be opened for a while is
// deleted afterwards, without another deletion of a profile.
func TestDataThatCouldNotBeDeletedIsDeletedLater(t *testing.T) {
	dir := t.TempDir()
	at, away := filepath.Join(dir, storeDir), filepath.Join(dir, "away")
	synctest.Test(t, func(t *testing.T) {
		s, err := OpenStore(dir)
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(os.MkdirAll(filepath.Join(dir, trashDir, "old/cache"), 0o700), os.Rename(at, away), os.WriteFile(at, nil, 0o600))
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		h := &host{store: s, settings: Settings{Log: slog.New(slog.NewTextHandler(&log, nil))}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan bool)
		go func() {
			h.emptyTrash(ctx)
			close(ended)
		}()
		synctest.Wait()
		if err := errors.Join(os.Remove(at), os.Rename(away, at)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(trashRetryDelay + time.Second)
		synctest.Wait()
		if s.exists(trashDir + "/old") {
			t.Error("the data is left")
		}
		cancel()
		<-ended
		if output := log.String(); strings.Count(output, "\n") != 1 || !strings.Contains(output, "deleted data is left") {
			t.Errorf("the host says %q", output)
		}
	})
}

// TestAHostThatEndsDeletesNoFurtherFile checks that a host that ends stops deleting at once. An agent may put millions
// of files into the trash.
func TestAHostThatEndsDeletesNoFurtherFile(t *testing.T) {
	s, dir := newVolume(t, "", "")
	for i := range 3 {
		if err := os.WriteFile(fmt.Sprintf("%s/%s/%d", dir, trashDir, i), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if left, err := s.emptyTrash(ctx); left != 3 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d files are left: %v", left, err)
	}
	if rest, err := os.ReadDir(filepath.Join(dir, trashDir)); err != nil || len(rest) != 3 {
		t.Errorf("%d files are there: %v", len(rest), err)
	}
}
