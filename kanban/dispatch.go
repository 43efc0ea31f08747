package kanban

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"
)

// Dispatcher makes passes over one board. A pass releases the tasks of dead workers and starts workers for ready tasks. Only
// one goroutine may use a Dispatcher at a time. Several processes may have a dispatcher for one board: the board's tick lock
// lets only one of them make a pass at a time.
type Dispatcher struct {
	Store  *Store
	Config Config
	// Starts and observes workers; nil: the dispatcher starts no workers, and observes workers only by
	// pid.
	Runner   Runner
	Profiles Profiles
	Environ  []string       // Environment of this process.
	Procs    ProcessControl // Observes and ends workers by pid; nil: use /proc and pidfd.
	Git      Git            // Runs git to create worktrees.

	// IsIsolated reports whether the workers of a profile are isolated. nil: no profile's workers are. An agent can write
	// everything in its profile's home, so the dispatcher must not run git in a repository there outside the isolation.
	IsIsolated func(profile string) (bool, error)

	// ExclusiveVolumeID identifies the data volume, if no other container can use the volume at the same time. All workers that
	// an earlier container started on this volume are then known to be dead. Otherwise ExclusiveVolumeID is empty.
	ExclusiveVolumeID string

	// Backoff is the pause after a failed attempt at a task. It doubles after each further failure. With 0 there is no pause,
	// as in the command `hinit kanban dispatch`.
	Backoff time.Duration

	runStates map[int64]*runState // Remembered facts about runs, by run number.
	// Earliest time at which a task that the last pass held back may start, in seconds since 1970; 0: no task was held back.
	heldUntil int64
}

// runState holds the data that this dispatcher keeps about a run between passes. The data is lost
// when the dispatcher ends.
type runState struct {
	// Start time of the process that had the worker's pid when this dispatcher first saw it; a different time later means
	// that the pid was reused.
	workerStart uint64
	endFailedAt int64 // Time of the last failed try to end the worker, in seconds since 1970; 0: no such try.
}

// runStateOf returns the state of a run, which the caller may change. A new run has an empty state.
func (d *Dispatcher) runStateOf(run int64) *runState {
	if d.runStates == nil {
		d.runStates = make(map[int64]*runState)
	}
	if d.runStates[run] == nil {
		d.runStates[run] = &runState{}
	}
	return d.runStates[run]
}

// Profiles finds the profiles for which workers can run. [ProfileDirs] implements it; tests replace it.
type Profiles interface {
	Exists(name string) (bool, error)
	Dir(name string) string        // Home directory; "": the profile does not exist.
	Toolsets(name string) []string // Toolsets of a profile; empty: the agent's defaults.
}

// TickOptions are the options of one pass.
type TickOptions struct {
	DryRun   bool
	MaxSpawn *int // Overrides max_spawn of the configuration.
}

// observe determines the state of every worker. The returned pass holds these states. On the board, observe only records
// missing pids of workers.
func (d *Dispatcher) observe(ctx context.Context, now time.Time) (*boardPass, error) {
	p := &boardPass{Dispatcher: d, ctx: ctx, now: now.Unix(), res: &TickResult{}}
	return p, p.observeWorkers()
}

func (d *Dispatcher) procs() ProcessControl { return cmp.Or[ProcessControl](d.Procs, realProcesses{}) }

func (d *Dispatcher) log() *slog.Logger { return d.Store.opt.Log }

// Tick makes one pass. It releases the tasks of dead workers, promotes tasks that may start, and claims and starts ready
// tasks. If a worker can't be started, Tick still starts the others. A dry run also releases and promotes tasks, as the
// agent's own dispatcher does, but it does not assign, claim or start tasks.
//
// If Tick returns an error, the result lists the changes that it made before; the next pass makes the others.
func (d *Dispatcher) Tick(ctx context.Context, now time.Time, opt TickOptions) (res TickResult, err error) {
	res = TickResult{ // Make the lists empty, because nil would be null in JSON.
		Crashed: []string{}, TimedOut: []string{}, Stale: []string{}, AutoBlocked: []string{}, Spawned: []SpawnedTask{},
		SkippedUnassigned: []string{}, SkippedNonspawnable: []string{}, SkippedCapped: []CappedTask{}, AutoAssigned: []string{},
		RespawnGuarded: []GuardedTask{}, RateLimited: []string{},
	}
	p := &boardPass{
		Dispatcher: d, ctx: ctx, now: now.Unix(), dryRun: opt.DryRun, res: &res, profileExists: make(map[string]bool),
		mayStart: !opt.DryRun && d.Runner != nil && (opt.MaxSpawn == nil || *opt.MaxSpawn > 0),
	}
	d.heldUntil = 0
	if kept := d.Store.tickLock; kept != nil && !isFileAt(kept.file, d.Store.paths.TickLock()) {
		kept.Release()
		d.Store.tickLock = nil
		if _, err := d.HoldTickLock(); err != nil {
			return res, err
		}
	}
	if d.Store.tickLock == nil {
		lock, held, err := TryLock(d.Store.paths.TickLock())
		switch {
		case errors.Is(err, unix.EROFS) && !opt.DryRun:
			return res, fmt.Errorf("cannot dispatch: %w", err)
		case err != nil && !errors.Is(err, unix.EROFS):
			d.log().Warn("dispatching without the tick lock", "path", d.Store.paths.TickLock(), "error", err)
		case held:
			defer lock.Release()
		case opt.DryRun: // Another process has the lock, so only list the tasks that would start.
			res.SkippedLocked = err == nil
			return res, errors.Join(p.observeWorkers(), p.startDueTasks(opt))
		default:
			res.SkippedLocked = true
			return res, nil
		}
	}
	if err := p.observeWorkers(); err != nil {
		return res, err
	}
	p.updateLedger()
	for _, step := range []func() error{p.releaseStaleClaims, p.detectStale, p.detectCrashed, p.enforceMaxRuntime, p.endDepartedWorkers} {
		if err := step(); err != nil {
			return res, err
		}
	}
	if res.Promoted, err = d.Store.RecomputeReady(ctx, now, d.failureLimit()); err != nil {
		return res, err
	}
	err = p.startDueTasks(opt)
	res.DepartedAlive = len(p.livingDeparted)
	res.AliveWorkers = lo.CountBy(p.runningTasks, func(w *observedTask) bool { return w.liveness == Alive && !w.isHandled })
	return res, err
}

// HoldTickLock takes the board's tick lock and keeps it for all passes until the store is closed. Other dispatchers, such as
// the agent's gateways, skip the board meanwhile. HoldTickLock returns false if another process has the lock.
func (d *Dispatcher) HoldTickLock() (held bool, err error) {
	lock, held, err := TryLock(d.Store.paths.TickLock())
	if held {
		d.Store.tickLock = lock
	}
	return held, err
}

// startCandidate is a task that may be started.
type startCandidate struct {
	ID, Assignee string
	TriedBefore  bool // Whether an earlier attempt exists, whose processes may still run.
}

// runningProfiles maps the number of each running task's run to the task's profile. A running task without a run gets a
// negative number as its key, so that it is counted too.
func (s *Store) runningProfiles(ctx context.Context) (map[int64]string, error) {
	type running struct {
		Run  int64
		Name string
	}
	rows, err := queryAll[running](ctx, s.db, "SELECT COALESCE(NULLIF(CAST(current_run_id AS INTEGER), 0), -rowid), assignee FROM tasks WHERE status = 'running'")
	return lo.SliceToMap(rows, func(r running) (int64, string) { return r.Run, r.Name }), err
}

// startDueTasks starts the workers of a pass: first for ready tasks, then for tasks in review, until a limit on workers is
// reached.
func (p *boardPass) startDueTasks(opt TickOptions) error {
	who, err := p.Store.runningProfiles(p.ctx)
	if err != nil {
		return err
	}
	for _, w := range p.runningTasks {
		if _, open := who[w.CurrentRunID]; !open && w.CurrentRunID != 0 && !w.isHandled && !p.workerEnded(w) {
			who[w.CurrentRunID] = w.Assignee // A worker whose attempt ended during this pass still counts against the limits.
		}
	}
	for _, w := range p.livingDeparted { // A worker counts against the limits until its process has ended.
		who[w.CurrentRunID] = w.Assignee
	}
	p.runningByProfile = lo.CountValues(lo.Values(who))
	p.freeSlots = math.MaxInt
	if most := cmp.Or(opt.MaxSpawn, p.Config.MaxSpawn); most != nil {
		p.freeSlots = *most - len(who)
	}
	if limit := p.Config.MaxInProgress; limit != nil && *limit > 0 {
		p.freeSlots = min(p.freeSlots, *limit-len(who))
	}
	if p.freeSlots <= 0 {
		return nil
	}
	if who := strings.ToLower(strings.TrimSpace(p.Config.DefaultAssignee)); who != "" && p.profileExistsCached(who, true) {
		p.defaultAssignee = who
	}
	return errors.Join(p.startTasks(Ready), p.startTasks(Review))
}

// startTasks starts the tasks that have the given status, highest priority first, until the limit on workers is reached.
func (p *boardPass) startTasks(status Status) error {
	rows, err := queryAll[startCandidate](p.ctx, p.Store.db, `SELECT id, assignee, started_at IS NOT NULL FROM tasks WHERE status = ? AND claim_lock IS NULL
		ORDER BY priority DESC, created_at, rowid`, status)
	if err != nil {
		return fmt.Errorf("cannot read %s tasks: %w", status, err)
	}
	for _, r := range rows {
		if p.freeSlots == 0 {
			return nil
		}
		if err := errors.Join(p.ctx.Err(), p.startIfAllowed(r, status)); err != nil {
			return err
		}
	}
	return nil
}

// profileExistsCached reports whether a profile exists. It asks [Profiles] only once in a pass for each name, and caches the
// answer. If Profiles fails, it returns ifUnknown.
func (p *boardPass) profileExistsCached(assignee string, ifUnknown bool) bool {
	if known, cached := p.profileExists[assignee]; cached {
		return known
	}
	ok, err := p.Profiles.Exists(assignee)
	if err != nil {
		p.log().Warn("cannot see whether a profile exists", "profile", assignee, "error", err)
		ok = ifUnknown
	}
	p.profileExists[assignee] = ok
	return ok
}

// startIfAllowed starts a task if its assignee is a profile and has fewer workers than its limit allows. A ready task without
// an assignee first gets the default assignee. The limit does not apply to a task in review.
func (p *boardPass) startIfAllowed(r startCandidate, from Status) error {
	if r.Assignee == "" && from == Ready && p.defaultAssignee != "" && p.assignDefault(r.ID) {
		r.Assignee = p.defaultAssignee
		p.res.AutoAssigned = append(p.res.AutoAssigned, r.ID)
	}
	limit := *cmp.Or(p.Config.MaxInProgressPerProfile, new(0)) // Limit on the workers of a profile; 0: no limit.
	switch {
	case r.Assignee == "":
		p.res.SkippedUnassigned = append(p.res.SkippedUnassigned, r.ID)
	case !p.profileExistsCached(r.Assignee, false):
		p.res.SkippedNonspawnable = append(p.res.SkippedNonspawnable, r.ID)
	case from == Ready && limit > 0 && p.runningByProfile[r.Assignee] >= limit:
		p.res.SkippedCapped = append(p.res.SkippedCapped, CappedTask{r.ID, r.Assignee, p.runningByProfile[r.Assignee]})
	default:
		return p.claimAndStart(r, from)
	}
	return nil
}

// assignDefault assigns a task to the default assignee. It returns false if that fails, or if another program has assigned the
// task in the meantime.
func (p *boardPass) assignDefault(task string) bool {
	if p.dryRun {
		return true
	}
	var mine bool
	err := p.write(func(t *writeTx) {
		if mine = t.exec("UPDATE tasks SET assignee = ? WHERE id = ? AND COALESCE(assignee, '') = ''", p.defaultAssignee, task) > 0; mine {
			t.addEvent(task, 0, "assigned", jsonObject{{"assignee", p.defaultAssignee}, {"source", "kanban.default_assignee"}})
		}
	})
	if err != nil {
		p.log().Debug("cannot assign a task to the default profile", "task", task, "error", err)
	}
	return mine && err == nil
}

// claimAndStart claims a task and starts its worker. It does nothing if [boardPass.holdReason] holds the task back, or if
// processes of an earlier attempt can't be ended.
func (p *boardPass) claimAndStart(r startCandidate, from Status) error {
	reason, until, err := p.holdReason(r.ID, from)
	if err != nil {
		return err
	}
	if reason != "" {
		return p.recordGuarded(r.ID, reason, until)
	}
	if p.dryRun {
		p.res.Spawned = append(p.res.Spawned, SpawnedTask{Task: r.ID, Assignee: r.Assignee})
		p.countStarted(r)
		return nil
	}
	p.res.DueNotStarted++
	if r.TriedBefore && !p.endLeftovers(r.ID) {
		return nil
	}
	// The claim requires the assignee whose limit was checked. It fails if another program has reassigned the task meanwhile.
	claim := claimOptions{from: from, profile: r.Assignee, beforeCommit: func(run int64) {
		// Record the run before the claim, so that the next dispatcher knows who made it if this one dies.
		p.recordWorker(workerRecord{Run: run, Task: r.ID})
	}}
	task, won, err := p.Store.claim(p.ctx, time.Unix(p.now, 0), r.ID, claim)
	if err != nil || !won {
		return err
	}
	started, err := p.startClaimedTask(task, from)
	if started {
		p.res.DueNotStarted--
		p.countStarted(r)
	}
	return err
}

func (p *boardPass) countStarted(r startCandidate) {
	p.runningByProfile[r.Assignee]++
	p.freeSlots--
}
