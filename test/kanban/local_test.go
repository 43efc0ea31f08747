package kanban_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Without hinit as PID 1 the command starts the workers itself. They go on when it has ended.
func TestDispatchWithoutPID1(t *testing.T) {
	t.Parallel() // it waits
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, "profiles/coder"), 0o755); err != nil {
		t.Fatal(err)
	}
	board := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(bin+"/hinit-kanban", args...)
		cmd.Env = []string{
			"PATH=" + bin + ":/usr/bin:/bin", "HOME=" + home, "HERMES_HOME=" + home, "HERMES_BIN=" + bin + "/example-agent",
			"HINIT_RUNTIME_DIR=" + home + "/none", "EXAMPLE_KANBAN_TOOL=" + bin + "/hinit-kanban",
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	board("create", "first", "--assignee", "coder", "--body", "sleep 500ms")
	if out := board("dispatch", "--local"); !strings.Contains(out, "Spawned:      1\n") {
		t.Fatalf("%s", out)
	}
	if out := board("list", "--status", "running"); !strings.Contains(out, "first") {
		t.Errorf("right after the command:\n%s", out)
	}
	for deadline := time.Now().Add(patience); !strings.Contains(board("list", "--status", "done"), "first"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the worker has not finished:\n%s", board("list"))
		}
	}
}
