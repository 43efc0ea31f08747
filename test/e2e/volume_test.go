package e2e

import (
	"errors"
	"fmt"
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
	// Files of the agent's user must be gone before another user than root can remove the test's directory.
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
	eventually(t, settle, func() error { // the gateway is up, and may not have written the line yet
		log, err := os.ReadFile(filepath.Join(data, "logs", "gateways", "coder", "current"))
		return errors.Join(err, has(string(log), "gateway of profile coder is running"))
	})
	eventually(t, settle, func() error { // the gateway writes this file too, and hinit puts back what is lost by that
		state, err := os.ReadFile(filepath.Join(home, "gateway_state.json"))
		return errors.Join(err, has(string(state), `"desired_state":"running"`))
	})

	eventually(t, settle, func() error { // what is written there meanwhile is one more to remove
		if os.Getuid() == 0 {
			return os.RemoveAll(home)
		}
		if r := c.exec("rm", "-rf", "/opt/data/profiles/coder"); r.code != 0 {
			return errors.New(r.String())
		}
		return nil
	})
	c.awaitStates(map[string]string{"gateway-default": "up"})
	if left := c.matching("-p coder gateway"); len(left) > 0 {
		t.Errorf("its gateway lives: %+v", left)
	}
	if after, _ := c.status().find("gateway-default"); after.PID != before.PID || after.Restarts != 0 {
		t.Errorf("the other gateway was touched: %+v, then %+v", before, after)
	}
}

// TestReadOnlyVolume has data that can't be written: the container boots, says so, and runs its command.
func TestReadOnlyVolume(t *testing.T) {
	parallel(t)
	volume := mustDocker(t, "volume", "create", "--label", runLabel)
	c := start(t, setup{options: []string{"-v", volume + ":/opt/data:ro"}}, "sleep", "1000")
	c.awaitStates(map[string]string{"gateway-default": "down"})
	said := []string{"is read-only; mount it without :ro"}
	c.awaitStderr(said...) // the gateway is known a little before
	if err := has(strings.Join(c.status().Init.Warnings, "\n"), said...); err != nil {
		t.Errorf("the status: %v", err)
	}
	eventually(t, settle, func() error { // it is started last
		if len(c.matching("^sleep 1000")) != 1 {
			return fmt.Errorf("the command does not run: %+v", c.processes())
		}
		return nil
	})
	// Nothing can be made intent of, so nothing must be said to be done.
	if r := c.exec("hinit", "start", "--timeout", "3s", "default"); r.code != 1 || r.err == "" {
		t.Errorf("want exit code 1 and a reason: %v", r)
	}
}
