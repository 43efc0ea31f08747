package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// minimal are the capabilities that hinit needs as root, as docs/how-to/run-as-non-root-or-read-only.md has them. It becomes the
// agent's user with the first two and ends its processes with the third.
var minimal = []string{"--cap-drop", "ALL", "--cap-add", "SETUID", "--cap-add", "SETGID", "--cap-add", "KILL"}

// giving are those needed besides to give away files that are not the agent's.
var giving = []string{"--cap-add", "CHOWN", "--cap-add", "DAC_OVERRIDE"}

// TestMinimalCapabilities drives all features with what the documentation calls the minimum.
func TestMinimalCapabilities(t *testing.T) {
	parallel(t)
	c := start(t, setup{options: slices.Concat(minimal, []string{"--security-opt", "no-new-privileges"}), files: three()}, "gateway", "run")
	c.awaitUp("gateway-default", "gateway-coder")
	c.awaitHealthy()
	for _, step := range [][]string{
		{"hermes", "config", "set", "k", "v"},
		{"hinit", "profile", "create", "extra"},
		{"hinit", "start", "extra"},
		{"hinit", "restart", "coder"},
		{"hinit", "stop", "coder"},
		{"hinit", "profile", "delete", "--yes", "extra"},
	} {
		c.must(step...)
	}
	if found := c.matching("-p (coder|extra) gateway"); len(found) > 0 {
		t.Errorf("stopped, and left %+v", found)
	}
	c.awaitOwned("hermes", "/opt/data")
	c.saysOnce(
		"no CAP_CHOWN: files cannot be given to the agent's user", "no CAP_DAC_OVERRIDE: directories closed to root cannot be repaired",
		"no_new_privs is set: sudo and other set-user-ID programs do not work inside",
	)
	mustDocker(t, "restart", c.id)
	c.awaitStates(map[string]string{"gateway-default": "up", "gateway-coder": "down", "gateway-writer": "down"})
	c.stop()
	if code := c.inspect("{{.State.ExitCode}}"); code != "0" {
		t.Errorf("docker stop: exit code %s", code)
	}
}

// saysOnce fails unless each text is in docker logs once, and among the warnings of the status.
func (c *container) saysOnce(texts ...string) {
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

// foreign is a data volume in which everything is root's.
const foreign = `cd /volume
mkdir -p profiles/coder/deep cron
touch SOUL.md profiles/coder/SOUL.md profiles/coder/deep/file cron/file
echo '{"desired_state":"running"}' >profiles/coder/gateway_state.json
chmod 600 profiles/coder/gateway_state.json
chmod 700 profiles/coder/deep`

// TestGivingCapabilities is the minimum and what it takes to repair a volume that is root's.
func TestGivingCapabilities(t *testing.T) {
	parallel(t)
	volume := newVolume(t, foreign)
	c := start(t, setup{options: slices.Concat(minimal, giving, []string{"-e", "PUID=1000", "-v", volume + ":/opt/data:nocopy"})}, "gateway", "run")
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

// TestRootlessSemantics cannot change an owner, as root in a rootless container often can't: it is said once, what is the
// agent's works, and what isn't is left.
func TestRootlessSemantics(t *testing.T) {
	parallel(t)
	volume := newVolume(t, foreign+"\nchmod 777 . cron; touch auth.json state.db .env")
	c := start(t, setup{options: slices.Concat(minimal, []string{"-v", volume + ":/opt/data:nocopy"})}, "gateway", "run")
	c.awaitUp("gateway-default")
	c.awaitLines("failed (rootless container?) — continuing", "[stage2] Setup complete")
	out, stderr := c.logs()
	if n := strings.Count(out+stderr, "failed (rootless container?) — continuing"); n != 1 {
		t.Errorf("want one warning, got %d", n)
	}
	c.must("test", "-O", "/opt/data/auth.json")
	c.must("hermes", "profile", "list")
	sameOwners(t, c.owners("/opt/data/sessions", "/opt/data/logs/gateways"),
		map[string]string{"/opt/data/sessions": "hermes:hermes 755", "/opt/data/logs/gateways": "hermes:hermes 755"})
}

// TestNoCapabilitiesAsRoot may not become the agent's user at all: nothing runs as root in its place, and the line says what
// to do. Where the agent is root anyway, everything works.
func TestNoCapabilitiesAsRoot(t *testing.T) {
	parallel(t)
	r := runOnce(t, []string{"--cap-drop", "ALL"}, "echo", "the CMD was run")
	if r.code != 126 || strings.Contains(r.out, "the CMD was run") {
		t.Errorf("want exit code 126 and no CMD: %v", r)
	}
	for _, text := range []string{"root may not become uid 10000 (no CAP_SETUID and CAP_SETGID", "start with --user 10000"} {
		if strings.Count(r.err, text) != 1 {
			t.Errorf("want %q once: %v", text, r)
		}
	}

	volume := newVolume(t, foreign)
	c := create(t, setup{options: []string{
		"--cap-drop", "ALL", "-e", "HERMES_ALLOW_ROOT_GATEWAY=1", "-v", volume + ":/opt/data:nocopy",
	}}, "gateway", "run")
	c.lay(entry{name: "/etc/hinit/"}, entry{name: "/etc/hinit/hinit.yaml", content: "agent: {user: root}\n"})
	c.start()
	c.awaitUp("gateway-default", "gateway-coder")
	c.must("hinit", "restart", "coder")
	c.must("hinit", "stop", "coder")
	if warnings := c.status().Init.Warnings; len(warnings) > 0 {
		t.Errorf("warnings: %q", warnings)
	}
}

// TestModes has one line for each thing that a container cannot do.
func TestModes(t *testing.T) {
	parallel(t)
	const (
		readOnly = "the root file system is read-only: /etc/passwd keeps the ids of the image"
		noRun    = "/run cannot be written: the control socket is elsewhere, and there are no s6 directories; to have them, start with --tmpfs /run"
		noPrivs  = "no_new_privs is set: sudo and other set-user-ID programs do not work inside"
		asAgent  = "started as uid 10000: no change of user or of file owners, and HERMES_UID and HERMES_GID have no effect"
	)
	all := []string{readOnly, noRun, noPrivs, asAgent}
	for _, tt := range []struct {
		options []string
		said    []string
	}{
		{nil, nil},
		{[]string{"--security-opt", "no-new-privileges"}, []string{noPrivs}},
		{[]string{"--read-only", "--tmpfs", "/run"}, []string{readOnly}},
		{[]string{"--read-only"}, []string{readOnly, noRun}},
		{[]string{"--user", "10000:10000"}, []string{asAgent}},
		{[]string{"--read-only", "--user", "hermes", "--security-opt", "no-new-privileges"}, all},
	} {
		r := runOnce(t, tt.options, "sh", "-c", "touch /opt/data/x && hinit status >/dev/null && echo works")
		if r.code != 0 || r.last() != "works" {
			t.Errorf("%q: %v", tt.options, r)
		}
		for _, line := range all {
			want := 0
			if slices.Contains(tt.said, line) {
				want = 1
			}
			if got := strings.Count(r.err, "[hinit] warning: "+line); got != want {
				t.Errorf("with %q %q is said %d times, want %d", tt.options, line, got, want)
			}
		}
	}
}

// TestTimeline has each step of the boot with its duration in the log and in the status.
func TestTimeline(t *testing.T) {
	parallel(t)
	c := start(t, setup{}, "gateway", "run")
	c.awaitUp("gateway-default")
	want := []string{"control", "s6", "home", "ownership", "directories", "seeds", "bootstrap", "browser", "wait", "services", "profiles", "other"}
	var got []string
	c.awaitStderr("[hinit] boot: ") // the boot ends after the gateway is up
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
	if out := c.must("hinit", "status", "-v"); !matches(`(?m)^`+line, out) {
		t.Errorf("no timeline in %s", out)
	}
}
