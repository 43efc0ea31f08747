package e2e

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// minimal returns the minimum capabilities as docker run options, from
// docs/how-to/run-as-non-root-or-read-only.md.
func minimal(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/how-to/run-as-non-root-or-read-only.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`docker run (--cap-drop ALL (?:--cap-add [A-Z_]+ )+)hinit-demo`).FindSubmatch(page)
	if line == nil {
		t.Fatal("the page has no command")
	}
	return strings.Fields(string(line[1]))
}

// chownCapabilities lists the additional capabilities that hinit needs to change owners of foreign files.
var chownCapabilities = []string{"--cap-add", "CHOWN", "--cap-add", "DAC_OVERRIDE"}

// TestMinimalCapabilities checks all features with the capabilities that the documentation calls the minimum.
func TestMinimalCapabilities(t *testing.T) {
	parallel(t)
	c := start(t, setup{options: slices.Concat(minimal(t), []string{"--security-opt", "no-new-privileges"}), files: threeProfiles()}, "gateway", "run")
	c.awaitUp("gateway-default", "gateway-coder")
	c.awaitHealthy()
	for _, step := range [][]string{
		{"hermes", "config", "set", "k", "v"},
		{"hinit", "profile", "create", "extra"},
		{"hinit", "start", "extra"},
		{"/command/s6-svok", "/run/service/gateway-extra"},
		{"hinit", "restart", "coder"},
		{"hinit", "stop", "coder"},
		{"hinit", "profile", "delete", "--yes", "extra"},
	} {
		c.mustExec(step...)
	}
	if found := c.matching("-p (coder|extra) gateway"); len(found) > 0 {
		t.Errorf("stopped, and left %+v", found)
	}
	c.awaitOwned("hermes", "/opt/data")
	c.checkLoggedOnce(
		"no CAP_CHOWN: files cannot be given to the agent's user", "no CAP_DAC_OVERRIDE: directories closed to root cannot be repaired",
		noPrivs,
	)
	if w := c.status().Init.Warnings; len(w) != 3 {
		t.Errorf("want three warnings: %q", w)
	}
	mustDocker(t, "restart", c.id)
	c.awaitStates(map[string]string{"gateway-default": "up", "gateway-coder": "down", "gateway-writer": "down"})
	c.stop()
	if code := c.inspect("{{.State.ExitCode}}"); code != "0" {
		t.Errorf("docker stop: exit code %s", code)
	}
}

// checkLoggedOnce fails unless each text is once in docker logs and among the status warnings.
func (c *container) checkLoggedOnce(texts ...string) {
	c.t.Helper()
	c.awaitLines(texts...)
	out, stderr := c.logs()
	warnings := c.status().Init.Warnings
	for _, text := range texts {
		if n := strings.Count(out+stderr, text); n != 1 {
			c.t.Errorf("said %d times: %s", n, text)
		}
		if !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, text) }) {
			c.t.Errorf("the status does not have %q: %q", text, warnings)
		}
	}
}

// foreign is a script that creates a data volume of root.
const foreign = `mkdir -p profiles/coder/deep cron
touch SOUL.md profiles/coder/SOUL.md profiles/coder/deep/file cron/file
echo '{"desired_state":"running"}' >profiles/coder/gateway_state.json
chmod 600 profiles/coder/gateway_state.json
chmod 700 profiles/coder/deep`

// TestGivingCapabilities checks the repair of root's volume with the minimum and the capabilities
// in chownCapabilities.
func TestGivingCapabilities(t *testing.T) {
	parallel(t)
	volume := newVolume(t, foreign)
	c := start(t, setup{options: slices.Concat(minimal(t), chownCapabilities, []string{"-e", "PUID=1000", "-v", volume + ":/opt/data:nocopy"})}, "gateway", "run")
	c.awaitUp("gateway-default", "gateway-coder")
	c.awaitOwned("1000", "/opt/data/profiles", "/opt/data/cron")
	c.awaitRepair()
	if warnings := c.status().Init.Warnings; len(warnings) > 0 {
		t.Errorf("warnings: %q", warnings)
	}
	eventually(t, settle, func() error {
		if r := c.exec("test", "-e", "/opt/data/.hinit-repair-pending"); r.code == 0 {
			return errors.New("the repair is done, and the note that it is under way is still there")
		}
		return nil
	})
}

// TestNoCapabilitiesAsRoot checks that all features work without capabilities if the agent is root.
func TestNoCapabilitiesAsRoot(t *testing.T) {
	parallel(t)
	volume := newVolume(t, foreign)
	c := create(t, setup{options: []string{
		"--cap-drop", "ALL", "-e", "HERMES_ALLOW_ROOT_GATEWAY=1", "-v", volume + ":/opt/data:nocopy",
	}}, "gateway", "run")
	c.writeEntries(entry{name: "/etc/hinit/"}, entry{name: "/etc/hinit/hinit.yaml", content: "agent: {user: root}\n"})
	c.start()
	c.awaitUp("gateway-default", "gateway-coder")
	c.mustExec("hinit", "restart", "coder")
	c.mustExec("hinit", "stop", "coder")
	if warnings := c.status().Init.Warnings; len(warnings) > 0 {
		t.Errorf("warnings: %q", warnings)
	}
}

// checkTimeline checks that the log and the status list each boot step with its duration.
func checkTimeline(t *testing.T, c *container) {
	want := []string{"control", "s6", "home", "ownership", "directories", "seeds", "bootstrap", "browser", "wait", "services", "profiles", "other"}
	var got []string
	c.awaitStderr("[hinit] boot: ") // The boot ends a moment after the gateway is up.
	for _, step := range c.status().Init.Boot {
		got = append(got, step.Name)
		if step.Error != "" {
			t.Errorf("%s has failed: %s", step.Name, step.Error)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the steps are %q, want %q", got, want)
	}
	line := `boot: \d+\.\d{3}s \(` + strings.Join(want[2:], ` \d+ms, `) + ` \d+ms; meanwhile control \d+ms, s6 \d+ms\)\n`
	c.awaitOutput(func(_, stderr string) error {
		if !matches(`(?m)^\[hinit\] `+line, stderr) {
			return fmt.Errorf("no timeline in %s", stderr)
		}
		return nil
	})
	if out := c.mustExec("hinit", "status", "-v"); !matches(`(?m)^`+line, out) {
		t.Errorf("no timeline in %s", out)
	}
}
