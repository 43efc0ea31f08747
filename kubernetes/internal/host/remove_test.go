package host

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestATrashThatAnAgentHasSpoiltHoldsNoWorker has a home with many files, and a trash that an agent has removed, replaced, or closed.
// A worker deleted all files itself, and the next start of the host failed.
func TestATrashThatAnAgentHasSpoiltHoldsNoWorker(t *testing.T) {
	for how, spoil := range map[string]func(trash string) error{
		"removed": os.Remove,
		"a file":  func(trash string) error { return errors.Join(os.Remove(trash), os.WriteFile(trash, nil, 0o600)) },
		"a link":  func(trash string) error { return errors.Join(os.Remove(trash), os.Symlink("live", trash)) },
		"closed":  func(trash string) error { return os.Chmod(trash, 0) },
	} {
		crowded(t, func(s *Store, dir string) {
			trash, home := filepath.Join(dir, trashDir), filepath.Join(dir, s.Home("coder"))
			if err := errors.Join(os.MkdirAll(filepath.Join(home, "cache"), 0o700), spoil(trash)); err != nil {
				t.Fatal(err)
			}
			if err := s.Delete("coder", "u1"); err != nil || s.exists(s.Home("coder")) {
				t.Errorf("%s: %v", how, err)
			}
			if kept, err := filepath.Glob(filepath.Join(trash, "*", "cache")); err != nil || len(kept) != 1 {
				t.Errorf("%s: a worker has deleted the files: %q, %v", how, kept, err)
			}
			if err := s.emptyTrash(t.Context()); err != nil {
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

// TestAHomeThatCannotBeMovedStaysUntilItCan has a trash of another user. A worker deleted the home in its place, however long it took.
func TestAHomeThatCannotBeMovedStaysUntilItCan(t *testing.T) {
	crowded(t, func(s *Store, dir string) {
		give := func(uid int) {
			done := make(chan error)
			go func() { done <- os.Chown(filepath.Join(dir, trashDir), uid, uid) }() // on a thread of root
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if err := os.MkdirAll(filepath.Join(dir, s.Home("coder"), "cache"), 0o700); err != nil {
			t.Fatal(err)
		}
		give(0)
		if err := s.Delete("coder", "u1"); err == nil || !s.exists(s.Home("coder")+"/cache") || !look(t, s, "u1").Live {
			t.Errorf("the home is gone: %v", err)
		}
		give(10000)
		if err := s.Delete("coder", "u1"); err != nil || s.exists(s.Home("coder")) {
			t.Error(err)
		}
	})
}
