package kanban_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hinit/internal/testkit"
)

// TestDispatchWithoutPID1 checks that the dispatch command starts workers itself if hinit is not
// PID 1.
func TestDispatchWithoutPID1(t *testing.T) {
	t.Parallel() // this test mostly waits, so it runs beside others
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
	board("create", "first", "--assignee", "coder", "--body", "await "+home+"/release")
	if out := board("dispatch", "--local"); !strings.Contains(out, "Spawned:      1\n") {
		t.Fatalf("%s", out)
	}
	if out := board("list", "--status", "running"); !strings.Contains(out, "first") {
		t.Errorf("right after the command:\n%s", out)
	}
	if err := os.WriteFile(home+"/release", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); !strings.Contains(board("list", "--status", "done"), "first"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the worker has not finished:\n%s", board("list"))
		}
	}
}

// TestWorktrees checks that a task with workspace kind worktree gets a git worktree, with and
// without hinit as PID 1.
func TestWorktrees(t *testing.T) {
	t.Parallel() // this test mostly waits, so it runs beside others
	git, err := exec.LookPath("git")
	if err != nil {
		testkit.SkipOrFail(t, err.Error())
	}
	home := t.TempDir()
	repo := home + "/repo"
	for _, args := range [][]string{{"init", "-q", repo}, {"-C", repo, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "--allow-empty", "-m", "first"}} {
		if out, err := exec.Command(git, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if err := os.MkdirAll(filepath.Join(home, "profiles/coder"), 0o755); err != nil {
		t.Fatal(err)
	}
	board := func(args ...string) (string, error) {
		cmd := exec.Command(bin+"/hinit-kanban", args...)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + home, "HERMES_HOME=" + home, "HERMES_BIN=" + bin + "/example-agent", "HINIT_RUNTIME_DIR=" + home + "/none"}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	create := func(workspace string) string {
		t.Helper()
		out, err := board("create", "x", "--assignee", "coder", "--workspace", workspace)
		id, _, found := strings.Cut(strings.TrimPrefix(out, "Created "), " ")
		if err != nil || !found {
			t.Fatalf("%v: %s", err, out)
		}
		return id
	}
	id := create("worktree:" + repo)
	out, err := board("claim", id)
	if _, failed := os.Stat(repo + "/.worktrees/" + id + "/.git"); err != nil || failed != nil || !strings.Contains(out, "Workspace: "+repo+"/.worktrees/"+id) {
		t.Errorf("%v, %v: %s", err, failed, out)
	}
	id = create("worktree:" + repo)
	out, err = board("dispatch", "--local")
	if _, failed := os.Stat(repo + "/.worktrees/" + id + "/.git"); err != nil || failed != nil || !strings.Contains(out, id+"  ->  coder") {
		t.Errorf("%v, %v: %s", err, failed, out)
	}
	id = create("worktree:" + home + "/no-repository/below")
	if out, err = board("claim", id); err == nil || !strings.Contains(out, "git worktree add") || !strings.Contains(out, "not a git repository") {
		t.Errorf("%v: %s", err, out)
	}
}
