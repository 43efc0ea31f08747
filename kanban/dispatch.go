package kanban

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

	starts map[int64]int64 // by run: when the process that its pid named at first had started
	asked  map[int64]int64 // by run: when a worker was asked to end whose attempt is over, and survived
	holds  *Lock           // of the board, between passes
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

func (d *Dispatcher) procs() Processes {
	if d.Procs == nil {
		return kernel{}
	}
	return d.Procs
}

func (d *Dispatcher) log() *slog.Logger {
	if d.Log == nil {
		return slog.Default()
	}
	return d.Log
}

// Tick makes one pass: it releases what is dead, promotes what became possible, claims and starts what is ready. A task whose worker
// can't be started doesn't stop the others. A dry run releases and promotes, as the contract has it, but assigns, claims and starts
// nothing.
//
// After an error the result holds what was done before it; the next pass does the rest.
func (d *Dispatcher) Tick(ctx context.Context, now time.Time, opt TickOptions) (res Result, err error) {
	res = newResult()
	p := &pass{Dispatcher: d, ctx: ctx, now: now.Unix(), dry: opt.DryRun, mayStart: !opt.DryRun && d.Runner != nil && (opt.MaxSpawn == nil || *opt.MaxSpawn > 0), res: &res}
	if d.holds != nil && !d.holds.on(d.Store.paths.TickLock()) {
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
			if err := p.look(); err != nil {
				return res, err
			}
			return res, p.dispatch(opt)
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
	id, assignee string
	again        bool // it was started before
}

// rowLoops is the shared state of the two loops over rows.
type rowLoops struct {
	*pass
	free     int            // how many more may be started; negative: no cap
	profile  int            // how many each profile may run; 0: no cap
	running  map[string]int // by profile
	exists   map[string]bool
	fallback string // the default assignee
}

func (p *pass) dispatch(opt TickOptions) error {
	l := &rowLoops{pass: p, free: -1, running: make(map[string]int), exists: make(map[string]bool)}
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
	most := p.Config.MaxSpawn
	if opt.MaxSpawn != nil {
		most = opt.MaxSpawn
	}
	if most != nil {
		l.free = max(0, *most-total)
	}
	if limit := p.Config.MaxInProgress; limit != nil && *limit > 0 {
		if free := max(0, *limit-total); l.free < 0 || free < l.free {
			l.free = free
		}
	}
	if l.free == 0 {
		return nil
	}
	if limit := p.Config.MaxInProgressPerProfile; limit != nil && *limit > 0 {
		l.profile = *limit
	}
	if who := strings.ToLower(strings.TrimSpace(p.Config.DefaultAssignee)); who != "" && l.isProfile(who, true) {
		l.fallback = who
	}
	return errors.Join(l.each(Ready, l.ready), l.each(Review, l.review))
}

// each runs a loop over the rows in one status until the cap is reached.
func (l *rowLoops) each(status Status, do func(row) error) error {
	rows, err := l.Store.waiting(l.ctx, status)
	if err != nil {
		return fmt.Errorf("cannot read %s tasks: %w", status, err)
	}
	for _, r := range rows {
		if l.free == 0 {
			return nil
		}
		if err := l.ctx.Err(); err != nil {
			return err
		}
		if err := do(r); err != nil {
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

func (l *rowLoops) ready(r row) error {
	if r.assignee == "" {
		if r.assignee = l.fallback; r.assignee == "" || !l.assignDefault(r) {
			l.res.SkippedUnassigned = append(l.res.SkippedUnassigned, r.id)
			return nil
		}
		l.res.AutoAssigned = append(l.res.AutoAssigned, r.id)
	}
	if !l.isProfile(r.assignee, false) {
		l.res.SkippedNonspawnable = append(l.res.SkippedNonspawnable, r.id)
		return nil
	}
	if l.profile > 0 && l.running[r.assignee] >= l.profile {
		l.res.SkippedCapped = append(l.res.SkippedCapped, Capped{r.id, r.assignee, l.running[r.assignee]})
		return nil
	}
	return l.start(r, false)
}

// review is the loop over tasks in review. It has no default assignee and no cap per profile. Of the respawn guard it has only
// the cooldown, without which a worker that hits a quota wall would be started again at once.
func (l *rowLoops) review(r row) error {
	switch {
	case r.assignee == "":
		l.res.SkippedUnassigned = append(l.res.SkippedUnassigned, r.id)
	case !l.isProfile(r.assignee, false):
		l.res.SkippedNonspawnable = append(l.res.SkippedNonspawnable, r.id)
	default:
		return l.start(r, true)
	}
	return nil
}

// assignDefault gives a task without an assignee to the default one.
func (l *rowLoops) assignDefault(r row) bool {
	if l.dry {
		return true
	}
	var mine bool
	err := l.write(func(t *tx) error {
		n, err := t.exec("UPDATE tasks SET assignee = ? WHERE id = ? AND COALESCE(assignee, '') = ''", r.assignee, r.id)
		if err != nil || n == 0 {
			return err
		}
		mine = true
		return t.event(r.id, 0, evAssigned, object{{"assignee", r.assignee}, {"source", "kanban.default_assignee"}})
	})
	if err != nil {
		l.log().Debug("cannot assign a task to the default profile", "task", r.id, "error", err)
	}
	return mine && err == nil
}

// start claims a task and starts its worker.
func (l *rowLoops) start(r row, review bool) error {
	reason, err := l.guard(r.id, review)
	if err != nil {
		return err
	}
	if reason != "" {
		return l.guarded(r.id, reason)
	}
	if l.dry {
		l.res.Spawned = append(l.res.Spawned, Spawned{Task: r.id, Assignee: r.assignee})
		l.took(r)
		return nil
	}
	if r.again && !l.clear(r.id) {
		return nil
	}
	l.remember(entry{Lock: l.Store.Claimer()})                                                 // before the first claim, so that the claim of a dead dispatcher is recognised
	claim := claimOptions{from: Ready, profile: r.assignee, scratch: l.Store.paths.Workspaces} // another profile may be at its cap
	if review {
		claim.from = Review
	}
	task, won, err := l.Store.claim(l.ctx, time.Unix(l.now, 0), r.id, claim)
	if err != nil || !won {
		return err
	}
	workspace, why, err := l.run(task, review)
	if err != nil {
		return err
	}
	if why != nil {
		return l.spawnFailed(task, review, why)
	}
	l.res.Spawned = append(l.res.Spawned, Spawned{Task: r.id, Assignee: task.Assignee, Workspace: workspace})
	l.took(r)
	return nil
}

func (l *rowLoops) took(r row) {
	l.running[r.assignee]++
	if l.free > 0 {
		l.free--
	}
}
