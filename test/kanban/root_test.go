package kanban_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestRootFollowsNoLinkOfTheAgentToABoard checks that root's board commands run as the agent's user
// and follow no link of the agent to root's files.
func TestRootFollowsNoLinkOfTheAgentToABoard(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	t.Parallel()
	dir, err := os.MkdirTemp(parentDir(), "hkr-") //nolint:usetesting // every user can enter this directory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	home, secret := dir+"/home", dir+"/secret"
	for _, err := range []error{
		os.Chmod(dir, 0o755), os.Mkdir(home, 0o755), os.WriteFile(dir+"/hinit.yaml", []byte("agent: {user: \"12345:12345\"}\n"), 0o644), os.Chown(home, 12345, 12345),
		os.WriteFile(secret, nil, 0o600), // For SQLite, an empty file is a new database.
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	board := func(args ...string) (string, error) {
		cmd := exec.Command(bin+"/hinit-kanban", args...)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/root", "HERMES_HOME=" + home, "HINIT_CONFIG=" + dir + "/hinit.yaml", "HINIT_RUNTIME_DIR=" + dir + "/none"}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := board("create", "first"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found, err := filepath.Glob(home + "/kanban.db*")
	if err != nil || len(found) == 0 {
		t.Fatalf("no board: %v", err)
	}
	for _, name := range found {
		st, err := os.Stat(name)
		if err != nil || st.Sys().(*syscall.Stat_t).Uid != 12345 {
			t.Errorf("%s belongs to %+v: %v", name, st, err)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(secret, home+"/kanban.db"); err != nil {
		t.Fatal(err)
	}
	out, err := board("create", "second")
	if text, readErr := os.ReadFile(secret); err == nil || readErr != nil || len(text) != 0 {
		t.Errorf("%v, %v: root's file has %d bytes: %s", err, readErr, len(text), strings.TrimSpace(out))
	}
}
