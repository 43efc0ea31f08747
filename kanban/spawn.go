package kanban

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"hinit/internal/proc"
)

// SpawnOptions say what a worker is told.
type SpawnOptions struct {
	Environ    []string                      // the dispatcher's environment
	ProfileDir func(profile string) string   // a profile's home; empty: there is none
	Toolsets   func(profile string) []string // nil or an empty answer: no --toolsets
}

// reviewSkill is the skill that a worker in review has in place of the task's own.
const reviewSkill = "sdlc-review"

// run prepares a claimed task and starts its worker. The second result is why that couldn't be done.
func (p *pass) run(task Task, review bool) (workspace string, why, err error) {
	if why, err := p.place(&task); why != nil || err != nil {
		return "", why, err
	}
	workspace = task.WorkspacePath
	p.tip(task)
	job := p.job(task, review)
	if p.Runner == nil {
		return "", fmt.Errorf("nothing here can start workers"), nil
	}
	if err := p.Store.point("claimed"); err != nil {
		return "", nil, err
	}
	p.remember(entry{Run: task.CurrentRunID, Task: task.ID})
	if err := p.Store.point("remembered"); err != nil {
		return "", nil, err
	}
	worker, why := p.Runner.Start(p.ctx, job)
	host := (*HostError)(nil)
	if errors.As(why, &host) {
		return "", nil, p.hostFailed(task, review, host)
	}
	if why != nil {
		return "", why, nil
	}
	if err := p.Store.point("started"); err != nil {
		return "", nil, err
	}
	if worker.PID == 0 {
		return workspace, nil, nil // only the claim's time watches over it
	}
	if worker.Start == 0 {
		worker.Start = p.procs().Start(worker.PID)
	}
	p.remember(entry{Run: task.CurrentRunID, Task: task.ID, Worker: worker})
	return workspace, nil, p.recordSpawn(task.ID, task.CurrentRunID, worker.PID)
}

// startAgain asks once more for the worker of an attempt that has none: the dispatcher died before it asked, or got no answer. The attempt keeps
// its name, under which the runner starts one worker, however late an earlier request takes effect. Another attempt could meet that worker.
func (p *pass) startAgain(w *watched) error {
	task, err := taskByID(p.ctx, p.Store.db, w.ID)
	w.settled = true
	if errors.Is(err, ErrNoTask) || err == nil && (task.Status != Running || task.CurrentRunID != w.CurrentRunID) { // reclaimed since this pass looked
		p.withdraw([]*watched{w})
		return nil
	}
	if err != nil {
		return err
	}
	workspace, why, err := p.run(task, w.review)
	if err == nil && why != nil {
		return p.spawnFailed(task, w.review, why)
	}
	if err == nil {
		p.res.Spawned = append(p.res.Spawned, Spawned{Task: w.ID, Assignee: task.Assignee, Workspace: workspace})
	}
	return err
}

// hostFailed ends a pass in which no worker can be started.
func (p *pass) hostFailed(task Task, review bool, why *HostError) error {
	if why.Unsure {
		return fmt.Errorf("cannot start the worker of %s: %w", task.ID, why)
	}
	_, err := p.reclaim(&watched{Task: task, review: review, local: true}, Termination{}, why.Error())
	return errors.Join(fmt.Errorf("cannot start the worker of %s: %w", task.ID, why), err)
}

// recordSpawn writes down the pid of a run's worker. A worker may have finished its task by then: the event is written all the same.
func (p *pass) recordSpawn(task string, run int64, pid int) error {
	return p.write(func(t *tx) error {
		t.exec("UPDATE tasks SET worker_pid = ? WHERE id = ? AND current_run_id = ? AND status = 'running'", pid, task, run)
		t.exec("UPDATE task_runs SET worker_pid = ? WHERE id = ? AND ended_at IS NULL", pid, run)
		t.event(task, run, "spawned", object{{"pid", pid}})
		return nil
	})
}

// job says what the worker of a task is. The runner decides its command line.
func (p *pass) job(task Task, review bool) Job {
	skills := task.Skills
	if review {
		skills = []string{reviewSkill}
	}
	who := strings.ToLower(strings.TrimSpace(task.Assignee))
	var options []string
	for _, skill := range skills {
		options = append(options, "--skills", skill)
	}
	if task.ModelOverride != "" {
		options = append(options, "-m", task.ModelOverride)
	}
	if p.Spawn.Toolsets != nil {
		if sets := p.Spawn.Toolsets(who); len(sets) > 0 {
			options = append(options, "--toolsets", strings.Join(sets, ","))
		}
	}
	log := p.Store.paths.Log(task.ID)
	if err := rotate(log, p.Config.rotateBytes(), p.Config.logBackups()); err != nil {
		p.log().Warn("cannot rotate a worker's log", "path", log, "error", err)
	}
	job := Job{Ref: p.Dispatcher.ref(task), Profile: who, Options: options, Log: log}
	if st, err := os.Stat(task.WorkspacePath); err == nil && st.IsDir() {
		job.Dir = task.WorkspacePath
	}
	job.Vars = p.worker(task, who, job.Dir)
	return job
}

// worker returns the variables by which the agent knows that it is a worker, and of what.
func (p *pass) worker(task Task, who, dir string) map[string]string {
	optional := map[string]string{"HERMES_TENANT": task.Tenant, "HERMES_KANBAN_BRANCH": task.Branch}
	if filepath.IsAbs(dir) {
		optional["TERMINAL_CWD"] = dir
	}
	if p.Spawn.ProfileDir != nil {
		optional["HERMES_HOME"] = p.Spawn.ProfileDir(who)
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
			if n, err := strconv.ParseInt(strings.TrimSpace(proc.Getenv(p.Spawn.Environ, name)), 10, 64); err != nil || n < limit {
				optional[name] = strconv.FormatInt(limit, 10)
			}
		}
	}
	paths := p.Store.paths
	env := map[string]string{
		"HERMES_PROFILE": who, "HERMES_KANBAN_TASK": task.ID, "HERMES_KANBAN_WORKSPACE": task.WorkspacePath,
		"HERMES_KANBAN_RUN_ID": strconv.FormatInt(task.CurrentRunID, 10), "HERMES_KANBAN_CLAIM_LOCK": task.ClaimLock,
		"HERMES_KANBAN_DB": paths.DB, "HERMES_KANBAN_WORKSPACES_ROOT": paths.Workspaces, "HERMES_KANBAN_BOARD": paths.Board,
	}
	maps.DeleteFunc(optional, func(_, value string) bool { return value == "" })
	maps.Copy(env, optional)
	for name, value := range env { // no process can be given such a byte
		env[name] = strings.ReplaceAll(value, "\x00", "")
	}
	return env
}
