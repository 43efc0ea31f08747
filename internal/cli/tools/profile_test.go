package tools

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/profiles"
)

// If two commands delete the same profile at the same time, the later one must say that there is no such profile.
func TestASecondDeletionReportsThatTheProfileIsGone(t *testing.T) {
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, "profiles", "other"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "profiles", "other", "SOUL.md"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var output strings.Builder
	m := &profileManager{Terminal: &cli.Terminal{Err: &output}, action: "delete profile", store: profiles.Open(home, nil, "SOUL.md")}
	gone := m.removeTemporary(profiles.Profile{Name: "gone", Home: filepath.Join(home, "profiles", "gone")})
	if code := m.printMissing("gone", gone); code != cmdline.ExitUnknown || !strings.Contains(output.String(), "there is no such profile") {
		t.Errorf("code %d, %s", code, output.String())
	}
	output.Reset()
	if code := m.printMissing("other", &fs.PathError{Op: "stat", Path: "x", Err: fs.ErrNotExist}); code != cmdline.ExitFailed || !strings.Contains(output.String(), "stat x") {
		t.Errorf("a file of a profile is missing: code %d, %s", code, output.String())
	}
}

// Root's command must end although the agent stops its own command, which hinit runs, by SIGSTOP. Root's command waited until
// somebody pressed Ctrl-C.
func TestAStoppedCommandOfTheAgentHeldUpRootForEver(t *testing.T) {
	timeout := agentCommandTimeout
	agentCommandTimeout = 100 * time.Millisecond
	defer func() { agentCommandTimeout = timeout }()
	m := &profileManager{cfg: &config.Config{Home: t.TempDir()}}
	ended := make(chan error, 1)
	go func() {
		_, err := m.runAgentCommand([]string{"/bin/sh", "-c", "kill -STOP $$"}, nil)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "was ended by SIGKILL (hinit kills it after 100ms)") {
			t.Errorf("the error is %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it still waits")
	}
}
