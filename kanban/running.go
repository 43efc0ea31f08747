package kanban

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"
)

// watched is a running task and what is known of its worker.
type watched struct {
	Task
	since   int64 // start of the current run, or of the task where there is none
	review  bool  // it was claimed out of review, and goes back there
	ref     Ref
	ours    bool // the ledger knows the run
	local   bool // pids in it mean something here
	sight   Sight
	exit    Exit
	gone    bool // its container or machine is gone, and the worker with it
	other   bool // its pid is that of another process by now
	settled bool // a step of this pass has dealt with it
}

// pass is one tick.
type pass struct {
	*Dispatcher
	ctx      context.Context //nolint:containedctx // it lives as long as the tick
	now      int64
	dry      bool
	res      *Result
	ledger   *ledger
	instance string
	watched  []*watched
}

// home is the status that a released task goes back to.
func (w *watched) home() Status {
	if w.review {
		return Review
	}
	return Ready
}

// dead says whether the worker is known to be gone, or seems to be by its pid.
func (p *pass) dead(w *watched) bool {
	switch w.sight {
	case Alive:
		return false
	case Ended, NeverStarted:
		return true
	default:
		return w.gone || w.other || !p.procs().Alive(w.WorkerPID)
	}
}

// replaced says whether the pid belongs to another process by now. What it started with is known from the ledger, or from the
// first time that the pid was seen for this run.
func (p *pass) replaced(w *watched) bool {
	start := p.procs().Start(w.WorkerPID)
	if start == 0 {
		return false
	}
	known := w.ref.Start
	if known == 0 {
		if p.starts == nil {
			p.starts = make(map[int64]uint64)
		}
		if known = p.starts[w.CurrentRunID]; known == 0 {
			p.starts[w.CurrentRunID], known = start, start
		}
	}
	return start != known
}

// look finds out what has become of every running task's worker.
func (p *pass) look() error {
	p.ledger = readLedger(p.Store.paths.ledger())
	p.instance = instance()
	err := each(p.ctx, p.Store.db, func(r *sql.Rows) error {
		w := &watched{}
		err := r.Scan(&w.ID, &w.Assignee, &w.StartedAt, &w.ClaimLock, &w.ClaimExpires, &w.WorkerPID, &w.MaxRuntimeSeconds, &w.LastHeartbeatAt,
			&w.CurrentRunID, &w.ConsecutiveFailures, &w.MaxRetries, &w.since, &w.review)
		w.Status = Running
		p.watched = append(p.watched, w)
		return err
	}, `SELECT t.id, COALESCE(t.assignee, ''), COALESCE(t.started_at, 0), COALESCE(t.claim_lock, ''), COALESCE(t.claim_expires, 0),
			COALESCE(t.worker_pid, 0), t.max_runtime_seconds, COALESCE(t.last_heartbeat_at, 0), COALESCE(t.current_run_id, 0),
			t.consecutive_failures, t.max_retries, COALESCE(r.started_at, t.started_at, 0),
			EXISTS (SELECT 1 FROM task_events e WHERE e.run_id = t.current_run_id AND e.kind = 'claimed' AND e.payload LIKE '%"source_status": "review"%')
		FROM tasks t LEFT JOIN task_runs r ON r.id = t.current_run_id WHERE t.status = 'running' ORDER BY t.rowid`)
	if err != nil {
		return fmt.Errorf("cannot read running tasks: %w", err)
	}
	var asked []*watched
	var refs []Ref
	for _, w := range p.watched {
		w.local = p.Store.hostLocal(w.ClaimLock)
		w.ref = p.ref(w)
		if w.WorkerPID != 0 || w.ours {
			asked, refs = append(asked, w), append(refs, w.ref)
		}
	}
	if p.Runner != nil && len(refs) > 0 {
		sightings, err := p.Runner.Look(p.ctx, refs)
		if err == nil && len(sightings) != len(refs) {
			err = fmt.Errorf("%d answers", len(sightings))
		}
		if err != nil {
			return fmt.Errorf("cannot learn about %d workers: %w", len(refs), err)
		}
		for i, w := range asked {
			p.note(w, sightings[i])
		}
	}
	if err := p.adopt(asked); err != nil {
		return err
	}
	for _, w := range asked {
		w.other = w.sight == Unknown && w.local && w.WorkerPID != 0 && p.replaced(w)
	}
	return nil
}

// tidy forgets what was remembered of runs that are over. Only the holder of the tick lock may.
func (p *pass) tidy() {
	open := make(map[int64]bool, len(p.watched))
	locks := map[string]bool{p.Store.Claimer(): true}
	for _, w := range p.watched {
		open[w.CurrentRunID] = true
		locks[w.ClaimLock] = true
	}
	for run := range p.starts {
		if !open[run] {
			delete(p.starts, run)
		}
	}
	over := p.ledger.over(open)
	if len(over) == 0 {
		return
	}
	refs := make([]Ref, len(over))
	for i, e := range over {
		refs[i] = Ref{DB: p.Store.paths.DB, Board: p.Store.paths.Board, Task: e.Task, Run: e.Run, Worker: e.Worker}
	}
	if !p.forget(refs) {
		return // the next pass tries again
	}
	if err := p.ledger.drop(over, locks); err != nil {
		p.log().Warn("cannot write the ledger of workers", "path", p.ledger.path, "error", err)
	}
}

// ref names the worker of a running task, with what the ledger adds.
func (p *pass) ref(w *watched) Ref {
	ref := p.Dispatcher.ref(w.Task)
	e, known := p.ledger.runs[w.CurrentRunID]
	w.ours = w.WorkerPID == 0 && p.ledger.locks[w.ClaimLock]
	if !known || e.Task != w.ID || e.Host != p.Store.opt.Host {
		return ref
	}
	w.ours = true
	w.gone = e.Boot != "" && p.instance != "" && e.Boot != p.instance
	if w.WorkerPID == 0 || w.WorkerPID == e.PID {
		ref.Worker = e.Worker
	}
	return ref
}

func (d *Dispatcher) ref(t Task) Ref {
	return Ref{DB: d.Store.paths.DB, Board: d.Store.paths.Board, Task: t.ID, Run: t.CurrentRunID, Worker: Worker{PID: t.WorkerPID}}
}

// note takes what the runner says. That no worker exists is believed only of runs that this dispatcher began: a claim without a
// worker is somebody's at a terminal.
func (p *pass) note(w *watched, s Sighting) {
	if s.Sight == NeverStarted && !w.ours {
		return
	}
	w.sight, w.exit = s.Sight, s.Exit
	if s.Sight == Alive || s.Sight == Ended {
		w.local = true
		if s.Worker.PID != 0 {
			w.ref.Worker = s.Worker
		}
	}
}

// adopt writes down the pid of workers that an earlier dispatcher started and didn't live to write down. The runner knows it, or the
// ledger does.
func (p *pass) adopt(asked []*watched) error {
	for _, w := range asked {
		if w.WorkerPID != 0 || w.ref.PID == 0 || w.sight == NeverStarted {
			continue
		}
		if err := p.recordSpawn(w.ID, w.CurrentRunID, w.ref.PID); err != nil {
			return err
		}
		w.WorkerPID = w.ref.PID
	}
	return nil
}

// terminate ends workers side by side, each through whoever knows it.
func (p *pass) terminate(list []*watched) []Termination {
	ends := make([]Termination, len(list))
	var known []int
	var refs []Ref
	var wait sync.WaitGroup
	for i, w := range list {
		switch {
		case w.sight == Ended || w.sight == NeverStarted || w.gone || w.other:
			ends[i] = Termination{Attempted: true, Terminated: true}
		case w.sight == Alive:
			known, refs = append(known, i), append(refs, w.ref)
		case w.WorkerPID == 0 || w.ClaimLock == "" || !w.local:
			// nothing here to end
		default:
			wait.Go(func() { ends[i] = p.procs().End(p.ctx, w.WorkerPID, TerminateGrace) })
		}
	}
	if len(refs) > 0 {
		by, err := p.Runner.End(p.ctx, refs, TerminateGrace)
		for n, i := range known {
			ends[i] = Termination{Attempted: true}
			if err == nil && n < len(by) {
				ends[i] = by[n]
			}
		}
		if err != nil {
			p.log().Warn("cannot end workers", "count", len(refs), "error", err)
		}
	}
	wait.Wait()
	return ends
}

// survived says whether a worker may still be at work, so that its task must not be given to another.
func (w *watched) survived(t Termination) bool { return t.Attempted && w.local && !t.Terminated }

// info is the part of a payload that tells of a termination.
func (w *watched) info(t Termination) object {
	return object{
		{"prev_pid", timeOrNull(int64(w.WorkerPID))},
		{"host_local", w.local},
		{"termination_attempted", t.Attempted},
		{"terminated", t.Terminated},
		{"sigkill", t.Killed},
	}
}

// write runs a write transaction at the time of the pass.
func (p *pass) write(do func(*tx) error) error {
	return p.Store.write(p.ctx, time.Unix(p.now, 0), do)
}

// forget tells the runner that these runs are over on the board.
func (p *pass) forget(refs []Ref) bool {
	if p.Runner == nil {
		return true
	}
	err := p.Runner.Forget(p.ctx, refs)
	if err != nil {
		p.log().Warn("cannot tell the runner which runs are over", "count", len(refs), "error", err)
	}
	return err == nil
}
