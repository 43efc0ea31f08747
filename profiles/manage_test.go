package profiles_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/profiles"
	"hinit/profiles/archive"
	"hinit/profiles/manage"
)

func TestCreate(t *testing.T) {
	s := profiles.NewVolume(t)
	if there, err := s.Exists("coder"); err != nil || there {
		t.Errorf("before it is created: %v, %v", there, err)
	}
	if err := manage.Create(s, "coder"); err != nil {
		t.Fatal(err)
	}
	p, err := s.Profile("coder")
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(s.Root(), "profiles/coder"); p.Home != want || p.Name != "coder" {
		t.Errorf("created %+v", p)
	}
	for _, dir := range []string{"memories", "sessions", "skills", "skins", "logs", "plans", "workspace", "cron", "home"} {
		if info, err := os.Stat(filepath.Join(p.Home, dir)); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if there, err := s.Exists("coder"); err != nil || !there {
		t.Errorf("after it was created: %v, %v", there, err)
	}
	assertMode(t, filepath.Join(p.Home, ".env"), 0o600)
	if soul := profiles.Read(t, s, "profiles/coder/SOUL.md"); !strings.HasPrefix(soul, "# coder\n") {
		t.Errorf("marker %q", soul)
	}
	if found, warnings, err := s.Discover(); err != nil || len(found) != 2 || len(warnings) != 0 {
		t.Errorf("found %v, %v, %v", found, warnings, err)
	}
	if err := manage.Create(s, "coder"); !errors.Is(err, manage.ErrExists) {
		t.Errorf("again: %v", err)
	}
	for _, name := range []string{"default", "root", "Coder", "", "../x", strings.Repeat("a", 65)} {
		if err := manage.Create(s, name); !errors.Is(err, profiles.ErrInvalidName) {
			t.Errorf("Create(%q): %v", name, err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(s.Root(), "profiles"))
	if err != nil || len(entries) != 1 {
		t.Errorf("left in profiles/: %v, %v", entries, err)
	}
}

func TestCreateInTheWay(t *testing.T) {
	s := profiles.NewVolume(t)
	profiles.Write(t, s, "profiles/file", "x")
	profiles.Write(t, s, "profiles/dir/x", "x")
	if err := os.Symlink("/nonexistent", filepath.Join(s.Root(), "profiles/link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "dir", "link"} {
		if err := manage.Create(s, name); !errors.Is(err, manage.ErrExists) {
			t.Errorf("Create(%q): %v", name, err)
		}
	}
	// Leftovers of a crashed Create must not prevent a new profile with the same name.
	profiles.Write(t, s, "profiles/.new-fine/half", "x")
	if err := manage.Create(s, "fine"); err != nil || profiles.Exists(t, s, "profiles/fine/half") || profiles.Exists(t, s, "profiles/.new-fine") {
		t.Errorf("after a crash: %v", err)
	}
}

func TestCreateFails(t *testing.T) {
	// Create fails at its last step, because the directory for the marker is missing.
	s := profiles.Open(t.TempDir(), nil, "no/such/marker")
	if err := manage.Create(s, "p"); err == nil {
		t.Fatal("no error")
	}
	entries, err := os.ReadDir(filepath.Join(s.Root(), "profiles"))
	if err != nil || len(entries) != 0 {
		t.Errorf("left in profiles/: %v, %v", entries, err)
	}

	s = profiles.NewVolume(t)
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(s.Root(), "profiles")); err != nil {
		t.Fatal(err)
	}
	if err := manage.Create(s, "p"); !errors.Is(err, fsutil.ErrSymlink) {
		t.Errorf("profiles/ is a link: %v", err)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
		t.Errorf("a link was followed: %v, %v", left, err)
	}
}

func TestDelete(t *testing.T) {
	s := profiles.NewVolume(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "precious"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if err := manage.Create(s, name); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, filepath.Join(s.Root(), "profiles", name, "workspace/link")); err != nil {
			t.Fatal(err)
		}
	}
	profiles.Write(t, s, "logs/gateways/a/current", "x")
	profiles.Write(t, s, "active_profile", "a\n")
	if err := manage.Delete(s, "b"); err != nil || profiles.Read(t, s, "active_profile") != "a\n" {
		t.Errorf("delete b: %v", err)
	}
	if err := manage.Delete(s, "a"); err != nil {
		t.Fatal(err)
	}
	if profiles.Exists(t, s, "profiles/a") || profiles.Exists(t, s, "active_profile") || !profiles.Exists(t, s, "logs/gateways/a/current") {
		t.Error("home or active_profile is still there, or the log is gone")
	}
	if _, err := os.Stat(filepath.Join(outside, "precious")); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
	if err := manage.Delete(s, "a"); !errors.Is(err, profiles.ErrNotExist) {
		t.Errorf("again: %v", err)
	}
	for _, name := range []string{"default", "", "..", "hermes"} {
		if err := manage.Delete(s, name); !errors.Is(err, profiles.ErrInvalidName) {
			t.Errorf("Delete(%q): %v", name, err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(s.Root(), "profiles/link")); err != nil {
		t.Fatal(err)
	}
	if err := manage.Delete(s, "link"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(outside, "precious")); err != nil || profiles.Exists(t, s, "profiles/link") {
		t.Errorf("deleting a link: %v", err)
	}
}

// TestSweep checks that crash leftovers are removed, and that a profile that is being created is
// kept.
func TestSweep(t *testing.T) {
	s := profiles.NewVolume(t)
	if err := s.RemoveTemporaries(time.Now()); err != nil {
		t.Errorf("without profiles: %v", err)
	}
	for _, file := range []string{".new-a/SOUL.md", ".old-b/sessions/x", ".new-c/SOUL.md", "d/SOUL.md", ".other/x"} {
		profiles.Write(t, s, "profiles/"+file, "x")
	}
	now := time.Now()
	for _, dir := range []string{".new-a", ".old-b", "d", ".other"} {
		if err := os.Chtimes(filepath.Join(s.Root(), "profiles", dir), now, now.Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.RemoveTemporaries(now.Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{".new-a": false, ".old-b": false, ".new-c": true, "d": true, ".other": true} {
		if profiles.Exists(t, s, "profiles/"+dir) != want {
			t.Errorf("%s is there: %v", dir, !want)
		}
	}
	if s.Locks() != 0 {
		t.Errorf("%d locks are kept", s.Locks())
	}
}

// TestWhatAKilledImportLeftGoesAfterAWeek checks that a killed import's copy is kept for a week, so
// that it can continue.
func TestWhatAKilledImportLeftGoesAfterAWeek(t *testing.T) {
	s, now := profiles.NewVolume(t), time.Now()
	age := map[string]time.Duration{archive.ImportPrefix + "new": 6 * 24 * time.Hour, archive.ImportPrefix + "old": 8 * 24 * time.Hour, ".import": 8 * 24 * time.Hour}
	for dir, since := range age {
		profiles.Write(t, s, "profiles/"+dir+"/home/SOUL.md", "x")
		if err := os.Chtimes(filepath.Join(s.Root(), "profiles", dir), now, now.Add(-since)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.RemoveTemporaries(now); err != nil {
		t.Fatal(err)
	}
	for dir := range age {
		if want := dir != archive.ImportPrefix+"old"; profiles.Exists(t, s, "profiles/"+dir) != want {
			t.Errorf("%s is there: %v", dir, !want)
		}
	}
}

func TestRename(t *testing.T) {
	s := profiles.NewVolume(t)
	for _, name := range []string{"a", "b"} {
		if err := manage.Create(s, name); err != nil {
			t.Fatal(err)
		}
	}
	profiles.Write(t, s, "active_profile", "a\n")
	profiles.Write(t, s, "profiles/a/notes", "of a")
	if err := manage.Rename(s, "a", "c"); err != nil {
		t.Fatal(err)
	}
	if profiles.Exists(t, s, "profiles/a") || profiles.Read(t, s, "profiles/c/notes") != "of a" || profiles.Read(t, s, "active_profile") != "c\n" {
		t.Error("not renamed")
	}
	for _, tt := range []struct {
		from, to string
		want     error
	}{
		{"a", "d", profiles.ErrNotExist},
		{"c", "b", manage.ErrExists},
		{"c", "c", manage.ErrExists},
		{"c", "default", profiles.ErrInvalidName},
		{"default", "d", profiles.ErrInvalidName},
		{"c", "tmp", profiles.ErrInvalidName},
		{"../c", "d", profiles.ErrInvalidName},
	} {
		if err := manage.Rename(s, tt.from, tt.to); !errors.Is(err, tt.want) {
			t.Errorf("Rename(%q, %q) = %v, want %v", tt.from, tt.to, err, tt.want)
		}
	}
}

func TestAnActiveProfileThatIsNoFileSelectsNobody(t *testing.T) {
	for name, put := range map[string]func(path, outside string) error{
		"a link":           func(path, outside string) error { return os.Symlink(outside, path) },
		"a dangling link":  func(path, _ string) error { return os.Symlink("gone", path) },
		"a FIFO":           func(path, _ string) error { return syscall.Mkfifo(path, 0o644) },
		"a directory":      func(path, _ string) error { return os.Mkdir(path, 0o755) },
		"far too much":     func(path, _ string) error { return os.WriteFile(path, make([]byte, 1<<20), 0o644) },
		"a link to itself": func(path, _ string) error { return os.Symlink("active_profile", path) },
	} {
		t.Run(name, func(t *testing.T) {
			s := profiles.NewVolume(t)
			for _, name := range []string{"a", "b"} {
				if err := manage.Create(s, name); err != nil {
					t.Fatal(err)
				}
			}
			outside, path := filepath.Join(t.TempDir(), "outside"), filepath.Join(s.Root(), "active_profile")
			if err := errors.Join(os.WriteFile(outside, []byte("a\n"), 0o644), put(path, outside)); err != nil {
				t.Fatal(err)
			}
			if active, err := s.Active(); active != profiles.Default || err == nil || !strings.Contains(err.Error(), "remove "+path) {
				t.Errorf("active %q, %v", active, err)
			}
			if err := errors.Join(manage.Rename(s, "b", "c"), manage.Delete(s, "c"), manage.Delete(s, "a")); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(path); err != nil {
				t.Error("it was removed, though it was not hinit's")
			}
			if text, err := os.ReadFile(outside); string(text) != "a\n" {
				t.Errorf("the file outside: %q, %v", text, err)
			}
		})
	}
}

func TestActive(t *testing.T) {
	s := profiles.NewVolume(t)
	if active, err := s.Active(); active != profiles.Default || err != nil {
		t.Errorf("active %q, %v", active, err)
	}
	for _, name := range []string{"a", "b"} {
		if err := manage.Create(s, name); err != nil {
			t.Fatal(err)
		}
	}
	profiles.Write(t, s, "active_profile", " B\n")
	if active, err := s.Active(); active != "b" || err != nil {
		t.Errorf("active %q, %v", active, err)
	}
	if _, _, err := profiles.Open("/nonexistent", nil, "").Discover(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no volume: %v", err)
	}
}
