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

// TestAProfileThatFillsTheVolumeKeepsNobodyFromRecordingAnOrder: the volume has not a byte left, and the last order holds after a restart.
func TestAProfileThatFillsTheVolumeKeepsNobodyFromRecordingAnOrder(t *testing.T) {
	testkit.NeedRoot(t)
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=1m"); err != nil {
		testkit.SkipOrFail(t, "needs the right to mount: "+err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
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
	fill := func() {
		t.Helper()
		f, err := os.OpenFile(garbage, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
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
	fill()
	if err := in.Set("late", profiles.Stopped); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a profile without a reserve: %v; the volume is not full", err)
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
	fill()
	if err := in.Set("coder", profiles.Stopped); err != nil {
		t.Errorf("the reserve was not taken again: %v", err)
	}
}
