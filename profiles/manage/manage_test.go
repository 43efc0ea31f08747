package manage

import (
	"path/filepath"
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/profiles"
)

// TestAHeldLockKeepsNoProfileFromBeingCreated checks that an agent's lock on the directory of
// profiles does not block root's commands.
func TestAHeldLockKeepsNoProfileFromBeingCreated(t *testing.T) {
	s := profiles.Open(t.TempDir(), nil, "")
	was := lockTimeout
	lockTimeout = 50 * time.Millisecond
	defer func() { lockTimeout = was }()
	if err := Create(s, "other"); err != nil {
		t.Fatal(err)
	}
	d, err := fsutil.OpenDir(filepath.Join(s.Root(), "profiles"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	held, err := d.Lock(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := Create(s, "p"); err != nil {
		t.Errorf("while another process has the lock: %v", err)
	}
}
