package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/cmdline"
	"hinit/internal/config"
	"hinit/internal/control/show"
	"hinit/internal/notify"
	"hinit/kanban"
	"hinit/kanban/cli/runner"
	"hinit/kanban/cli/serve"
)

// dispatchVerbs are the verbs that start and stop workers.
var dispatchVerbs = []verb{
	{
		name: "dispatch", hasJSONFlag: true, summary: "make one pass: release the tasks of dead workers, start ready tasks", defineFlags: runPass,
		help: `Workers are started by the PID 1 of the container where hinit is that, else by this command. They keep running when it ends.
A dry run starts nothing, but it releases and promotes.`,
	},
	{
		name: "serve", checksFile: true, opensNoBoard: true, summary: "dispatch all boards until it is stopped", defineFlags: serveBoards,
		help: `What the service kanban of hinit runs (HINIT_KANBAN=1). It wakes up when a board changes, when a worker ends, and at deadlines.
One has a board at a time; the others wait for its end. Workers keep running when it ends. The agent's gateways may run beside it as they are: they
find the board's lock held, dispatch nothing, and continue with notifications and the decomposition of tasks.`,
	},
	{name: "daemon", checksFile: true, opensNoBoard: true, summary: "DEPRECATED: serve, with --force", defineFlags: daemon},
	{name: "reclaim", args: "ID [REASON...]", summary: "take a task from its worker, which is ended", defineFlags: reclaimTask},
	{name: "reassign", args: "ID PROFILE", summary: "give a task to another profile", defineFlags: reassignTask},
}

// configPath returns the path of the agent's config.yaml, whose section "kanban" configures the dispatcher.
func (c *call) configPath() string {
	return filepath.Join(c.EnvOr("HERMES_HOME", c.boards().Root), "config.yaml")
}

// workerHost says where workers are started: by PID 1, or in this process.
type workerHost struct {
	*runner.Runner
	pid1              *dial.Client // Client of PID 1; nil: this process starts the workers.
	exclusiveVolumeID string       // Value of [kanban.Dispatcher.ExclusiveVolumeID].
}

// chooseHost returns the host that starts workers: PID 1, or this process if here is true or PID 1 does not answer.
func (c *call) chooseHost(ctx context.Context, here bool) (workerHost, error) {
	if !here {
		cl, err := cmdline.Dial(c.lookupEnv)
		unanswered := errors.Is(err, client.ErrUnreachable)
		var r *runner.Runner
		if err == nil {
			r, err = runner.NewPID1Runner(ctx, cl)
		}
		switch {
		case err == nil:
			return workerHost{r, cl, c.idOfServedVolume(ctx, cl)}, nil
		case !unanswered:
			return workerHost{}, fmt.Errorf("%w; to start workers without it: --local", err)
		}
	}
	cfg, err := config.Load(config.Options{Env: c.lookupEnv})
	if err != nil {
		return workerHost{}, err
	}
	r, err := runner.NewLocalRunner(ctx, cfg)
	return workerHost{Runner: r}, err
}

// idOfServedVolume returns a name for the data volume, or "" if another container may have workers on it. It returns a name
// only if the board is on the volume and PID 1 holds the volume's lock, which only one container can hold.
func (c *call) idOfServedVolume(ctx context.Context, cl *dial.Client) string {
	status, err := cl.Status(ctx, config.KanbanName)
	if err != nil || status.Init.Lease == nil || status.Init.Lease.State != client.LeaseHeld {
		return ""
	}
	st := unix.Stat_t{}
	rel, err := filepath.Rel(status.Init.Home, c.boards().Root)
	if err != nil || !filepath.IsLocal(rel) || unix.Stat(status.Init.Home, &st) != nil {
		return ""
	}
	return strconv.FormatUint(st.Ino, 10)
}

// dispatcher returns a dispatcher for the board s. Its workers are started by the host h.
func (c *call) dispatcher(s *kanban.Store, cfg kanban.Config, h workerHost) *kanban.Dispatcher {
	d := &kanban.Dispatcher{
		Store: s, Config: cfg, Profiles: kanban.ProfileDirs(c.boards().Root), Environ: c.Environ, IsIsolated: runner.NewIsolationCheck(c.lookupEnv),
		Git: runner.Git, ExclusiveVolumeID: h.exclusiveVolumeID,
	}
	if h.Runner != nil {
		d.Runner = h.Runner
	}
	return d
}

func (c *call) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(cmdline.EscapedWriter{Writer: c.Terminal.Err}, nil))
}

func runPass(c *call) verbAction {
	dry := c.Flags.Bool("dry-run", false, "start nothing")
	limit := c.Flags.Int("failure-limit", kanban.DefaultFailureLimit, "failures after which a task is blocked, `N`")
	withWorkers := c.withDispatcher("start workers from here, not by PID 1")
	opt := kanban.TickOptions{}
	optionalFlag(c, &opt.MaxSpawn, "max", "at most `N` tasks running; wins over the configuration", parseNumber)
	return func(ctx context.Context, s *kanban.Store, _ []string) error {
		cfg, _, _ := kanban.ReadConfig(c.configPath()) // An unreadable file counts as empty, as in the agent's own command.
		cfg.FailureLimit, cfg.StaleTimeout = *limit, 0
		opt.DryRun = *dry
		return withWorkers(ctx, s, cfg, func(d *kanban.Dispatcher) error {
			res, err := d.Tick(ctx, c.Now(), opt)
			return c.printResult(res, err, func() { c.showResult(res, cfg, *dry) })
		})
	}
}

// showResult prints what a pass has done, in the format of the agent's own command, which scripts parse.
func (c *call) showResult(res kanban.TickResult, cfg kanban.Config, dry bool) {
	count := func(name string, n int, ids []string) {
		c.print("%-14s%d\n", name+":", n)
		if len(ids) > 0 {
			c.print("  %s\n", strings.Join(ids, ", "))
		}
	}
	count("Reclaimed", res.Reclaimed, nil)
	count("Crashed", len(res.Crashed), res.Crashed)
	count("Timed out", len(res.TimedOut), res.TimedOut)
	count("Stale", len(res.Stale), res.Stale)
	count("Auto-blocked", len(res.AutoBlocked), res.AutoBlocked)
	count("Promoted", res.Promoted, nil)
	count("Spawned", len(res.Spawned), nil)
	mark := lo.Ternary(dry, " (dry)", "")
	for _, t := range res.Spawned {
		c.print("  - %s  ->  %s  @ %s%s\n", t.Task, t.Assignee, cmp.Or(t.Workspace, emptyCell), mark)
	}
	tasks := func(what string, ids []string) {
		if len(ids) > 0 {
			c.print("%s: %s\n", what, strings.Join(ids, ", "))
		}
	}
	tasks("Auto-assigned to kanban.default_assignee="+pythonQuoted(cfg.DefaultAssignee), res.AutoAssigned)
	tasks("Skipped (unassigned)", res.SkippedUnassigned)
	for _, t := range res.SkippedCapped {
		c.print("Deferred (%s at per-profile cap, %d running): %s\n", t.Assignee, t.Current, t.Task)
	}
	tasks("Skipped (non-spawnable assignee — terminal lane, OK)", res.SkippedNonspawnable)
	for _, t := range res.RespawnGuarded {
		c.print("Held back (%s): %s\n", t.Reason, t.Task)
	}
	tasks("Rate limited", res.RateLimited)
	if res.SkippedLocked {
		c.print("Nothing was changed: another dispatcher has this board\n")
	}
}

// pythonQuoted quotes a text like Python's repr, which the agent's own command uses.
func pythonQuoted(s string) string {
	q := lo.Ternary(strings.Contains(s, "'") && !strings.Contains(s, `"`), `"`, "'")
	s = strings.ReplaceAll(s, `\`, `\\`)
	return q + strings.ReplaceAll(s, q, `\`+q) + q
}

func reclaimTask(c *call) verbAction {
	withWorkers, reason := c.withDispatcher("don't ask PID 1"), c.reasonFlag()
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		return withWorkers(ctx, s, kanban.Config{}, func(d *kanban.Dispatcher) error {
			ok, err := d.Reclaim(ctx, c.Now(), words[0], reason(words[1:]))
			if err == nil && !ok {
				err = fmt.Errorf("cannot reclaim %s (not running or unknown id)", words[0])
			}
			return c.reportDone(ok, err, "Reclaimed %s", words[0])
		})
	}
}

func reassignTask(c *call) verbAction {
	withWorkers, reason := c.withDispatcher("don't ask PID 1"), c.reasonFlag()
	take := c.Flags.Bool("reclaim", false, "reclaim the task from its worker first")
	return func(ctx context.Context, s *kanban.Store, words []string) error {
		return withWorkers(ctx, s, kanban.Config{}, func(d *kanban.Dispatcher) error {
			ok, err := d.Reassign(ctx, c.Now(), words[0], parseAssignee(words[1]), *take, reason(nil))
			if err == nil && !ok {
				err = fmt.Errorf("cannot reassign %s (running, or unknown id); to take it from its worker: --reclaim", words[0])
			}
			return c.reportDone(ok, err, "Reassigned %s to %s", words[0], cmp.Or(parseAssignee(words[1]), emptyCell))
		})
	}
}

// withDispatcher defines the flag --local, with the help text local, for a verb that starts or stops workers. It returns a
// function that makes a dispatcher and passes it to the callback do. With the flag, this process starts the workers. Without
// it, PID 1 does, if it answers.
func (c *call) withDispatcher(local string) func(context.Context, *kanban.Store, kanban.Config, func(*kanban.Dispatcher) error) error {
	here := c.Flags.Bool("local", false, local)
	return func(ctx context.Context, s *kanban.Store, cfg kanban.Config, do func(*kanban.Dispatcher) error) error {
		h, err := c.chooseHost(ctx, *here)
		if err != nil {
			return err
		}
		defer h.Close()
		return do(c.dispatcher(s, cfg, h))
	}
}

func serveBoards(c *call) verbAction {
	here := c.Flags.Bool("local", false, "start workers from here, not by PID 1")
	return func(ctx context.Context, _ *kanban.Store, _ []string) error {
		return c.serve(ctx, *here, func(*kanban.Config) {})
	}
}

// daemon implements the verb daemon, which the agent's own command has and calls deprecated.
func daemon(c *call) verbAction {
	force := c.Flags.Bool("force", false, "serve all the same")
	interval := c.Flags.Float64("interval", 0, "`SECONDS` between two looks")
	limit := c.Flags.Int("failure-limit", 0, "failures after which a task is blocked, `N`")
	pidfile := c.Flags.String("pidfile", "", "`FILE` for the process number")
	_ = c.Flags.Bool("verbose", false, "without effect: the log says what a pass does")
	_ = c.Flags.Bool("v", false, "the same")
	var most *int
	optionalFlag(c, &most, "max", "at most `N` tasks running", parseNumber)
	return func(ctx context.Context, _ *kanban.Store, _ []string) error {
		if !*force {
			return usageErrorf("it is DEPRECATED; run: %s serve, or start the container with HINIT_KANBAN=1, or: hermes gateway start", programName)
		}
		if *pidfile != "" {
			if err := os.WriteFile(*pidfile, fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
				return err
			}
			defer os.Remove(*pidfile)
		}
		return c.serve(ctx, false, func(cfg *kanban.Config) {
			if most != nil {
				cfg.MaxSpawn = most
			}
			if *interval > 0 {
				cfg.Interval = time.Duration(*interval * float64(time.Second))
			}
			cfg.FailureLimit = cmp.Or(*limit, cfg.FailureLimit)
		})
	}
}

// serve dispatches all boards until ctx ends. change can modify the configuration first. If here is true, this process starts the
// workers.
func (c *call) serve(ctx context.Context, here bool, change func(*kanban.Config)) error {
	log := c.logger()
	cfg, warnings, err := kanban.ReadConfig(c.configPath())
	if err != nil {
		log.Warn("the configuration cannot be read; the defaults apply", "error", err)
	}
	for _, w := range warnings {
		log.Warn(w)
	}
	change(&cfg)
	h, err := c.chooseHost(ctx, here)
	if err != nil {
		return err
	}
	defer h.Close()
	s := &serve.Server{
		Boards: c.boards(), WorkerEnded: h.WorkerEnded(), Log: log, Now: c.Now,
		OpenBoard: func(ctx context.Context, paths kanban.Paths) (*kanban.Dispatcher, error) {
			store, err := c.openAt(ctx, paths)
			if err != nil {
				return nil, err
			}
			d := c.dispatcher(store, cfg, h)
			d.Backoff = cfg.Interval
			return d, nil
		},
	}
	socket := c.EnvOr(notify.SocketVar, "")
	// Ignore the error: if READY=1 doesn't arrive, PID 1 restarts this service.
	tell := func(text string) { _ = notify.Send(socket, text) }
	s.OnReady = func() { tell("READY=1") }
	troubled := ""
	s.ShowStatus = func(text, trouble string) {
		tell("STATUS=" + truncate(show.EscapeLine(text)))
		if h.pid1 == nil || trouble == troubled {
			return
		}
		troubled = trouble
		ctx, cancel := context.WithTimeout(context.Background(), pid1CallTimeout)
		defer cancel()
		// Ignore the error: the call fails if this process isn't the service kanban of PID 1, and then no status page shows
		// the text.
		_ = h.pid1.SetStatusText(ctx, config.KanbanName, truncate(trouble))
	}
	workers := "from here"
	if h.pid1 != nil {
		workers = "by PID 1"
		s.IsStopping = func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), pid1CallTimeout)
			defer cancel()
			status, err := h.pid1.Status(ctx, config.KanbanName)
			return err == nil && status.Init.Stopping
		}
	}
	log.Info("dispatching", "root", s.Boards.Root, "workers", workers)
	return s.Run(ctx)
}

const (
	// pid1CallTimeout limits each call to PID 1: setting the text for the status page, and asking whether the container is
	// stopping.
	pid1CallTimeout = 5 * time.Second
	// maxStatusBytes is the length of the longest text that PID 1 accepts for its status.
	maxStatusBytes = 200
)

func truncate(text string) string {
	if len(text) > maxStatusBytes {
		return strings.ToValidUTF8(text[:maxStatusBytes-3], "") + "..."
	}
	return text
}
