package boot

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"hinit/internal/account"
	"hinit/internal/gendocs/reference"
	"hinit/internal/testkit"
)

func TestIdentityOfOthers(t *testing.T) {
	t.Setenv("PUID", "99")
	cfg := reference.Default()
	cfg.Agent.User = "ghost"
	if a, err := resolveAgent(cfg, 1000); err != nil || a.InPasswd {
		t.Errorf("a missing user without root is %+v (%v)", a, err)
	}
	if _, err := resolveAgent(cfg, 0); !errors.Is(err, account.ErrNotFound) {
		t.Errorf("a missing user is %v", err)
	}
	cfg.Agent.User = "10000:10000"
	a, err := resolveAgent(cfg, 10000)
	if err != nil || a.User.UID != 10000 || len(a.LogLines) != 1 || !strings.Contains(a.LogLines[0].Text, "PUID has no effect") {
		t.Errorf("without root: %+v, %v", a, err)
	}
}

// Without hinit-tools the agent still gets the ids of PUID and PGID, /etc stays unchanged, and a warning names the missing
// program.
func TestABootWithoutItsProgramHasTheIdsThatWereAskedFor(t *testing.T) {
	testkit.NeedRoot(t)
	t.Setenv("PUID", "99")
	cfg := reference.Default()
	cfg.Agent.User = "10000:10000"
	a, err := resolveAgent(cfg, 0)
	if err != nil || a.User.UID != 99 || len(a.LogLines) != 1 || !a.LogLines[0].Warning || !strings.Contains(a.LogLines[0].Text, "install the hinit-tools of this version") {
		t.Errorf("%+v, %v", a, err)
	}
}

// hinit-tools must not start if the agent already has the requested ids and is in the group of the Docker socket.
func TestASettledAgentNeedsNoProgram(t *testing.T) {
	testkit.NeedRoot(t)
	t.Setenv("PUID", "10000")
	path := t.TempDir() + "/docker.sock"
	l, err := net.Listen("unix", path)
	must(t, err)
	defer l.Close()
	must(t, os.Chown(path, 0, 998))
	was := DockerSockets
	defer func() { DockerSockets = was }()
	DockerSockets = []string{t.TempDir(), path}
	a := Agent{User: account.User{Name: "hermes", UID: 10000, GID: 10000, Groups: []uint32{10000, 105}}}
	if a.idsAreCurrent() {
		t.Error("it is not in the group of the socket")
	}
	a.User.Groups = append(a.User.Groups, 998)
	if settled := a.idsAreCurrent(); !settled && !hasGraphics() || len(a.LogLines) != 1 || !strings.Contains(a.LogLines[0].Text, "hermes already in group 998 for "+path) {
		t.Errorf("settled is %v, it says %+v", settled, a.LogLines)
	}
	t.Setenv("PUID", "99")
	if a.idsAreCurrent() {
		t.Error("it has another uid")
	}
}

func hasGraphics() bool {
	devices, _ := os.ReadDir(GraphicsDir)
	return len(devices) > 0
}
