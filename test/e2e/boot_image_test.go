package e2e

import (
	"slices"
	"strings"
	"testing"
)

// requireNewest returns the image of a newer agent, or skips the test without an engine.
func requireNewest(t *testing.T) string {
	t.Helper()
	requireImage(t)
	go newestImage()
	parallel(t)
	image, err := newestImage()
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// TestUnknownBootStepsAreNamedAndCanBeRun checks that hinit doctor names an unknown step of the
// boot script, and that HINIT_BOOT=image runs the script.
func TestUnknownBootStepsAreNamedAndCanBeRun(t *testing.T) {
	image := requireNewest(t)
	out, stderr := runAndCapture(t, image, nil, "sh", "-c", "hinit doctor; ls /opt/data")
	if err := checkContains(out, "version 0.99.0", "HINIT_BOOT=image", `cp /opt/hermes/whisper-weights "$HERMES_HOME/whisper-weights"`); err != nil {
		t.Error(err)
	}
	if strings.Contains(out, `mkdir -p "$HERMES_HOME"`) || strings.Contains(out, "cat >&2") || strings.Contains(out, "\nwhisper-weights\n") {
		t.Errorf("a command that hinit knows is called unknown, or the image's script has run: %s", out)
	}
	if strings.Contains(stderr, "dependency environment") {
		t.Errorf("the image's script has run: %s", stderr)
	}

	out, stderr = runAndCapture(t, image, []string{"-e", "HINIT_BOOT=image"}, "sh", "-c", "hinit doctor; stat -c '%n %U' /opt/data/whisper-weights; ls -d /opt/data/logs/gateways /opt/data/config.yaml; true")
	if err := checkContains(out, "its own boot script prepares", "/opt/data/whisper-weights hermes\n", "/opt/data/logs/gateways\n"); err != nil {
		t.Error(err)
	}
	if strings.Contains(out, "config.yaml") { // The script of this image creates no config.yaml.
		t.Errorf("hinit's steps have run too: %s", out)
	}
	if err := checkContains(stderr, "[stage2] dependency environment: base", "reconcile: profile=default"); err != nil {
		t.Error(err)
	}
}

// TestSubcommandsReachTheAgent checks that a subcommand of the agent with the name of a program runs the agent.
func TestSubcommandsReachTheAgent(t *testing.T) {
	image := requireHermes(t)
	out, _ := runAndCapture(t, image, nil, "login")
	if !strings.HasSuffix(out, "hermes login: this agent has no accounts\n") {
		t.Errorf("login is not the agent's: %q", out)
	}
}

// TestTheNewestImageEndsAFailedBoot checks a boot script that refuses a read-only data volume. The
// newest images then stop the container by default.
func TestTheNewestImageEndsAFailedBoot(t *testing.T) {
	newest := requireNewest(t)
	july, err := hermesImage()
	if err != nil {
		t.Fatal(err)
	}
	readOnly := []string{"--tmpfs", "/opt/data:ro"}
	broken := []string{"-e", "HINIT_BOOT=image", "--mount", "type=volume,destination=/opt/data/plugins/broken"}
	obey := func(value string, options []string) []string {
		return append([]string{"-e", "S6_BEHAVIOUR_IF_STAGE2_FAILS=" + value}, options...)
	}
	for _, tt := range []struct {
		name, image string
		options     []string
		ends        bool
		said        string
	}{
		{"newest, read-only", newest, readOnly, true, "is read-only"},
		{"newest, refused by its script", newest, broken, true, "refusing startup"},
		{"newest, told to continue", newest, obey("0", readOnly), false, "is read-only"},
		{"newest, told to warn", newest, obey("1", broken), false, "S6_BEHAVIOUR_IF_STAGE2_FAILS is 1"},
		{"july, told to end", july, obey("2", readOnly), true, "is read-only"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			parallel(t)
			r := docker(dockerRunArgs([]string{"run", "--rm"}, tt.options, tt.image, "echo", "the CMD")...)
			if ended := r.code != 0 && !strings.Contains(r.out, "the CMD") && strings.Contains(r.err, "fatal: stopping the container"); ended != tt.ends || !strings.Contains(r.err, tt.said) {
				t.Errorf("ended: %v, want %v: %v", ended, tt.ends, r)
			}
		})
	}
}

// TestAReadOnlyVolumeIsReportedOnce checks that a read-only data volume causes one warning with the
// right reason.
func TestAReadOnlyVolumeIsReportedOnce(t *testing.T) {
	image := requireHermes(t)
	for name, mount := range map[string]string{"of root": "/opt/data:ro", "of another user": "/opt/data:ro,uid=1999"} {
		r := docker("run", "--rm", "--label", runLabel, "--tmpfs", mount, image, "true")
		messages := slices.DeleteFunc(linesWith(r.err, "[stage2] Warning", "[hinit] warning"), func(line string) bool { // The agent's own scripts fail on a read-only volume.
			return strings.Contains(line, ".py failed")
		})
		if r.code != 0 || len(messages) != 1 || !strings.Contains(messages[0], "mount it without :ro") {
			t.Errorf("%s: %q: %v", name, messages, r)
		}
	}
}

// linesWith returns the lines that contain one of the words.
func linesWith(text string, words ...string) (out []string) {
	for line := range strings.Lines(text) {
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) }) {
			out = append(out, line)
		}
	}
	return out
}

// TestAContainerOfTheNewestImage checks two files of the newest image: the login profile and the
// finish script.
func TestAContainerOfTheNewestImage(t *testing.T) {
	c := start(t, setup{image: requireNewest(t), files: profile("default", "running", "exit_now=0")}, "sleep", "1000")
	if out := c.mustExec("sh", "-l", "-c", "id -u; echo $PATH"); out != "0\n"+rootPath {
		t.Errorf("a login shell of root's: %q", out)
	}
	if out := mustDocker(t, "exec", "--user", "hermes", c.id, "sh", "-l", "-c", "echo $PATH"); !strings.HasPrefix(out, "/opt/hermes/bin:/opt/hermes/.venv/bin:/opt/data/.local/bin:") {
		t.Errorf("a login shell of the agent's: %q", out)
	}
	c.await("gateway-default", "parked, as the finish script says", func(s service) bool {
		return s.State == "parked" && s.LastExit != nil && s.LastExit.Cause == "clean"
	})
}
