package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHostSideProfile makes a profile on the host's side of a bind mount: it can be managed without a restart, and one
// removed there is let go.
func TestHostSideProfile(t *testing.T) {
	parallel(t)
	data := t.TempDir()
	if err := os.Chmod(data, 0o777); err != nil {
		t.Fatal(err)
	}
	c := start(t, setup{options: []string{"-v", data + ":/opt/data"}}, "gateway", "run")
	// What hermes has made there must be gone before the test's directory can be removed by anybody but root.
	t.Cleanup(func() { c.exec("sh", "-c", "rm -rf /opt/data/* /opt/data/.[!.]*") })
	c.awaitUp("gateway-default")
	before, _ := c.status().find("gateway-default")

	home := filepath.Join(data, "profiles", "coder")
	mkdirs := func(dirs ...string) {
		t.Helper()
		for _, dir := range dirs {
			if err := os.Mkdir(dir, 0o777); err != nil && !os.IsExist(err) {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
		}
	}
	mkdirs(filepath.Join(data, "profiles"), home)
	if err := os.WriteFile(filepath.Join(home, "SOUL.md"), []byte("From the host.\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	c.awaitStates(map[string]string{"gateway-default": "up", "gateway-coder": "down"})
	c.must("hinit", "start", "coder")

	// The log of each profile is there for the host to read.
	log, err := os.ReadFile(filepath.Join(data, "logs", "gateways", "coder", "current"))
	if err != nil || !strings.Contains(string(log), "gateway of profile coder is running") {
		t.Errorf("the log on the host: %v %s", err, log)
	}
	state, err := os.ReadFile(filepath.Join(home, "gateway_state.json"))
	if err != nil || !strings.Contains(string(state), `"desired_state":"running"`) {
		t.Errorf("the state on the host: %v %s", err, state)
	}

	if err := os.RemoveAll(home); err != nil && os.Getuid() == 0 {
		t.Fatal(err)
	} else if err != nil {
		c.must("rm", "-rf", "/opt/data/profiles/coder")
	}
	c.awaitStates(map[string]string{"gateway-default": "up"})
	if left := c.matching("-p coder gateway"); len(left) > 0 {
		t.Errorf("its gateway lives: %+v", left)
	}
	if after, _ := c.status().find("gateway-default"); after.PID != before.PID || after.Restarts != 0 {
		t.Errorf("the other gateway was touched: %+v, then %+v", before, after)
	}
}

// TestReadOnlyVolume has data that nobody can write: the container boots, says so, and runs its command.
func TestReadOnlyVolume(t *testing.T) {
	parallel(t)
	volume := mustDocker(t, "volume", "create", "--label", runLabel)
	c := start(t, setup{options: []string{"-v", volume + ":/opt/data:ro"}}, "sleep", "1000")
	c.awaitStates(map[string]string{"gateway-default": "down"})
	warnings := strings.Join(c.status().Init.Warnings, "\n")
	for _, text := range []string{"cannot make directory", "cannot write the boot log", "read-only file system"} {
		if _, stderr := c.logs(); !strings.Contains(warnings, text) || !strings.Contains(stderr, text) {
			t.Errorf("not said: %s; status has %q", text, warnings)
		}
	}
	if len(c.matching("^sleep 1000")) != 1 {
		t.Errorf("the command does not run: %+v", c.processes())
	}
	// Nothing can be made intent of, so nothing must be said to be done.
	if r := c.exec("hinit", "start", "--timeout", "3s", "default"); r.code != 1 || r.err == "" {
		t.Errorf("want exit code 1 and a reason: %v", r)
	}
}
