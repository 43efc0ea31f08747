package kanban

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestTheBoardRanOutOfMemoryAfterAProfileWroteItsConfiguration checks that a binary value in a
// configuration is decoded only once, not for each YAML alias.
func TestTheBoardRanOutOfMemoryAfterAProfileWroteItsConfiguration(t *testing.T) {
	dir := t.TempDir()
	writeTestFile(t, filepath.Join(dir, "profiles/alpha/config.yaml"), []byte("big: &big !!binary "+strings.Repeat("AAAA", 1<<18)+"\nplatform_toolsets: {cli: ["+strings.Repeat("*big,", 500)+"]}\n"))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	sets := ProfileDirs(dir).Toolsets("alpha")
	runtime.ReadMemStats(&after)
	if taken := (after.TotalAlloc - before.TotalAlloc) >> 20; taken > 100 || sets != nil {
		t.Errorf("reading a configuration of a megabyte took %d MB, and it enables %d toolsets", taken, len(sets))
	}
}

// TestSpawn checks the rows of the contract about the start of workers, section 28.8.
func TestSpawn(t *testing.T) {
	t.Parallel()
	spawn := func(t *testing.T, prepare func(b *testBoard) Task) (*testBoard, string, WorkerJob) {
		t.Helper()
		b := newBoard(t)
		n := prepare(b)
		n.Assignee = "alpha"
		id := b.create(n)
		r := b.tick()
		if len(b.runner.jobs) != 1 {
			t.Fatalf("%+v", r)
		}
		return b, id, b.runner.jobs[0]
	}
	t.Run("pins", func(t *testing.T) {
		b, id, job := spawn(t, func(*testBoard) Task { return Task{Tenant: "acme", GoalMode: true, GoalMaxTurns: new(int64(7))} })
		task := b.task(id)
		for name, want := range map[string]string{
			"HERMES_PROFILE": "alpha", "HERMES_TENANT": "acme", "HERMES_KANBAN_TASK": id, "HERMES_KANBAN_WORKSPACE": task.WorkspacePath,
			"TERMINAL_CWD": task.WorkspacePath, "HERMES_KANBAN_RUN_ID": fmt.Sprint(task.CurrentRunID), "HERMES_KANBAN_CLAIM_LOCK": "host:4242.1",
			"HERMES_KANBAN_GOAL_MODE": "1", "HERMES_KANBAN_GOAL_MAX_TURNS": "7", "HERMES_KANBAN_DB": b.paths.DB,
			"HERMES_KANBAN_WORKSPACES_ROOT": b.paths.Workspaces, "HERMES_KANBAN_BOARD": "default",
		} {
			if got := job.EnvVars[name]; got != want {
				t.Errorf("%s=%q, not %q", name, got, want)
			}
		}
		for _, name := range []string{"HERMES_HOME", "HERMES_KANBAN_BRANCH", "TERMINAL_TIMEOUT", "TERMINAL_MAX_FOREGROUND_TIMEOUT", "PATH"} {
			if got, set := job.EnvVars[name]; set {
				t.Errorf("%s=%q is set", name, got)
			}
		}
		if job.Log != b.paths.Log(id) || job.Dir != task.WorkspacePath || job.Run != task.CurrentRunID {
			t.Errorf("%+v", job)
		}
		if p := b.lastPayload(id, "spawned"); p["pid"] != float64(task.WorkerPID) || b.lastRun(id).WorkerPID != task.WorkerPID {
			t.Errorf("%v", p)
		}
	})
	t.Run("options", func(t *testing.T) {
		_, _, job := spawn(t, func(b *testBoard) Task {
			b.dispatcher.Profiles = fixedProfile{toolsets: []string{"web", "file"}}
			return Task{Skills: []string{"writing", " review ", "writing"}, ModelOverride: "large"}
		})
		checkEqual(t, "options", job.Options, "--skills", "writing", "--skills", "review", "-m", "large", "--toolsets", "web,file")
	})
	t.Run("no automatic skill", func(t *testing.T) {
		_, _, job := spawn(t, func(*testBoard) Task { return Task{} })
		checkEqual(t, "options", job.Options)
	})
	t.Run("the profile's own toolsets", func(t *testing.T) {
		dir := t.TempDir()
		p := ProfileDirs(dir)
		for text, want := range map[string]string{
			"platform_toolsets: {cli: [web, file]}\ntoolsets: [kanban]": "file kanban web",
			"toolsets: [kanban]":            "", // This key configures the toolsets of the gateway, not of a worker.
			"platform_toolsets: {cli: web}": "",
			"platform_toolsets: {cli: [web]}\nmcp_servers: {a: {url: x}, b: {enabled: false}}":           "a kanban web",
			"platform_toolsets: {cli: [web, b]}\nmcp_servers: {a: {url: x}, b: {url: y}}":                "b kanban web",
			"platform_toolsets: {cli: [web, no_mcp]}\nmcp_servers: {a: {url: x}}":                        "kanban web",
			"platform_toolsets: {cli: [web, file, kanban]}\nagent: {disabled_toolsets: [file, browser]}": "kanban web",
		} {
			writeTestFile(t, filepath.Join(dir, "profiles/alpha/config.yaml"), []byte(text))
			checkEqual(t, text, p.Toolsets("alpha"), strings.Fields(want)...)
		}
		checkEqual(t, "no profile", p.Toolsets("gamma"))
	})
	for had, want := range map[string]string{"180": "3570", "7200": "", "": "3570", "never": "3570"} {
		t.Run("timeout "+had, func(t *testing.T) {
			_, _, job := spawn(t, func(b *testBoard) Task {
				b.dispatcher.Environ = append(b.dispatcher.Environ, "TERMINAL_TIMEOUT="+had)
				return Task{MaxRuntimeSeconds: new(int64(3600))}
			})
			if got := job.EnvVars["TERMINAL_TIMEOUT"]; got != want {
				t.Errorf("TERMINAL_TIMEOUT=%s", got)
			}
			if got := job.EnvVars["TERMINAL_MAX_FOREGROUND_TIMEOUT"]; got != "3570" {
				t.Errorf("TERMINAL_MAX_FOREGROUND_TIMEOUT=%s", got)
			}
		})
	}
	t.Run("the dispatcher's environment is left alone", func(t *testing.T) {
		b, _, _ := spawn(t, func(b *testBoard) Task {
			b.dispatcher.Environ = []string{"TERMINAL_TIMEOUT=180", "HERMES_PROFILE=me"}
			return Task{MaxRuntimeSeconds: new(int64(3600))}
		})
		checkEqual(t, "environment", b.dispatcher.Environ, "TERMINAL_TIMEOUT=180", "HERMES_PROFILE=me")
	})
	t.Run("the profile's home", func(t *testing.T) {
		for _, home := range []string{"/opt/data/profiles/alpha", ""} {
			_, _, job := spawn(t, func(b *testBoard) Task {
				b.dispatcher.Profiles = fixedProfile{home: home}
				return Task{}
			})
			if got := job.EnvVars["HERMES_HOME"]; got != home {
				t.Errorf("HERMES_HOME=%q", got)
			}
		}
	})
	t.Run("TERMINAL_CWD needs an existing directory", func(t *testing.T) {
		b := newBoard(t)
		p := &boardPass{Dispatcher: b.dispatcher, res: &TickResult{}, ctx: t.Context()}
		if got, set := p.buildJob(Task{ID: "t_1", WorkspacePath: "/no/such/place"}, Ready).EnvVars["TERMINAL_CWD"]; set {
			t.Errorf("%q", got)
		}
	})
	t.Run("a value with a NUL", func(t *testing.T) {
		_, _, job := spawn(t, func(*testBoard) Task { return Task{Tenant: "a\x00b"} })
		if got := job.EnvVars["HERMES_TENANT"]; got != "ab" {
			t.Errorf("%q", got)
		}
	})
	t.Run("a board with a name keeps its places", func(t *testing.T) {
		boards := &Boards{Root: t.TempDir(), Env: testEnv{}.get}
		p, err := boards.Paths("team-a")
		must(t, err)
		base := filepath.Join(boards.Root, "kanban/boards/team-a")
		if p.DB != base+"/kanban.db" || p.Log("t_1") != base+"/logs/t_1.log" || p.Workspaces != base+"/workspaces" {
			t.Errorf("%+v", p)
		}
	})
}

func TestLogRotation(t *testing.T) {
	t.Parallel()
	for backups, want := range map[int][]string{0: nil, 1: {"3"}, 3: {"3", "2", "1"}} {
		log := filepath.Join(t.TempDir(), "logs", "t_1.log")
		must(t, rotateLog(log, 10, backups)) // rotateLog must create the directory.
		for n := 1; n <= 3; n++ {
			must(t, os.WriteFile(log, []byte(strings.Repeat(fmt.Sprint(n), 11)), 0o644))
			must(t, rotateLog(log, 10, backups))
		}
		for i := range 4 {
			data, _ := os.ReadFile(fmt.Sprintf("%s.%d", log, i+1))
			if i < len(want) && !strings.HasPrefix(string(data), want[i]) || i >= len(want) && data != nil {
				t.Errorf("%d backups: .%d is %q", backups, i+1, data)
			}
		}
		must(t, os.WriteFile(log, []byte("short"), 0o644))
		must(t, rotateLog(log, 10, backups))
		if data, _ := os.ReadFile(log); string(data) != "short" {
			t.Errorf("a short log became %q", data)
		}
	}
}

func TestTailLog(t *testing.T) {
	t.Parallel()
	p := Paths{Logs: t.TempDir()}
	must(t, os.WriteFile(p.Log("t_1"), []byte("first\nsecond\nthird\n"), 0o644))
	for limit, want := range map[int64]string{0: "first\nsecond\nthird\n", 100: "first\nsecond\nthird\n", 6: "third\n", 8: "third\n", 13: "second\nthird\n", 3: "rd\n"} {
		got, err := p.TailLog("t_1", limit)
		if limit == 3 {
			want = "" // The last 3 bytes contain only a part of a line.
		}
		if err != nil || string(got) != want {
			t.Errorf("%d: %q %v", limit, got, err)
		}
	}
}

// TestALogWithAHoleIsNotReadWhole checks that a log command reads only the end of a log, which may
// be a huge sparse file.
func TestALogWithAHoleIsNotReadWhole(t *testing.T) {
	t.Parallel()
	p := Paths{Logs: t.TempDir()}
	must(t, os.WriteFile(p.Log("t_1"), nil, 0o644))
	must(t, os.Truncate(p.Log("t_1"), 1<<40))
	for _, limit := range []int64{0, 1 << 50} {
		if got, err := p.TailLog("t_1", limit); err != nil || len(got) > maxTailBytes {
			t.Errorf("%d: %d bytes, %v", limit, len(got), err)
		}
	}
}

func runGit(ctx context.Context, _, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestWorkspaces(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not there")
	}
	b := newBoard(t)
	b.dispatcher.Git = runGit
	repo := filepath.Join(t.TempDir(), "repo")
	must(t, os.Mkdir(repo, 0o755))
	for _, args := range [][]string{{"init", "-q"}, {"commit", "-q", "--allow-empty", "-m", "x"}} {
		if out, err := runGit(t.Context(), "", repo, args...); err != nil {
			t.Fatal(out, err)
		}
	}
	other := filepath.Join(repo, "trees", "mine")
	fixed := filepath.Join(t.TempDir(), "work")
	byRepo := b.create(Task{Assignee: "alpha", WorkspaceKind: WorkspaceWorktree, WorkspacePath: repo})
	byPath := b.create(Task{Assignee: "alpha", WorkspaceKind: WorkspaceWorktree, WorkspacePath: other, Branch: "feature"})
	dir := b.create(Task{Assignee: "alpha", WorkspaceKind: WorkspaceDir, WorkspacePath: fixed})
	scratch := b.createReady("alpha")
	r := b.tick()
	want := map[string]string{
		byRepo: filepath.Join(repo, ".worktrees", byRepo), byPath: other, dir: fixed, scratch: filepath.Join(b.paths.Workspaces, scratch),
	}
	for _, s := range r.Spawned {
		if st, err := os.Stat(s.Workspace); s.Workspace != want[s.Task] || err != nil || !st.IsDir() {
			t.Errorf("%+v, not %s (%v)", s, want[s.Task], err)
		}
		if got := b.task(s.Task).WorkspacePath; got != s.Workspace {
			t.Errorf("the row has %q", got)
		}
	}
	if len(r.Spawned) != 4 {
		t.Fatalf("%+v", r)
	}
	for id, branch := range map[string]string{byRepo: "wt/" + byRepo, byPath: "feature"} {
		if got := b.task(id).Branch; got != branch {
			t.Errorf("branch %q, not %q", got, branch)
		}
		out, err := runGit(t.Context(), "", want[id], "rev-parse", "--abbrev-ref", "HEAD")
		if strings.TrimSpace(out) != branch || err != nil {
			t.Errorf("%s %v", out, err)
		}
		// A second attempt must use the same worktree.
		p := &boardPass{Dispatcher: b.dispatcher, ctx: t.Context(), res: &TickResult{}}
		if path, _, err := p.makeWorkspaceDir(b.task(id)); err != nil || path != want[id] {
			t.Errorf("again: %s %v", path, err)
		}
	}
	for _, id := range []string{byRepo, byPath, dir, scratch} {
		_, err := b.Complete(t.Context(), b.now, id, Completion{})
		must(t, err)
		if _, err := os.Stat(want[id]); (err == nil) != (id != scratch) {
			t.Errorf("%s after completion: %v", want[id], err)
		}
	}
}

func TestScratchStaysWhileChildrenWork(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	parent := b.createReady("alpha")
	child := b.create(Task{Assignee: "alpha"}, parent)
	b.tick()
	path := b.task(parent).WorkspacePath
	_, err := b.Complete(t.Context(), b.now, parent, Completion{})
	must(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Errorf("removed before the child could read it: %v", err)
	}
	b.tick()
	_, err = b.Complete(t.Context(), b.now, child, Completion{})
	must(t, err)
	if _, err := os.Stat(path); err == nil {
		t.Error("it is still there")
	}
	// A path outside the managed directory must never be removed.
	outside := t.TempDir()
	for _, path := range []string{outside, b.paths.Workspaces, b.paths.Workspaces + "/../kanban.db", "/"} {
		id := b.createReady("alpha")
		b.execSQL("UPDATE tasks SET workspace_path = ? WHERE id = ?", path, id)
		_, err := b.Complete(t.Context(), b.now, id, Completion{})
		must(t, err)
	}
	for _, path := range []string{outside, b.paths.Workspaces, b.paths.DB} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

type fixedProfile struct {
	home     string
	toolsets []string
}

func (fixedProfile) Exists(string) (bool, error) { return true, nil }

func (p fixedProfile) Dir(string) string { return p.home }

func (p fixedProfile) Toolsets(string) []string { return p.toolsets }
