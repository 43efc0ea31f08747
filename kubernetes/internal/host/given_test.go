package host

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	hinit "hinit/client"
	"hinit/kubernetes/api/v1alpha1"
)

// TestAProfileDeletedAtTheEndOfItsMoveLeavesNoSecret deletes the object before the new host has
// confirmed its data. With onDelete: Delete, the old host must delete its copy; with Retain, it
// must keep it.
func TestAProfileDeletedAtTheEndOfItsMoveLeavesNoSecret(t *testing.T) {
	for _, policy := range []string{"Delete", "Retain"} {
		s, dir := newVolume(t, "u1", "secret")
		if err := s.SetAside("coder", "u1", 1); err != nil {
			t.Fatal(err)
		}
		p := newCoderProfile(v1alpha1.AgentProfileStatus{Host: "other", Assignment: 2, Installed: 1})
		p.Spec.OnDelete, p.Finalizers = policy, nil
		api := newFakeAPI(p)
		h := newTestHost(t, "me", api, &fakeGateways{services: map[string]hinit.Service{}}, s)
		if err := h.reconcile(t.Context(), "coder"); !errors.Is(err, errRetry) {
			t.Fatalf("while the other host works: %v", err)
		}
		if err := errors.Join(api.Delete(t.Context(), p), h.reconcile(t.Context(), "coder"), emptyWholeTrash(t.Context(), s)); err != nil {
			t.Fatal(err)
		}
		kept, all := countCopies(t, retainedDir+"/*", dir), countCopies(t, "*/*", dir)+countCopies(t, ".hinit-fleet/*/*", dir)
		if want := map[string]int{"Delete": 0, "Retain": 1}[policy]; kept != want || all != want {
			t.Errorf("%s: %d copies are left, %d of them in %s", policy, all, kept, retainedDir)
		}
	}
}

// TestReceivedDataOfADeletedProfileIsRetained checks that a new host retains the received data of a profile that is
// deleted before it is installed.
func TestReceivedDataOfADeletedProfileIsRetained(t *testing.T) {
	s, dir := newVolume(t, "", "")
	at := filepath.Join(dir, incomingPath("coder", "u1", "nonce"))
	if err := errors.Join(os.Mkdir(at, 0o700), os.WriteFile(at+".json", nil, 0o600), os.WriteFile(at+"/data", nil, 0o600), s.Retire("coder", "u1", false)); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(at)); countCopies(t, retainedDir+"/coder.u1.*", dir) != 1 || len(left) > 0 || err != nil {
		t.Errorf("%d are retained, and %v are left: %v", countCopies(t, retainedDir+"/*", dir), left, err)
	}
}

// TestACancelledMoveOnAFullVolumeGoesBack checks that a cancelled move restarts the gateway on its
// old host, although that host's volume is full.
func TestACancelledMoveOnAFullVolumeGoesBack(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skip("only root can mount a small volume:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(dir, "profiles/coder")
	if err := errors.Join(s.Claim("coder", "u1"), os.MkdirAll(home, 0o700), s.SetAside("coder", "u1", 1)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := s.TakeBack("coder", "u1", 1); err != nil || !inspectStore(t, s, "u1").Live {
		t.Errorf("the home is not back: %v", err)
	}
}

// TestADirectoryInThePlaceOfARecordHoldsNoProfile checks that a directory in place of a record,
// which an agent can create, blocks neither the profile nor its return after a cancelled move.
func TestADirectoryInThePlaceOfARecordHoldsNoProfile(t *testing.T) {
	s, dir := newVolume(t, "", "")
	if err := os.MkdirAll(filepath.Join(dir, liveDir, "coder", "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Claim("coder", "u1"); err != nil {
		t.Error(err)
	}
}
