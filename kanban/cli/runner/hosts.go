package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

// gitMost bounds what is read of git's output.
const gitMost = 1 << 20

// Git runs git in a directory and returns what it wrote. The error has that too. It implements [kanban.Git], also where r is nil.
func (r *Runner) Git(ctx context.Context, dir string, args ...string) (string, error) {
	spec := proc.Spec{Argv: append([]string{"git"}, args...), Env: append(os.Environ(), "GIT_TERMINAL_PROMPT=0"), Dir: dir}
	run := child
	if r != nil {
		if here, is := r.host.(local); is {
			run = here.once
		}
	}
	text, code, err := run(ctx, spec)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d: %s", code, bytes.TrimSpace(text))
	}
	if err != nil {
		return string(text), fmt.Errorf("cannot run git %s: %w", strings.Join(args, " "), err)
	}
	return string(text), nil
}

// child runs a command in a process that has no supervisor.
func child(ctx context.Context, spec proc.Spec) (text []byte, code int, err error) {
	out, errs, x, err := proc.Output(ctx, spec, gitMost)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if code = x.Code; x.Signal != 0 {
		code = 128 + x.Signal
	}
	return append(out, errs...), code, err
}

// once runs a command as a run of the supervisor, which waits for every child of this process.
func (h local) once(ctx context.Context, spec proc.Spec) (text []byte, code int, err error) {
	fd, err := unix.MemfdCreate("git", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, 0, err
	}
	output := os.NewFile(uintptr(fd), "output of git")
	defer output.Close()
	dup, err := unix.FcntlInt(output.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, 0, err
	}
	run, err := h.book.Start(ctx, runs.Order{Tag: "git/" + h.book.Unique(), Template: "git", Spec: spec, Output: os.NewFile(uintptr(dup), "git")})
	for err == nil && run.End == nil {
		news := h.book.News()
		if run, err = h.book.Find(run.ID); err != nil || run.End != nil {
			break
		}
		select {
		case <-news:
		case <-ctx.Done():
			_, err = h.book.Stop(context.WithoutCancel(ctx), run.ID)
			return nil, 0, errors.Join(context.Cause(ctx), err)
		}
	}
	if err != nil {
		return nil, 0, err
	}
	text, _ = io.ReadAll(io.NewSectionReader(output, 0, gitMost)) // memory
	code, err = exitCode(run)
	return text, code, err
}

func exitCode(run client.Run) (int, error) {
	switch {
	case run.End.Signal != nil:
		return 128 + *run.End.Signal, nil
	case run.End.Code != nil:
		return *run.End.Code, nil
	}
	return 0, errors.New(run.End.Error)
}
