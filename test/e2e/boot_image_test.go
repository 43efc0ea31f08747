package e2e

import (
	"strings"
	"testing"
)

// needNewest is need for the image of a newer agent.
func needNewest(t *testing.T) string {
	t.Helper()
	parallel(t)
	image, err := newestImage()
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// TestUnknownBootStepsAreNamedAndCanBeRun has a boot script that does what hinit does not know: the doctor names it, and with
// HINIT_BOOT=image it runs in place of hinit's steps.
func TestUnknownBootStepsAreNamedAndCanBeRun(t *testing.T) {
	image := needNewest(t)
	out, stderr := said(t, image, nil, "sh", "-c", "hinit doctor; ls /opt/data")
	if err := has(out, "version 0.99.0", "HINIT_BOOT=image", `cp /opt/hermes/whisper-weights "$HERMES_HOME/whisper-weights"`); err != nil {
		t.Error(err)
	}
	if strings.Contains(out, `mkdir -p "$HERMES_HOME"`) || strings.Contains(out, "\nwhisper-weights\n") {
		t.Errorf("a command that hinit knows is called unknown, or the image's script has run: %s", out)
	}
	if strings.Contains(stderr, "dependency environment") {
		t.Errorf("the image's script has run: %s", stderr)
	}

	out, stderr = said(t, image, []string{"-e", "HINIT_BOOT=image"}, "sh", "-c", "hinit doctor; stat -c '%n %U' /opt/data/whisper-weights; ls -d /opt/data/logs/gateways /opt/data/config.yaml; true")
	if err := has(out, "its own boot script prepares", "/opt/data/whisper-weights hermes\n", "/opt/data/logs/gateways\n"); err != nil {
		t.Error(err)
	}
	if strings.Contains(out, "config.yaml") { // this image's script does not make it
		t.Errorf("hinit's steps have run too: %s", out)
	}
	if err := has(stderr, "[stage2] dependency environment: base", "reconcile: profile=default"); err != nil {
		t.Error(err)
	}
}

// TestSubcommandsReachTheAgent runs a subcommand of the agent that has the name of a program.
func TestSubcommandsReachTheAgent(t *testing.T) {
	image := needHermes(t)
	out, _ := said(t, image, nil, "login")
	if !strings.HasSuffix(out, "hermes login: this agent has no accounts\n") {
		t.Errorf("login is not the agent's: %q", out)
	}
	if out, _ := said(t, image, nil, "sh", "-c", "echo ok"); out != "ok\n" {
		t.Errorf("sh is not the shell: %q", out)
	}
}
