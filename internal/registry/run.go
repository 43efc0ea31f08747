package registry

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/runs"
)

// StartRun runs a command of the key runs in hinit.yaml once, for a client of the control API. byRoot means that the client is
// root. service is the service of the client, or "". If the profile has its own user, a client other than root may pass only
// the variables and options of the task board. With a variable such as BASH_ENV, the client could otherwise run its own code as
// that user. With free text as the task, it could instruct the agent of that profile.
func (r *Registry) StartRun(ctx context.Context, ask client.RunRequest, byRoot bool, service string) (client.Run, error) {
	refuse := func(kind client.Kind, format string, args ...any) (client.Run, error) {
		return client.Run{}, &client.Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
	}
	cfg := r.options.Config()
	template, known := cfg.Runs[ask.Template]
	if !known {
		return refuse(client.KindUnknown, "no command %q may be run; add it to hinit.yaml, below the key \"runs\"", ask.Template)
	}
	if why := runs.CheckTag(ask.Tag); why != "" {
		return refuse(client.KindBadRequest, "tag is %q; %s", ask.Tag, why)
	}
	if err := r.options.CheckMayRun(); err != nil {
		return client.Run{}, err
	}
	home := ""
	if ask.Profile != "" {
		p, err := r.options.Store.Profile(ask.Profile)
		if err != nil {
			return refuse(client.KindBadRequest, "%v", err)
		}
		home = p.Home
		if cfg.IsolationOf(p.Name).Mode == config.IsolationUser && !byRoot {
			delete(ask.Env, "HERMES_HOME")
			if why := findNonBoardInput(ask); why != "" {
				return refuse(client.KindBadRequest, "profile %q has a user of its own, and %s; only root may pass that", p.Name, why)
			}
		}
	}
	output, err := openRunLog(ask.Log, r.options.Actor)
	if err != nil {
		return client.Run{}, err
	}
	caller, grace := "", cmp.Or(time.Duration(ask.GraceMS)*time.Millisecond, template.Grace)
	// only runs of services of hinit.yaml have a separate limit, because the agent can make any number of other services
	if !byRoot {
		caller, grace = cmp.Or(cfg.Services[service].Name, "other clients"), min(grace, template.Grace)
	}
	return r.options.Logs.Runs.Start(ctx, runs.StartRequest{
		Tag: ask.Tag, Template: ask.Template, Profile: ask.Profile, Spec: r.options.Units.RunSpec(cfg, template, ask, home), Output: output, Log: ask.Log,
		TimeLimit: time.Duration(ask.LimitMS) * time.Millisecond, Grace: grace, Caller: caller,
	})
}

// boardVars are the variables that the dispatcher of the task board sets for a worker.
var boardVars = []string{
	"HERMES_PROFILE", "HERMES_TENANT", "TERMINAL_CWD", "TERMINAL_TIMEOUT", "TERMINAL_MAX_FOREGROUND_TIMEOUT",
	"HERMES_KANBAN_TASK", "HERMES_KANBAN_WORKSPACE", "HERMES_KANBAN_RUN_ID", "HERMES_KANBAN_CLAIM_LOCK", "HERMES_KANBAN_DB",
	"HERMES_KANBAN_WORKSPACES_ROOT", "HERMES_KANBAN_BOARD", "HERMES_KANBAN_BRANCH", "HERMES_KANBAN_GOAL_MODE", "HERMES_KANBAN_GOAL_MAX_TURNS",
}

// boardOptions are the options of the agent that the dispatcher of the task board passes, each with a value.
var boardOptions = []string{"--skills", "-m", "--toolsets"}

// findNonBoardInput returns a task, variable or option of a request that the dispatcher of the task board never sends, or "". A
// task of the board is "t_" and hexadecimal digits (contract kanban, table tasks).
func findNonBoardInput(ask client.RunRequest) string {
	if digits, isID := strings.CutPrefix(ask.Task, "t_"); ask.Task != "" && !isID || strings.Trim(digits, "0123456789abcdef") != "" {
		return fmt.Sprintf("the request has the task %q", ask.Task)
	}
	for name := range ask.Env {
		if !slices.Contains(boardVars, name) {
			return fmt.Sprintf("the request sets the variable %q", name)
		}
	}
	for option := range slices.Chunk(ask.Options, 2) {
		if !slices.Contains(boardOptions, option[0]) || len(option) < 2 || strings.HasPrefix(option[1], "-") {
			return fmt.Sprintf("the request has the option %q", option)
		}
	}
	return ""
}

// openRunLog opens the file for a run's output, or returns nil if path is "". It acts as the agent's user, because the agent
// may have put a link there.
func openRunLog(path string, agent *fsutil.Actor) (*os.File, error) {
	if path == "" {
		return nil, nil
	}
	return blocking.Get(blocking.Volume, func() (*os.File, error) {
		return fsutil.WithParentDir(path, agent, func(d *fsutil.Dir, name string) (*os.File, error) { return d.OpenAppend(name, 0o644) })
	})
}
