package profiles_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/profiles"
	"hinit/profiles/archive"
	"hinit/profiles/manage"
)

// callConcurrently calls do n times concurrently, each with its own store. It returns the number of
// successes, and the other errors.
func callConcurrently(root string, n int, do func(s *profiles.Store, i int) error) (done int, failed []error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range n {
		all.Go(func() {
			err := do(profiles.Open(root, nil, ""), i)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				done++
			} else {
				failed = append(failed, err)
			}
		})
	}
	all.Wait()
	return done, failed
}

// existingFiles returns the names in the directory of the homes, separated by spaces.
func existingFiles(t *testing.T, s *profiles.Store) string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.Root(), "profiles"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// TestOfSeveralCreatesOfOneNameOneSucceeds checks that exactly one of several concurrent creations
// of a profile succeeds.
func TestOfSeveralCreatesOfOneNameOneSucceeds(t *testing.T) {
	s := profiles.NewVolume(t)
	for round := range 50 {
		name := fmt.Sprintf("p%d", round)
		done, failed := callConcurrently(s.Root(), 4, func(s *profiles.Store, _ int) error { return manage.Create(s, name) })
		for _, err := range failed {
			if !errors.Is(err, manage.ErrExists) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if done != 1 {
			t.Errorf("%s: %d of 4 succeeded", name, done)
		}
		for _, file := range []string{"SOUL.md", ".env", "memories", "home"} {
			if !profiles.Exists(t, s, "profiles/"+name+"/"+file) {
				t.Errorf("%s has no %s", name, file)
			}
		}
	}
	if left := existingFiles(t, s); strings.Contains(left, ".") {
		t.Errorf("left: %s", left)
	}
}

// TestTheActiveProfileExistsAfterTwoRenames checks that two concurrent renames of the active
// profile leave an existing profile active.
func TestTheActiveProfileExistsAfterTwoRenames(t *testing.T) {
	s := profiles.NewVolume(t)
	for round := range 50 {
		from := fmt.Sprintf("p%d", round)
		if err := manage.Create(s, from); err != nil {
			t.Fatal(err)
		}
		profiles.Write(t, s, "active_profile", from+"\n")
		done, failed := callConcurrently(s.Root(), 4, func(s *profiles.Store, i int) error { return manage.Rename(s, from, fmt.Sprintf("%s-%d", from, i)) })
		for _, err := range failed {
			if !errors.Is(err, profiles.ErrNotExist) {
				t.Errorf("%s: %v", from, err)
			}
		}
		now, err := s.Active()
		if err != nil || done != 1 || !profiles.Exists(t, s, "profiles/"+now+"/SOUL.md") {
			t.Fatalf("%d renames succeeded, and the active profile is %q (%v): %s", done, now, err, existingFiles(t, s))
		}
	}
}

// TestNoCommandsLeaveHalfAProfile checks that concurrent commands for one name leave a complete
// home or none.
func TestNoCommandsLeaveHalfAProfile(t *testing.T) {
	s := profiles.NewVolume(t)
	for range 100 {
		_, failed := callConcurrently(s.Root(), 6, func(s *profiles.Store, i int) (err error) {
			switch i % 3 {
			case 0:
				err = manage.Create(s, "a")
			case 1:
				err = manage.Delete(s, "a")
			default:
				err = manage.Rename(s, "a", "b")
			}
			return err
		})
		for _, err := range failed {
			if !errors.Is(err, profiles.ErrNotExist) && !errors.Is(err, manage.ErrExists) {
				t.Errorf("%v", err)
			}
		}
		for _, name := range []string{"a", "b"} {
			if profiles.Exists(t, s, "profiles/"+name) && !profiles.Exists(t, s, "profiles/"+name+"/SOUL.md") {
				t.Fatalf("%s is not complete", name)
			}
		}
		if err := manage.Delete(s, "b"); err != nil && !errors.Is(err, profiles.ErrNotExist) {
			t.Error(err)
		}
	}
	if left := strings.TrimSpace(strings.Replace(existingFiles(t, s), "a", "", 1)); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestASecondCommandRemovesWhatAKilledOneLeft checks that a command removes the leftovers of a
// killed deletion.
func TestASecondCommandRemovesWhatAKilledOneLeft(t *testing.T) {
	s := profiles.NewVolume(t)
	profiles.Write(t, s, "profiles/.old-p/sessions/x", "x")
	profiles.Write(t, s, "profiles/.new-p/auth.json", "x")
	if err := manage.Create(s, "p"); err != nil {
		t.Fatal(err)
	}
	_, err := os.Stat(filepath.Join(s.Root(), "profiles/p/auth.json"))
	if left := existingFiles(t, s); left != "p" || err == nil {
		t.Errorf("left: %s, %v", left, err)
	}
}

// TestWhatAKilledImportOfATenantLeftGoes checks that the boot removes the leftovers of an isolated
// profile's killed import.
func TestWhatAKilledImportOfATenantLeftGoes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	root := t.TempDir()
	const agent, tenant = 10000, 20005
	actor := fsutil.NewActor(fsutil.Identity{UID: agent, GID: agent}).WithHomesOf(filepath.Join(root, "profiles"), 20000, 20099)
	s, now := profiles.Open(root, actor, ""), time.Now()
	for _, file := range []string{archive.ImportPrefix + "p/p/SOUL.md", archive.ImportPrefix + "p/archive", archive.ImportPrefix + "home/.hinit-profile"} {
		profiles.Write(t, s, "profiles/"+file, "x")
	}
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		owner := agent
		if strings.Contains(path, archive.ImportPrefix) {
			owner = tenant
		}
		return errors.Join(err, os.Chown(path, owner, owner))
	})
	for _, path := range []string{filepath.Dir(root), root} { // The agent's user has to enter these directories.
		err = errors.Join(err, os.Chmod(path, 0o755))
	}
	for _, name := range []string{"p", "home"} {
		path := filepath.Join(root, "profiles", archive.ImportPrefix+name)
		err = errors.Join(err, os.Chmod(path, 0o700), os.Chtimes(path, now, now.Add(-8*24*time.Hour)))
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = s.RemoveTemporaries(now) // RemoveTemporaries returns an error for the home that it keeps.
	if profiles.Exists(t, s, "profiles/"+archive.ImportPrefix+"p") {
		t.Error("the files of the import are there")
	}
	if !profiles.Exists(t, s, "profiles/"+archive.ImportPrefix+"home/.hinit-profile") {
		t.Error("the home of a tenant, which the agent's user has renamed, was removed")
	}
}
