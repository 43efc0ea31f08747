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

	"golang.org/x/sys/unix"
)

// Dispatcher makes passes over one board. One goroutine uses it at a time. Several dispatchers of one board, in one process or in
// many, exclude each other by the board's tick lock.
type Dispatcher struct {
	Store    *Store
	Config   Config
	Runner   Runner // nil: nothing can be started, and workers are judged by pid
	Profiles Profiles
	Spawn    SpawnOptions
	Procs    Processes    // nil: /proc and pidfd
	Git      Git          // nil: a worktree workspace is a spawn failure
	Log      *slog.Logger // nil: slog.Default

	// Volume names the data volume where nothing else can have it while this container does; empty: that is not known.
	Volume string

	// Backoff is the time between a failed attempt and the next one, which doubles with each further failure; 0: none, as for a pass by
	// hand.
	Backoff time.Duration

	memories map[int64]*memory // by run
	holds    *Lock             // of the board, between passes
}

// memory is what a dispatcher remembers of a run between passes.
type memory struct {
	start uint64 // of the process that its pid named at first
	asked int64  // when its worker was asked to end after the end of its attempt, and survived
}

// memory returns what is remembered of a run. The caller may change it.
func (d *Dispatcher) memory(run int64) *memory {
	if d.memories == nil {
		d.memories = make(map[int64]*memory)
	}
	if d.memories[run] == nil {
		d.memories[run] = &memory{}
	}
	return d.memories[run]
}

// Profiles says which assignees can be run.
type Profiles interface {
	Exists(name string) (bool, error)
}

// TickOptions vary one pass.
type TickOptions struct {
	DryRun   bool
	MaxSpawn *int // wins over the configuration
}

// observe begins a pass that changes nothing: it finds out what has become of every worker.
func (d *Dispatcher) observe(ctx context.Context, now time.Time) (*pass, error) {
	p := &pass{Dispatcher: d, ctx: ctx, now: now.Unix(), res: &Result{}}
	return p, p.look()
}

func (d *Dispatcher) procs() Processes {
	return cmp.Or[Processes](d.Procs, kernel{})
}

func (d *Dispatcher) log() *slog.Logger { return cmp.Or(d.Log, slog.Default()) }

// Tick makes one pass: it releases what is dead, promotes what became possible, claims and starts what is ready. A task whose worker
// can't be started doesn't stop the others. A dry run releases and promotes, as the contract has it, but assigns, claims and starts
// nothing.
//
// After an error the result holds what was done before it; the next pass does the rest.
func (d *Dispatcher) Tick(ctx context.Context, now time.Time, opt TickOptions) (res Result, err error) {
	res = newResult()
	p := &pass{Dispatcher: d, ctx: ctx, now: now.Unix(), dry: opt.DryRun, mayStart: !opt.DryRun && d.Runner != nil && (opt.MaxSpawn == nil || *opt.MaxSpawn > 0), res: &res}
	if d.holds != nil && !isAt(d.holds.file, d.Store.paths.TickLock()) {
		d.holds.Release()
		d.holds, d.Store.holds = nil, nil
		if _, err := d.Hold(); err != nil {
			return res, err
		}
	}
	if d.holds == nil {
		lock, held, err := TryLock(d.Store.paths.TickLock())
		switch {
		case errors.Is(err, unix.EROFS) && !opt.DryRun:
			return res, fmt.Errorf("cannot dispatch: %w", err)
		case err != nil && !errors.Is(err, unix.EROFS):
			d.log().Warn("dispatching without the tick lock", "path", d.Store.paths.TickLock(), "error", err)
		case held:
			defer lock.Release()
		case opt.DryRun: // what would be started can be said all the same
			res.SkippedLocked = err == nil
			return res, errors.Join(p.look(), p.dispatch(opt))
		default:
			res.SkippedLocked = true
			return res, nil
		}
	}
	if err := p.look(); err != nil {
		return res, err
	}
	p.tidy()
	for _, step := range []func() error{p.releaseStaleClaims, p.detectStale, p.detectCrashed, p.enforceMaxRuntime, p.endLeaving} {
		if err := step(); err != nil {
			return res, err
		}
	}
	if res.Promoted, err = d.Store.RecomputeReady(ctx, now, d.failureLimit()); err != nil {
		return res, err
	}
	err = p.dispatch(opt)
	res.Leaving = len(p.leaving)
	for _, w := range p.watched {
		if w.sight == Alive && !w.settled {
			res.Alive++
		}
	}
	return res, err
}

// Hold keeps the lock of the board for all passes until the store is closed. Other dispatchers, the agent's gateways among them, find it
// held and do nothing on this board. False: somebody else has it.
func (d *Dispatcher) Hold() (held bool, err error) {
	lock, held, err := TryLock(d.Store.paths.TickLock())
	if held {
		d.holds, d.Store.holds = lock, lock
	}
	return held, err
}

// row is a task that could be started.
type row struct {
	ID, Assignee string
	Again        bool // it was started before
}

// atWork is who works on the running tasks, by attempt; a task without an attempt has a negative number.
func (s *Store) atWork(ctx context.Context) (map[int64]string, error) {
	rows, err := read[struct {
		Run  int64
		Name string
	}](ctx, s.db, "SELECT COALESCE(NULLIF(CAST(current_run_id AS INTEGER), 0), -rowid), COALESCE(assignee, '') FROM tasks WHERE status = 'running'")
	who := make(map[int64]string)
	for _, r := range rows {
		who[r.Run] = r.Name
	}
	return who, err
}

// rowLoops is the shared state of the two loops over rows.
type rowLoops struct {
	*pass
	free     int            // how many more may be started
	profile  int            // how many each profile may run; 0: no cap
	running  map[string]int // by profile
	exists   map[string]bool
	fallback string // the default assignee
}

func (p *pass) dispatch(opt TickOptions) error {
	l := &rowLoops{pass: p, free: math.MaxInt, running: make(map[string]int), exists: make(map[string]bool)}
	who, err := p.Store.atWork(p.ctx)
	if err != nil {
		return err
	}
	over := p.leaving // a slot is free when its process has ended
	for _, w := range p.watched {
		if _, open := who[w.CurrentRunID]; !open && w.CurrentRunID != 0 && !w.settled && !p.dead(w) {
			over = append(over, w) // its attempt has ended since this pass looked at its worker
		}
	}
	for _, w := range over {
		who[w.CurrentRunID] = w.Assignee
	}
	for _, name := range who {
		l.running[name]++
	}
	total := len(who)
	if most := cmp.Or(opt.MaxSpawn, p.Config.MaxSpawn); most != nil {
		l.free = max(0, *most-total)
	}
	if limit := p.Config.MaxInProgress; limit != nil && *limit > 0 {
		l.free = min(l.free, max(0, *limit-total))
	}
	if l.free == 0 {
		return nil
	}
	l.profile = *cmp.Or(p.Config.MaxInProgressPerProfile, new(0))
	if who := strings.ToLower(strings.TrimSpace(p.Config.DefaultAssignee)); who != "" && l.isProfile(who, true) {
		l.fallback = who
	}
	return errors.Join(l.each(Ready), l.each(Review))
}

// each starts the tasks in one status until the cap is reached.
func (l *rowLoops) each(status Status) error {
	rows, err := read[row](l.ctx, l.Store.db, `SELECT id, COALESCE(assignee, ''), started_at IS NOT NULL FROM tasks WHERE status = ? AND claim_lock IS NULL
		ORDER BY priority DESC, created_at, rowid`, status)
	if err != nil {
		return fmt.Errorf("cannot read %s tasks: %w", status, err)
	}
	for _, r := range rows {
		if l.free == 0 {
			return nil
		}
		if err := errors.Join(l.ctx.Err(), l.consider(r, status)); err != nil {
			return err
		}
	}
	return nil
}

// isProfile says whether a profile exists, asked once a pass.
func (l *rowLoops) isProfile(who string, ifUnknown bool) bool {
	known, asked := l.exists[who]
	if asked {
		return known
	}
	ok, err := l.Profiles.Exists(who)
	if err != nil {
		l.log().Warn("cannot see whether a profile exists", "profile", who, "error", err)
		ok = ifUnknown
	}
	l.exists[who] = ok
	return ok
}

// consider starts a task if a profile may run it. A task in review has no default assignee and no cap per profile.
func (l *rowLoops) consider(r row, from Status) error {
	if r.Assignee == "" && from == Ready && l.fallback != "" && l.assignDefault(r.ID) {
		r.Assignee = l.fallback
		l.res.AutoAssigned = append(l.res.AutoAssigned, r.ID)
	}
	switch {
	case r.Assignee == "":
		l.res.SkippedUnassigned = append(l.res.SkippedUnassigned, r.ID)
	case !l.isProfile(r.Assignee, false):
		l.res.SkippedNonspawnable = append(l.res.SkippedNonspawnable, r.ID)
	case from == Ready && l.profile > 0 && l.running[r.Assignee] >= l.profile:
		l.res.SkippedCapped = append(l.res.SkippedCapped, Capped{r.ID, r.Assignee, l.running[r.Assignee]})
	default:
		return l.start(r, from)
	}
	return nil
}

// assignDefault gives a task without an assignee to the default one.
func (l *rowLoops) assignDefault(task string) bool {
	if l.dry {
		return true
	}
	var mine bool
	err := l.write(func(t *tx) {
		if mine = t.exec("UPDATE tasks SET assignee = ? WHERE id = ? AND COALESCE(assignee, '') = ''", l.fallback, task) > 0; mine {
			t.event(task, 0, "assigned", object{{"assignee", l.fallback}, {"source", "kanban.default_assignee"}})
		}
	})
	if err != nil {
		l.log().Debug("cannot assign a task to the default profile", "task", task, "error", err)
	}
	return mine && err == nil
}

// start claims a task and starts its worker.
func (l *rowLoops) start(r row, from Status) error {
	reason, err := l.guard(r.ID, from)
	if err != nil {
		return err
	}
	if reason != "" {
		return l.guarded(r.ID, reason)
	}
	if l.dry {
		l.res.Spawned = append(l.res.Spawned, Spawned{Task: r.ID, Assignee: r.Assignee})
		l.took(r)
		return nil
	}
	l.res.Stuck++
	if r.Again && !l.clear(r.ID) {
		return nil
	}
	l.remember(entry{Lock: l.Store.Claimer()})                                                // before the first claim, so that the claim of a dead dispatcher is recognised
	claim := claimOptions{from: from, profile: r.Assignee, scratch: l.Store.paths.Workspaces} // another profile may be at its cap
	task, won, err := l.Store.claim(l.ctx, time.Unix(l.now, 0), r.ID, claim)
	if err != nil || !won {
		return err
	}
	started, err := l.run(task, from)
	if started {
		l.res.Stuck--
		l.took(r)
	}
	return err
}

func (l *rowLoops) took(r row) {
	l.running[r.Assignee]++
	l.free--
}
