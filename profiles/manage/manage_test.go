package manage

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/internal/fsutil"
	"hinit/profiles"
)

// A command that another program keeps from its work says so.
func TestAnOccupiedDirectoryOfProfilesIsReported(t *testing.T) {
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
	if err := Create(s, "p"); err == nil || !strings.Contains(err.Error(), "another command") {
		t.Errorf("while another command has the lock: %v", err)
	}
	_ = held.Close()
	if err := Create(s, "p"); err != nil {
		t.Error(err)
	}
}
