package lookup

import (
	"os"
	"testing"

	"hinit/internal/gendocs/reference"
)

// Root's commands must use the ids of PUID and PGID for the agent, also where /etc/passwd has other ids. On a read-only
// root file system that file keeps the ids of the image.
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
