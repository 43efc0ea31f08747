package program

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"hinit/internal/cmdline"
	"hinit/internal/testkit"
	"hinit/sandbox"
	"hinit/sandbox/daemon"
)

// TestRootWithoutTheService checks that a sandbox command of root's is refused in a home of the agent, and while the
// enabled service is not up. Otherwise an agent could stop the service, and the command would run the agent's .profile
// as root of the host.
func TestRootWithoutTheService(t *testing.T) {
	testkit.NeedRoot(t)
	dir := t.TempDir()
	t.Setenv("HERMES_HOME", dir)
	t.Setenv("HINIT_SANDBOX_SOCKET", dir+"/none.sock")
	t.Setenv("DOCKER_HOST", "unix://"+dir+"/no-engine.sock")
	ask := func() string {
		t.Helper()
		var errs bytes.Buffer
		if code := (Program{sandbox.Docker}).dispatch(t.Context(), daemon.Request{Args: []string{"ls"}}, daemon.Streams{Out: io.Discard, Err: &errs}); code != cmdline.Unreachable {
			t.Errorf("code %d", code)
		}
		return errs.String()
	}
	if said := ask(); !strings.Contains(said, "no container engine answers") {
		t.Errorf("with a home of root's: %s", said)
	}
	if err := os.Chown(dir, 10000, 10000); err != nil {
		t.Fatal(err)
	}
	if said := ask(); !strings.Contains(said, "as root: it belongs to user 10000") {
		t.Errorf("with the agent's home: %s", said)
	}
	t.Setenv("HINIT_SANDBOX", "1")
	if said := ask(); !strings.Contains(said, "their service is not up; start it with: hinit start sandbox") {
		t.Errorf("with a service that is not up: %s", said)
	}
}
