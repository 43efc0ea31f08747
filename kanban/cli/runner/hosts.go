package runner

import (
	"context"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/proc"
	"hinit/internal/runs"
	"hinit/kanban"
)

// Template is the command of hinit.yaml that works on a task.
const Template = "kanban-worker"

// ByPID1 returns a runner whose workers are started by the PID 1 that a client talks to. The error is that of the client.
func ByPID1(ctx context.Context, c *client.Client) (*Runner, error) { return newRunner(ctx, pid1{c}) }

// pid1 is the host of a container.
type pid1 struct{ *client.Client }

func (h pid1) start(ctx context.Context, tag string, job kanban.Job) (client.Run, error) {
	env := make(map[string]string, len(job.Vars))
	for _, kv := range job.Vars {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	return h.StartRun(ctx, client.RunRequest{
		Template: Template, Tag: tag, Profile: job.Profile, Task: job.Task, Options: job.Options, Env: env, Dir: job.Dir, Log: job.Log,
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

// Local returns a runner that supervises its workers in this process. It may be called once in a process.
func Local(ctx context.Context) (*Runner, error) {
	book, err := runs.Local()
	if err != nil {
		return nil, err
	}
	return newRunner(ctx, local{book})
}

// local is the host of a machine without hinit as PID 1.
type local struct{ book *runs.Book }

// localGrace is the time between TERM and KILL: a worker of the agent gives up within two seconds (contract, section 22.1).
const localGrace = 5 * time.Second

func (h local) start(ctx context.Context, tag string, job kanban.Job) (client.Run, error) {
	output, err := openLog(job.Log)
	if err != nil {
		return client.Run{}, err
	}
	return h.book.Start(ctx, runs.Order{
		Tag: tag, Template: Template, Profile: job.Profile, Output: output, Log: job.Log, Grace: localGrace,
		Spec: proc.Spec{Argv: job.Argv, Env: job.Env, Dir: job.Dir},
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
