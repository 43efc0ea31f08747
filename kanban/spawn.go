package kanban

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// SpawnOptions say how a worker's command line and environment are made.
type SpawnOptions struct {
	Environ    []string                      // the dispatcher's environment
	ProfileDir func(profile string) string   // a profile's home; empty: there is none
	Toolsets   func(profile string) []string // nil or an empty answer: no --toolsets
	Module     []string                      // what runs the agent where there is no command for it; empty: an error
}

// reviewSkill is the skill that a worker in review has in place of the task's own.
const reviewSkill = "sdlc-review"

// DefaultCommand is the worker's command line. {agent}, {skills}, {model} and {toolsets} become as many words as there are; {profile},
// {task}, {run}, {board} and {workspace} are replaced inside words.
var DefaultCommand = []string{
	"{agent}", "-p", "{profile}", "--accept-hooks", "{skills}", "{model}", "{toolsets}", "chat", "-q", "work kanban task {task}",
}

// run prepares a claimed task and starts its worker. The second result is why that couldn't be done.
func (p *pass) run(task Task, review bool) (workspace string, why, err error) {
	workspace, branch, why := p.workspace(task)
	if why != nil {
		return "", fmt.Errorf("workspace: %w", why), nil
	}
	if workspace != task.WorkspacePath || branch != task.Branch {
		err := p.write(func(t *tx) error {
			_, err := t.exec("UPDATE tasks SET workspace_path = ?, branch_name = ? WHERE id = ? AND current_run_id = ?",
				workspace, orNull(branch), task.ID, task.CurrentRunID)
			return err
		})
		if err != nil {
			return "", nil, err
		}
		task.WorkspacePath, task.Branch = workspace, branch
	}
	p.tip(task)
	job, why := p.job(task, review)
	if why != nil {
		return "", why, nil
	}
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

// recordSpawn writes down the pid of a run's worker. A worker may have finished its task by then: the event is written all the same.
func (p *pass) recordSpawn(task string, run int64, pid int) error {
	return p.write(func(t *tx) error {
		if _, err := t.exec("UPDATE tasks SET worker_pid = ? WHERE id = ? AND current_run_id = ? AND status = 'running'", pid, task, run); err != nil {
			return err
		}
		if _, err := t.exec("UPDATE task_runs SET worker_pid = ? WHERE id = ? AND ended_at IS NULL", pid, run); err != nil {
			return err
		}
		return t.event(task, run, evSpawned, object{{"pid", pid}})
	})
}

// job makes the command line and the environment of a worker.
func (p *pass) job(task Task, review bool) (Job, error) {
	skills := task.Skills
	if review {
		skills = []string{reviewSkill}
	}
	who := strings.ToLower(strings.TrimSpace(task.Assignee))
	env := newEnviron(p.Spawn.Environ)
	agent, err := p.Spawn.agent(env)
	if err != nil {
		return Job{}, err
	}
	var options []string
	words := map[string][]string{"{agent}": agent}
	for _, skill := range skills {
		words["{skills}"] = append(words["{skills}"], "--skills", skill)
	}
	if task.ModelOverride != "" {
		words["{model}"] = []string{"-m", task.ModelOverride}
	}
	if p.Spawn.Toolsets != nil {
		if sets := slices.Sorted(slices.Values(p.Spawn.Toolsets(who))); len(sets) > 0 {
			words["{toolsets}"] = []string{"--toolsets", strings.Join(sets, ",")}
		}
	}
	options = slices.Concat(words["{skills}"], words["{model}"], words["{toolsets}"])
	template := p.Config.Command
	if len(template) == 0 {
		template = DefaultCommand
	}
	places := strings.NewReplacer("{profile}", who, "{task}", task.ID, "{run}", strconv.FormatInt(task.CurrentRunID, 10),
		"{board}", p.Store.paths.Board, "{workspace}", task.WorkspacePath)
	var argv []string
	for _, word := range template {
		switch word {
		case "{agent}", "{skills}", "{model}", "{toolsets}":
			argv = append(argv, words[word]...)
		default:
			argv = append(argv, places.Replace(word))
		}
	}
	p.worker(env, task, who)
	log := p.Store.paths.Log(task.ID)
	if err := rotate(log, p.Config.rotateBytes(), p.Config.logBackups()); err != nil {
		p.log().Warn("cannot rotate a worker's log", "path", log, "error", err)
	}
	job := Job{
		Ref: p.ref(&watched{Task: task}), Profile: who, Lock: task.ClaimLock, Argv: argv, Options: options,
		Env: env.list, Vars: env.own(), Log: log,
	}
	if st, err := os.Stat(task.WorkspacePath); err == nil && st.IsDir() {
		job.Dir = task.WorkspacePath
	}
	if task.MaxRuntimeSeconds != nil {
		job.MaxRuntime = time.Duration(*task.MaxRuntimeSeconds) * time.Second
	}
	return job, nil
}

// worker sets the variables by which the agent knows that it is a worker, and of what.
func (p *pass) worker(env *environ, task Task, who string) {
	paths := p.Store.paths
	if p.Spawn.ProfileDir != nil {
		if home := p.Spawn.ProfileDir(who); home != "" {
			env.set("HERMES_HOME", home)
		}
	}
	env.set("HERMES_PROFILE", who)
	env.setIf("HERMES_TENANT", task.Tenant)
	env.set("HERMES_KANBAN_TASK", task.ID)
	env.set("HERMES_KANBAN_WORKSPACE", task.WorkspacePath)
	if st, err := os.Stat(task.WorkspacePath); err == nil && st.IsDir() && filepath.IsAbs(task.WorkspacePath) {
		env.set("TERMINAL_CWD", task.WorkspacePath)
	}
	env.setIf("HERMES_KANBAN_BRANCH", task.Branch)
	env.set("HERMES_KANBAN_RUN_ID", strconv.FormatInt(task.CurrentRunID, 10))
	env.set("HERMES_KANBAN_CLAIM_LOCK", task.ClaimLock)
	if task.GoalMode {
		env.set("HERMES_KANBAN_GOAL_MODE", "1")
		if task.GoalMaxTurns != nil {
			env.set("HERMES_KANBAN_GOAL_MAX_TURNS", strconv.FormatInt(*task.GoalMaxTurns, 10))
		}
	}
	if task.MaxRuntimeSeconds != nil {
		limit := max(1, *task.MaxRuntimeSeconds-30)
		for _, name := range []string{"TERMINAL_TIMEOUT", "TERMINAL_MAX_FOREGROUND_TIMEOUT"} {
			if n, err := strconv.ParseInt(strings.TrimSpace(env.get(name)), 10, 64); err != nil || n < limit {
				env.set(name, strconv.FormatInt(limit, 10))
			}
		}
	}
	env.set("HERMES_KANBAN_DB", paths.DB)
	env.set("HERMES_KANBAN_WORKSPACES_ROOT", paths.Workspaces)
	env.set("HERMES_KANBAN_BOARD", paths.Board)
}

// agent finds the agent's command: HERMES_BIN, else hermes on PATH, else the module form.
func (o SpawnOptions) agent(env *environ) ([]string, error) {
	if name := strings.TrimSpace(env.get("HERMES_BIN")); name != "" {
		if strings.Contains(name, "/") {
			if abs, err := filepath.Abs(name); err == nil {
				return []string{abs}, nil
			}
		}
		if path := search(name, env.get("PATH")); path != "" {
			return []string{path}, nil
		}
	} else if path := search("hermes", env.get("PATH")); path != "" {
		return []string{path}, nil
	}
	if len(o.Module) > 0 {
		return o.Module, nil
	}
	return nil, fmt.Errorf("`hermes` executable not found on PATH: install it, or name it in HERMES_BIN")
}

// search finds a command on a path, never in the current directory.
func search(name, path string) string {
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		file := filepath.Join(dir, name)
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && unix.Access(file, unix.X_OK) == nil {
			return file
		}
	}
	return ""
}

// environ is a copy of an environment that remembers what was set in it.
type environ struct {
	list  []string
	names []string
}

func newEnviron(base []string) *environ { return &environ{list: slices.Clone(base)} }

func (e *environ) index(name string) int {
	return slices.IndexFunc(e.list, func(s string) bool { return strings.HasPrefix(s, name+"=") })
}

func (e *environ) get(name string) string {
	if i := e.index(name); i >= 0 {
		return e.list[i][len(name)+1:]
	}
	return ""
}

func (e *environ) set(name, value string) {
	value = strings.ReplaceAll(value, "\x00", "") // no process can be given one
	if i := e.index(name); i >= 0 {
		e.list[i] = name + "=" + value
	} else {
		e.list = append(e.list, name+"="+value)
	}
	e.names = append(e.names, name)
}

func (e *environ) setIf(name, value string) {
	if value != "" {
		e.set(name, value)
	}
}

// own are the variables that were set.
func (e *environ) own() []string {
	list := make([]string, len(e.names))
	for i, name := range e.names {
		list[i] = name + "=" + e.get(name)
	}
	return list
}
