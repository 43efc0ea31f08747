package kanban

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"

	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/wholefile"
)

// reviewSkill is the skill of a worker that reviews a finished task. The worker gets this skill in place of the task's own
// skills.
const reviewSkill = "sdlc-review"

// startClaimedTask starts the worker of a claimed task, and releases the task if that fails. It reports whether a worker was
// started.
func (p *boardPass) startClaimedTask(task Task, from Status) (started bool, err error) {
	why, err := p.startWorker(&task, from)
	host, is := errors.AsType[*HostError](why)
	switch {
	case err != nil:
		return false, err
	case is:
		return false, p.handleHostError(task, from, host)
	case why != nil:
		return false, p.spawnFailed(task, from, why)
	}
	p.res.Spawned = append(p.res.Spawned, SpawnedTask{task.ID, task.Assignee, task.WorkspacePath})
	return true, nil
}

// startWorker prepares a claimed task and starts its worker. It returns two errors: why says why the worker couldn't be
// started, and err is a failure of the board itself.
func (p *boardPass) startWorker(task *Task, from Status) (why, err error) {
	if why, err := p.makeWorkspace(task); why != nil || err != nil {
		return why, err
	}
	p.addScratchHint(*task)
	job := p.buildJob(*task, from)
	if p.Runner == nil {
		return fmt.Errorf("nothing here can start workers"), nil
	}
	worker, why := p.Runner.Start(p.ctx, job)
	if why != nil || worker.PID == 0 { // If the pid is unknown, the attempt ends only when its claim expires.
		return why, nil
	}
	if worker.StartTime == 0 {
		worker.StartTime = p.procs().StartTime(worker.PID)
	}
	p.recordWorker(workerRecord{Run: task.CurrentRunID, Task: task.ID, Worker: worker})
	return nil, p.recordSpawn(task.ID, task.CurrentRunID, worker.PID)
}

// restartWorker requests the worker of an attempt again, because the dispatcher died before its request or got no answer. It
// keeps the run: the runner starts only one worker for a run, even if the first request takes effect late. With a new run,
// two workers could run at the same time.
func (p *boardPass) restartWorker(w *observedTask) error {
	task, err := readTask(p.ctx, p.Store.db, w.ID, tasksWithoutBody)
	w.isHandled = true
	switch {
	// Another program has taken the task from this run.
	case errors.Is(err, ErrNoTask), err == nil && (task.Status != Running || task.CurrentRunID != w.CurrentRunID):
		p.cancelStarts([]*observedTask{w})
		return nil
	case err != nil:
		return err
	}
	_, err = p.startClaimedTask(task, w.claimedFrom)
	return err
}

// handleHostError handles an error because of which the runner's host can't start any worker now. It releases the task and
// returns an error that ends the pass. If the worker may have started in spite of the error, handleHostError keeps the claim.
func (p *boardPass) handleHostError(task Task, from Status, why *HostError) error {
	if why.MayHaveStarted {
		return fmt.Errorf("cannot start the worker of %s: %w", task.ID, why)
	}
	w := &observedTask{Task: task, claimedFrom: from, isOnThisHost: true}
	_, err := p.release(w, p.releaseForReclaim(w, Termination{}, why.Error()))
	return errors.Join(fmt.Errorf("cannot start the worker of %s: %w", task.ID, why), err)
}

// recordSpawn writes the pid of a run's worker to the board, and adds the event `spawned` even if the worker has already
// finished its task.
func (p *boardPass) recordSpawn(task string, run int64, pid int) error {
	return p.write(func(t *writeTx) {
		t.exec("UPDATE tasks SET worker_pid = ? WHERE id = ? AND current_run_id = ? AND status = 'running'", pid, task, run)
		t.exec("UPDATE task_runs SET worker_pid = ? WHERE id = ? AND ended_at IS NULL", pid, run)
		t.addEvent(task, run, "spawned", jsonObject{{"pid", pid}})
	})
}

// buildJob returns the request with which the runner starts a task's worker. It also rotates the worker's log.
func (p *boardPass) buildJob(task Task, from Status) WorkerJob {
	skills := lo.Ternary(from == Review, []string{reviewSkill}, task.Skills)
	who := strings.ToLower(strings.TrimSpace(task.Assignee))
	options := lo.FlatMap(skills, func(skill string, _ int) []string { return []string{"--skills", skill} })
	if task.ModelOverride != "" {
		options = append(options, "-m", task.ModelOverride)
	}
	if sets := p.Profiles.Toolsets(who); len(sets) > 0 {
		options = append(options, "--toolsets", strings.Join(sets, ","))
	}
	log := p.Store.paths.Log(task.ID)
	if err := rotateLog(log, p.Config.rotateBytes(), p.Config.logBackups()); err != nil {
		p.log().Warn("cannot rotate a worker's log", "path", log, "error", err)
	}
	job := WorkerJob{RunRef: p.Dispatcher.taskRef(task), Profile: who, Options: options, Log: log}
	if st, err := os.Stat(task.WorkspacePath); err == nil && st.IsDir() {
		job.Dir = task.WorkspacePath
	}
	job.EnvVars = p.workerEnv(task, who, job.Dir)
	return job
}

// workerEnv returns the environment variables that tell the agent that it is the worker of this task.
func (p *boardPass) workerEnv(task Task, profile, dir string) map[string]string {
	optional := map[string]string{"HERMES_HOME": p.Profiles.Dir(profile), "HERMES_TENANT": task.Tenant, "HERMES_KANBAN_BRANCH": task.Branch}
	if filepath.IsAbs(dir) {
		optional["TERMINAL_CWD"] = dir
	}
	if task.GoalMode {
		optional["HERMES_KANBAN_GOAL_MODE"] = "1"
		if task.GoalMaxTurns != nil {
			optional["HERMES_KANBAN_GOAL_MAX_TURNS"] = strconv.FormatInt(*task.GoalMaxTurns, 10)
		}
	}
	if task.MaxRuntimeSeconds != nil {
		limit := max(1, *task.MaxRuntimeSeconds-30)
		for _, name := range []string{"TERMINAL_TIMEOUT", "TERMINAL_MAX_FOREGROUND_TIMEOUT"} {
			if n, err := strconv.ParseInt(strings.TrimSpace(proc.Getenv(p.Environ, name)), 10, 64); err != nil || n < limit {
				optional[name] = strconv.FormatInt(limit, 10)
			}
		}
	}
	paths := p.Store.paths
	env := map[string]string{
		"HERMES_PROFILE": profile, "HERMES_KANBAN_TASK": task.ID, "HERMES_KANBAN_WORKSPACE": task.WorkspacePath,
		"HERMES_KANBAN_RUN_ID": strconv.FormatInt(task.CurrentRunID, 10), "HERMES_KANBAN_CLAIM_LOCK": task.ClaimLock,
		"HERMES_KANBAN_DB": paths.DB, "HERMES_KANBAN_WORKSPACES_ROOT": paths.Workspaces, "HERMES_KANBAN_BOARD": paths.Board,
	}
	maps.DeleteFunc(optional, func(_, value string) bool { return value == "" })
	maps.Copy(env, optional)
	for name, value := range env { // An environment variable can't contain a NUL byte.
		env[name] = strings.ReplaceAll(value, "\x00", "")
	}
	return env
}

// Git runs git in a directory and returns its output. It kills git when ctx ends. If profile is not empty, git runs in the
// isolation of that profile, because git executes programs that the repository names, such as hooks.
type Git func(ctx context.Context, profile, dir string, args ...string) (string, error)

// gitTimeout is the time limit for making a worktree.
const gitTimeout = 60 * time.Second

// Claim claims a ready task and makes its workspace, for a caller that works on the task itself, such as a person at a
// terminal. If ttl is 0, the claim is valid for the default time. Claim returns false if another worker has the task, the
// task isn't ready, or a parent isn't finished. If a parent isn't finished, the task goes back to todo. The returned task has
// no body.
func (d *Dispatcher) Claim(ctx context.Context, now time.Time, id string, ttl time.Duration) (Task, bool, error) {
	task, won, err := d.Store.claim(ctx, now, id, claimOptions{ttl: ttl, from: Ready})
	if !won || err != nil {
		return task, false, err
	}
	p := &boardPass{Dispatcher: d, ctx: ctx, now: now.Unix()}
	why, err := p.makeWorkspace(&task)
	return task, true, errors.Join(why, err)
}

// makeWorkspace makes the workspace of a claimed task and stores its path on the board. why says why the workspace can't be
// made; err is a failure of the board itself.
func (p *boardPass) makeWorkspace(task *Task) (why, err error) {
	workspace, branch, why := p.makeWorkspaceDir(*task)
	if why != nil {
		return fmt.Errorf("workspace: %w", why), nil
	}
	if workspace == task.WorkspacePath && branch == task.Branch {
		return nil, nil
	}
	task.WorkspacePath, task.Branch = workspace, branch
	return nil, p.write(func(t *writeTx) {
		t.exec("UPDATE tasks SET workspace_path = ?, branch_name = ? WHERE id = ? AND current_run_id = ?",
			workspace, nilIfZero(branch), task.ID, task.CurrentRunID)
	})
}

// makeWorkspaceDir makes the working directory of a worker, and returns its path and its git branch.
func (p *boardPass) makeWorkspaceDir(task Task) (path, branch string, err error) {
	otherwise, known := map[string]string{
		WorkspaceScratch: filepath.Join(p.Store.paths.Workspaces, task.ID), WorkspaceWorktree: p.Store.opt.Workdir, WorkspaceDir: "",
	}[task.WorkspaceKind]
	path = cmp.Or(task.WorkspacePath, otherwise)
	switch {
	// The log and the workspace of a task with such an id would be outside their directories.
	case strings.Contains(task.ID, "/") || !filepath.IsLocal(task.ID):
		return "", "", fmt.Errorf("id %q can't name a file", task.ID)
	case !known:
		return "", "", fmt.Errorf("workspace kind %q is unknown", task.WorkspaceKind)
	case path == "" && task.WorkspaceKind == WorkspaceWorktree:
		return "", "", errors.New("a task with workspace kind worktree needs a path, or the board a default_workdir")
	case path == "":
		return "", "", errors.New("a task with workspace kind dir needs a path")
	case !filepath.IsAbs(path):
		return "", "", fmt.Errorf("path %q is relative", path)
	}
	path = filepath.Clean(path) // Remove .. and double slashes, because PID 1 refuses them.
	who, isolated := strings.ToLower(strings.TrimSpace(task.Assignee)), false
	if p.IsIsolated != nil && task.WorkspaceKind != WorkspaceScratch {
		if isolated, err = p.IsIsolated(who); err != nil {
			return "", "", err
		}
	}
	switch {
	case task.WorkspaceKind == WorkspaceWorktree && isolated:
		return p.addWorktree(task, path, who)
	case task.WorkspaceKind == WorkspaceWorktree:
		return p.addWorktree(task, path, "")
	case isolated && statError(path) != nil:
		// Follow no symbolic link, because an agent could make one that points at another profile's home.
		made, _, err := fsutil.MakeNoLink(path, 0o755, nil)
		if err == nil {
			err = made.Close()
		}
		return path, task.Branch, err
	}
	return path, task.Branch, os.MkdirAll(path, 0o755)
}

// addWorktree returns the directory and the branch of the linked git worktree for a task. It makes the worktree if it doesn't
// exist. If path is itself a repository, the worktree is in its directory .worktrees. Otherwise the worktree is at path, and
// belongs to the repository that contains path. git runs in the isolation of profile, see [Git].
func (p *boardPass) addWorktree(task Task, path, profile string) (dir, branch string, err error) {
	ctx, cancel := context.WithTimeout(p.ctx, gitTimeout)
	defer cancel()
	branch = cmp.Or(task.Branch, "wt/"+task.ID)
	repo, target := path, path
	if st, err := os.Lstat(filepath.Join(path, ".git")); err == nil && st.IsDir() {
		target = filepath.Join(path, ".worktrees", task.ID) // The path itself is a repository.
	} else {
		if err == nil { // The path is a linked worktree, whose .git is a file.
			return path, branch, nil
		}
		repo = filepath.Dir(path)
		for errors.Is(statError(repo), fs.ErrNotExist) {
			repo = filepath.Dir(repo)
		}
	}
	if _, err := os.Lstat(filepath.Join(target, ".git")); err == nil {
		return target, branch, nil
	}
	args := []string{"worktree", "add", "-b", branch, target}
	if _, err := p.Git(ctx, profile, repo, "rev-parse", "--verify", "--quiet", "refs/heads/"+branch); err == nil {
		args = []string{"worktree", "add", target, branch}
	}
	if out, err := p.Git(ctx, profile, repo, args...); err != nil {
		return "", "", fmt.Errorf("git worktree add %s: %w: %s", target, err, truncate(strings.TrimSpace(out), 300))
	}
	return target, branch, nil
}

func statError(path string) error {
	_, err := os.Stat(path)
	return err
}

// addScratchHint adds an event that explains that the task's scratch workspace is removed when the task is done. Only the
// first such task of an installation gets the event.
func (p *boardPass) addScratchHint(task Task) {
	file := p.Store.paths.ScratchHintFile
	if task.WorkspaceKind != WorkspaceScratch || file == "" {
		return
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return // The hint was given before, or can't be recorded.
	}
	_ = f.Close()
	err = p.write(func(t *writeTx) {
		t.addEvent(task.ID, task.CurrentRunID, "tip_scratch_workspace", jsonObject{{
			"message", "this task works in a scratch directory, which is removed when it is done; " +
				"keep files with workspace kind dir or worktree",
		}})
	})
	if err != nil {
		p.log().Debug("cannot write the hint about scratch workspaces", "error", err)
	}
}

func (c Config) rotateBytes() int64 { return cmp.Or(max(c.RotateBytes, 0), DefaultRotateBytes) }

func (c Config) logBackups() int { return max(*cmp.Or(c.LogBackups, new(DefaultLogBackups)), 0) }

// rotateLog renames a log that is larger than size bytes, and keeps at most backups old logs. It also makes the directory of the
// log.
func rotateLog(log string, size int64, backups int) error {
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return err
	}
	st, err := os.Stat(log)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.Size() <= size {
		return nil
	}
	if err != nil {
		return err
	}
	if backups == 0 {
		return os.Remove(log)
	}
	for n := backups - 1; n >= 1; n-- {
		if err := os.Rename(fmt.Sprintf("%s.%d", log, n), fmt.Sprintf("%s.%d", log, n+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Rename(log, log+".1")
}

// maxTailBytes is the maximum number of bytes that TailLog returns. It protects this process: a worker can make its log larger
// than the memory, for instance with a sparse file.
const maxTailBytes = 64 << 20

// TailLog returns the end of a task's log: at most limit bytes, without an incomplete first line. If limit is 0, it returns
// the whole log, or the last 64 MiB of a longer log.
func (p Paths) TailLog(task string, limit int64) ([]byte, error) {
	f, err := wholefile.Open(p.Log(task), os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	limit = min(cmp.Or(max(limit, 0), maxTailBytes), maxTailBytes) // A limit of 0 means the maximum.
	st, err := f.Stat()
	if err != nil || limit >= st.Size() {
		data, failed := io.ReadAll(io.LimitReader(f, limit))
		return data, errors.Join(err, failed)
	}
	// Also read the byte before the tail. If it is a line end, the tail begins with a complete line.
	data, err := io.ReadAll(io.NewSectionReader(f, st.Size()-limit-1, limit+1))
	if _, whole, found := bytes.Cut(data, []byte("\n")); found || err != nil {
		return whole, err
	}
	return data[min(1, len(data)):], nil
}

// RemovedCounts counts what [Store.RemoveOldEventsAndLogs] has removed.
type RemovedCounts struct {
	Events int64 `json:"events"`
	Logs   int   `json:"logs"`
}

// RemoveOldEventsAndLogs removes the events of finished tasks that are older than events, and the log files that are older than
// logs.
func (s *Store) RemoveOldEventsAndLogs(ctx context.Context, now time.Time, events, logs time.Duration) (c RemovedCounts, err error) {
	err = s.write(ctx, now, func(t *writeTx) error {
		c.Events = t.exec(`DELETE FROM task_events WHERE created_at < ?
			AND task_id IN (SELECT id FROM tasks WHERE status IN ('done', 'archived'))`, now.Add(-events).Unix())
		return nil
	})
	if err != nil {
		return c, err
	}
	entries, err := os.ReadDir(s.paths.Logs)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	for _, e := range entries {
		info, failed := e.Info()
		if failed != nil || !info.Mode().IsRegular() || !workerLogPattern.MatchString(e.Name()) || !info.ModTime().Before(now.Add(-logs)) {
			continue
		}
		if os.Remove(filepath.Join(s.paths.Logs, e.Name())) == nil {
			c.Logs++
		}
	}
	return c, err
}

// workerLogPattern matches the names of workers' logs and of their rotated copies, so that RemoveOldEventsAndLogs removes
// nothing else.
var workerLogPattern = regexp.MustCompile(`\.log(\.\d+)?$`)
