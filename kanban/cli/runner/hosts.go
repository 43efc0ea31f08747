package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/internal/runs"
	onehost "hinit/internal/runs/local"
	"hinit/kanban"
)

// Template is the command of hinit.yaml that works on a task.
const Template = config.KanbanWorker

// ByPID1 returns a runner whose workers are started by the PID 1 that a client talks to. It returns the client's error.
func ByPID1(ctx context.Context, c *client.Client) (*Runner, error) { return newRunner(ctx, pid1{c}) }

// pid1 is the host of a container.
type pid1 struct{ *client.Client }

func (h pid1) start(ctx context.Context, tag string, job kanban.Job) (client.Run, error) {
	return h.StartRun(ctx, client.RunRequest{
		Template: Template, Tag: tag, Profile: job.Profile, Task: job.Task, Options: job.Options, Env: job.Vars, Dir: job.Dir, Log: job.Log,
	})
}

func (h pid1) stop(ctx context.Context, id string) (client.Run, error) { return h.StopRun(ctx, id) }

func (h pid1) list(ctx context.Context) ([]client.Run, error) { return h.Runs(ctx) }

func (h pid1) follow(ctx context.Context, tell func(client.Run)) error {
	return h.FollowRuns(ctx, func(r client.Run) error {
		tell(r)
		return nil
	})
}

// Local returns a runner that supervises its workers in this process, with the command that hinit.yaml has for them. It may be called
// once in a process.
func Local(ctx context.Context, cfg *config.Config) (*Runner, error) {
	book, err := onehost.Book()
	if err != nil {
		return nil, err
	}
	return newRunner(ctx, local{book, cfg})
}

// local is the host of a machine without hinit as PID 1.
type local struct {
	book *runs.Book
	cfg  *config.Config
}

// agentName is the agent's command where the one that is configured isn't there (contract, section 21.1).
const agentName = "hermes"

// Agent finds the agent's command: the configured one, else the one of its usual name. A program without a directory is looked for on PATH,
// but never in the current directory.
func Agent(configured string) (string, error) {
	dirs := slices.DeleteFunc(filepath.SplitList(os.Getenv("PATH")), func(dir string) bool { return !filepath.IsAbs(dir) })
	for _, name := range []string{configured, agentName} {
		path, err := proc.LookPath(name, []string{"PATH=" + strings.Join(dirs, ":")})
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err == nil && unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("`%s` executable not found on PATH, and there is no %s: install it, or name it in HERMES_BIN", agentName, configured)
}

func (h local) start(ctx context.Context, tag string, job kanban.Job) (client.Run, error) {
	template := h.cfg.Runs[Template]
	argv := h.cfg.ExpandRun(template.Command, map[string]string{"profile": job.Profile, "task": job.Task, "profile_home": job.Vars["HERMES_HOME"]}, job.Options)
	program, err := Agent(argv[0])
	if err != nil {
		return client.Run{}, err
	}
	argv[0] = program
	output, err := openLog(job.Log)
	if err != nil {
		return client.Run{}, err
	}
	return h.book.Start(ctx, runs.Order{
		Tag: tag, Template: Template, Profile: job.Profile, Output: output, Log: job.Log, Grace: template.Grace,
		Spec: proc.Spec{Argv: argv, Env: proc.SetEnv(proc.SetEnv(os.Environ(), template.Env), job.Vars), Dir: job.Dir},
	})
}

func (h local) stop(ctx context.Context, id string) (client.Run, error) { return h.book.Stop(ctx, id) }

func (h local) list(context.Context) ([]client.Run, error) {
	list, _ := h.book.Since(0)
	return list, nil
}

func (h local) follow(ctx context.Context, tell func(client.Run)) error {
	for cursor := uint64(0); ; {
		news := h.book.News()
		var list []client.Run
		list, cursor = h.book.Since(cursor)
		for _, run := range list {
			tell(run)
		}
		select {
		case <-news:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
