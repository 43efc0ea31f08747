package lookup

import (
	"os"
	"testing"

	"hinit/internal/gendocs/reference"
)

// On a read-only root file system /etc/passwd keeps the image's ids. Root's commands work as the agent of this container all the same.
func TestRootsCommandsTakeTheIdsThatTheContainerAsksFor(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	t.Setenv("PUID", "4321")
	t.Setenv("PGID", "4322")
	cfg := reference.Default()
	cfg.Agent.User = "12345:12345"
	a, err := Agent(cfg)
	if err != nil || a.User.UID != 4321 || a.User.GID != 4322 || len(a.User.Groups) != 1 || a.User.Groups[0] != 4322 {
		t.Errorf("%+v: %v", a.User, err)
	}
}
