package profiles_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
	"hinit/profiles"
)

func mountSmallVolume(t *testing.T) string {
	t.Helper()
	testkit.NeedRoot(t)
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=1m"); err != nil {
		testkit.SkipOrFail(t, "needs the right to mount: "+err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	return root
}

func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestEachOrderForAProfileIsRecordedOnAFullVolume checks that several commands in a row are
// recorded on a full volume.
func TestEachOrderForAProfileIsRecordedOnAFullVolume(t *testing.T) {
	root := mountSmallVolume(t)
	s := profiles.Open(root, nil, "")
	home := func(name string) string { return filepath.Join(root, "profiles", name) }
	add := func(name string) {
		t.Helper()
		if err := os.MkdirAll(home(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home(name), "SOUL.md"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	add("before")
	known, err := s.Profile("before") // The profile is known before the volume is full, as after a boot.
	if err != nil {
		t.Fatal(err)
	}
	w := s.Watch(t.Context(), profiles.WatchOptions{Notify: func(profiles.Event) {}, Known: []profiles.Profile{known}})
	add("later")
	if err := w.Rescan(t.Context()); err != nil {
		t.Fatal(err)
	}
	fillDisk(t, filepath.Join(root, "garbage"))
	in := profiles.NewIntents(s)
	for _, want := range []string{profiles.Running, profiles.Stopped, profiles.Running} {
		for _, name := range []string{"default", "before", "later"} {
			if err := in.Set(name, want); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if st, err := s.ReadState(name); err != nil || st.Desired != want {
				t.Errorf("%s: %+v, %v", name, st, err)
			}
			fillDisk(t, filepath.Join(root, "garbage"))
		}
	}
}

// TestAProfileThatFillsTheVolumeKeepsNobodyFromRecordingAnOrder checks that commands are recorded
// although one profile has filled the volume.
func TestAProfileThatFillsTheVolumeKeepsNobodyFromRecordingAnOrder(t *testing.T) {
	root := mountSmallVolume(t)
	for _, name := range []string{"coder", "late", "greedy"} {
		if err := os.MkdirAll(filepath.Join(root, "profiles", name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := profiles.Open(root, nil, "")
	in := profiles.NewIntents(s)
	if err := in.Set("coder", profiles.Running); err != nil {
		t.Fatal(err)
	}
	garbage := filepath.Join(root, "profiles", "greedy", "garbage")
	fillDisk(t, garbage)
	if err := in.Set("late", profiles.Stopped); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a profile that hinit has not found yet: %v; the volume is not full", err)
	}
	if err := in.Set("coder", profiles.Stopped); err != nil {
		t.Errorf("the order is not recorded: %v", err)
	}
	if st, err := profiles.Open(root, nil, "").ReadState("coder"); err != nil || st.Desired != profiles.Stopped {
		t.Errorf("after a restart: %+v, %v", st, err)
	}
	if err := os.Remove(garbage); err != nil {
		t.Fatal(err)
	}
	if err := in.Set("coder", profiles.Running); err != nil {
		t.Fatal(err)
	}
	fillDisk(t, garbage)
	if err := in.Set("coder", profiles.Stopped); err != nil {
		t.Errorf("the reserve was not taken again: %v", err)
	}
}
