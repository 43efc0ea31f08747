package runner

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/account"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/isolation"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/internal/runs"
	onehost "hinit/internal/runs/local"
	"hinit/internal/wholefile"
	"hinit/kanban"
)

// WorkerCommand is the name of the command in hinit.yaml that runs as the worker of a task.
const WorkerCommand = config.KanbanWorker

// NewPID1Runner returns a runner whose workers are started by the container's PID 1. c is a client of PID 1.
func NewPID1Runner(ctx context.Context, c *dial.Client) (*Runner, error) {
	return newRunner(ctx, pid1Host{c})
}

// pid1Host is the host that asks PID 1 to start and stop runs.
type pid1Host struct{ *dial.Client }

func (h pid1Host) start(ctx context.Context, tag string, job kanban.WorkerJob) (client.Run, error) {
	return h.StartRun(ctx, client.RunRequest{
		Template: WorkerCommand, Tag: tag, Profile: job.Profile, Task: job.Task, Options: job.Options, Env: job.EnvVars, Dir: job.Dir, Log: job.Log,
	})
}

// NewLocalRunner returns a runner that starts its workers in this process. It runs the worker's command in hinit.yaml, on a
// machine where hinit isn't PID 1.
func NewLocalRunner(ctx context.Context, cfg *config.Config) (*Runner, error) {
	b, err := localRuns()
	if err != nil {
		return nil, err
	}
	return newRunner(ctx, localHost{b, cfg})
}

// localHost is the host that starts runs in this process.
type localHost struct {
	runs *runs.Tracker
	cfg  *config.Config
}

// agentName is the usual name of the agent's command, which [AgentPath] tries if the configured command does not exist.
const agentName = "hermes"

// AgentPath returns the path of the agent's command. This is the configured command if it exists, otherwise agentName in PATH.
// AgentPath never searches the current directory, where an agent could put a program of that name.
func AgentPath(configured string) (string, error) {
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

func (h localHost) start(ctx context.Context, tag string, job kanban.WorkerJob) (client.Run, error) {
	if err := refuseIsolated(job.Profile); err != nil {
		return client.Run{}, err
	}
	template := h.cfg.Runs[WorkerCommand]
	argv := h.cfg.ExpandRun(template.Command, map[string]string{"profile": job.Profile, "task": job.Task, "profile_home": job.EnvVars["HERMES_HOME"]}, job.Options)
	program, err := AgentPath(argv[0])
	if err != nil {
		return client.Run{}, err
	}
	argv[0] = program
	var output *os.File
	if job.Log != "" {
		if output, err = wholefile.Open(job.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
			return client.Run{}, err
		}
	}
	return h.runs.Start(ctx, runs.StartRequest{
		Tag: tag, Template: WorkerCommand, Profile: job.Profile, Output: output, Log: job.Log, Grace: template.Grace,
		Spec: proc.Spec{Argv: argv, Env: proc.SetEnv(proc.SetEnv(os.Environ(), template.Env), job.EnvVars), Dir: job.Dir},
	})
}

// refuseIsolated returns an error if the profile is isolated, because this host can't isolate a worker.
func refuseIsolated(profile string) error {
	isolated, err := NewIsolationCheck(os.LookupEnv)(profile)
	if isolated {
		err = fmt.Errorf("cannot start a worker of profile %s: it is isolated, and only hinit isolates its processes; start hinit, and dispatch without --local", profile)
	}
	return err
}

func (h localHost) StopRun(ctx context.Context, id string) (client.Run, error) {
	return h.runs.Stop(ctx, id)
}

func (h localHost) Runs(context.Context) ([]client.Run, error) {
	list, _ := h.runs.RunsSince(0)
	return list, nil
}

func (h localHost) FollowRuns(ctx context.Context, onRun func(client.Run) error) error {
	for cursor := uint64(0); ; {
		changed := h.runs.Changed()
		var list []client.Run
		list, cursor = h.runs.RunsSince(cursor)
		for _, run := range list {
			if err := onRun(run); err != nil {
				return err
			}
		}
		if !pause.Until(ctx, changed) {
			return context.Cause(ctx)
		}
	}
}

// maxGitOutput is the maximum number of bytes of git's output that are read.
const maxGitOutput = 1 << 20

// localRuns returns the tracker of the runs that this process starts without PID 1. The first call starts a supervisor in this
// process, which reaps all children of the process.
var localRuns = sync.OnceValues(onehost.NewTracker)

// Git runs git in the directory dir and returns its output, even if git fails. If profile is set, git runs in that profile's
// isolation, with the repository's hooks disabled. Git is a [kanban.Git].
func Git(ctx context.Context, profile, dir string, args ...string) (string, error) {
	spec := proc.Spec{Argv: append([]string{"git"}, args...), Env: append(os.Environ(), "GIT_TERMINAL_PROMPT=0"), Dir: dir}
	where := ""
	if profile != "" {
		where = " in the isolation of profile " + profile + ", which is not possible with isolation: user"
		spec.Path, _ = cmdline.HinitPath() // HinitPath fails only without /proc, where starting the command fails, too.
		spec.Dir = "/"
		spec.Argv = slices.Concat([]string{"hinit", "shell", profile, "--", "git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-C", dir}, args)
	}
	text, err := runCommand(ctx, spec)
	if err != nil {
		err = fmt.Errorf("cannot run git %s%s: %w", strings.Join(args, " "), where, err)
	}
	return string(text), err
}

// NewIsolationCheck returns a function for [kanban.Dispatcher] that reports whether a profile is isolated. The function reads
// hinit.yaml, or the list that PID 1 writes if this process may not read hinit.yaml. In a process that is itself isolated,
// the function always returns false.
func NewIsolationCheck(lookup func(string) (string, bool)) func(profile string) (bool, error) {
	return func(profile string) (bool, error) {
		own, ownErr := proc.ReadConfinement(os.Getpid())
		one, err := proc.ReadConfinement(1)
		if ownErr == nil && err == nil && own.Filters >= one.Filters+isolation.SeccompFilterCount {
			return false, nil
		}
		cfg, err := config.Load(config.Options{Env: lookup})
		if err == nil {
			return cfg.IsolationOf(profile).IsIsolated(), nil
		}
		var list string
		cl, dialErr := cmdline.Dial(lookup)
		if dialErr == nil {
			list, dialErr = cmdline.ReadIsolatedFile(cl.Socket())
		}
		if dialErr != nil {
			return false, fmt.Errorf("cannot tell whether profile %s is isolated: %w", profile, errors.Join(err, dialErr))
		}
		return account.ListsProfile(list, profile), nil
	}
}

// runCommand runs a command and returns at most maxGitOutput bytes of its output. It kills the command when ctx ends.
func runCommand(ctx context.Context, spec proc.Spec) (text []byte, err error) {
	b, err := localRuns()
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "output")
	defer file.Close()
	dup, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	run, err := b.Start(ctx, runs.StartRequest{Tag: "git/" + b.NewTag(), Template: "git", Spec: spec, Output: os.NewFile(uintptr(dup), "output")})
	for err == nil && run.End == nil {
		changed := b.Changed()
		run, err = b.Find(run.ID)
		if err == nil && run.End == nil && !pause.Until(ctx, changed) {
			_, err = b.Stop(context.WithoutCancel(ctx), run.ID)
			return nil, errors.Join(context.Cause(ctx), err)
		}
	}
	if err != nil {
		return nil, err
	}
	text, _ = io.ReadAll(io.NewSectionReader(file, 0, maxGitOutput)) // Reading can't fail, because the file is in memory.
	switch x := exitOf(run); {
	case !x.Known:
		err = errors.New(run.End.Error)
	case x.Signal != 0 || x.Code != 0:
		err = fmt.Errorf("exit code %d: %s", cmp.Or(x.Code, 128+x.Signal), bytes.TrimSpace(text))
	}
	return text, err
}
