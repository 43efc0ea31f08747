package kanban

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/samber/lo"

	"hinit/internal/procstat"
)

// observedTask is a task with the state of its worker, as this pass sees it. The task is running, or its attempt is over but the
// worker may still run.
type observedTask struct {
	Task
	since             int64  // start of the current run, or of the task without a run; if the attempt is over, its end; seconds since 1970
	from              Status // status in which the task was claimed, and to which a release returns it
	ref               Ref
	dispatcherStarted bool     // the ledger shows that a dispatcher started the run
	local             bool     // the worker's pid is valid on this host
	liveness          Liveness // what the runner knows about the worker
	exit              Exit
	containerGone     bool // the worker has ended with its container or machine
	pidReused         bool // the worker's pid now belongs to another process
	isHandled         bool // an earlier step of this pass has handled the task; later steps skip it
}

// pass holds the data of one pass over the board by [Dispatcher.Tick] or [Dispatcher.observe].
type pass struct {
	*Dispatcher
	ctx               context.Context //nolint:containedctx // it lives as long as the tick
	now               int64           // time of the pass in seconds since 1970
	dryRun            bool            // dry run: start nothing
	mayStart          bool            // this pass may start workers
	res               *Result
	workers           *workerList
	containerInstance string          // identifies the boot and the container, see [currentInstance]
	runningTasks      []*observedTask // tasks that are running
	leavingWorkers    []*observedTask // living workers whose attempt is over
	endedEntries      []workerRecord  // entries of the ledger whose workers have ended
	unansweredStarts  []*observedTask // workers whose attempt is over, but whose start was requested and may still happen

	freeSlots        int             // how many workers may still be started
	runningByProfile map[string]int  // number of running workers by profile
	profileExists    map[string]bool // cached answers of [Profiles], by profile
	defaultAssignee  string          // the default assignee
}

// workerEnded reports whether the worker has ended. It trusts the runner. If the runner does not know the worker, it checks the
// pid.
func (p *pass) workerEnded(w *observedTask) bool {
	if w.liveness != Unknown {
		return w.liveness != Alive
	}
	return w.containerGone || w.pidReused || !p.procs().Alive(w.WorkerPID)
}

// pidWasReused reports whether the worker's pid now belongs to another process. Then the start time differs from the one in the
// ledger, or from the one that this dispatcher noted when it first saw the pid. Or the process was not started for the task: any
// program can write a pid to the board and to the ledger.
func (p *pass) pidWasReused(w *observedTask) bool {
	if w.WorkerPID <= 1 || w.WorkerPID == os.Getpid() { // this program must never end itself or PID 1
		return true
	}
	start := p.procs().Start(w.WorkerPID)
	if start == 0 {
		return false
	}
	seen := p.notesOf(w.CurrentRunID)
	seen.start = cmp.Or(seen.start, start)
	is, known := p.procs().WorksOn(w.WorkerPID, w.ID)
	return start != cmp.Or(w.ref.Start, seen.start) || known && !is
}

// observeWorkers determines the state of the workers of all running tasks, and of the workers in the ledger whose attempt is
// over. It fills the lists of the pass.
func (p *pass) observeWorkers() error {
	p.workers = readWorkerList(p.Store.paths.workersFile())
	p.containerInstance = currentInstance()
	type row struct {
		Task  Task
		Since int64
		From  Status
	}
	rows, err := queryAll[row](p.ctx, p.Store.db, "SELECT "+selectColumns[Task](tasksWithoutBody)+`,
			max(0, CAST(COALESCE((SELECT r.started_at FROM task_runs r WHERE r.id = tasks.current_run_id), started_at) AS INTEGER)),
			CASE WHEN EXISTS (SELECT 1 FROM task_events e WHERE e.run_id = tasks.current_run_id AND e.kind = 'claimed'
				AND e.payload LIKE '%"source_status": "review"%') THEN 'review' ELSE 'ready' END
		FROM tasks WHERE status = 'running' ORDER BY rowid`)
	if err != nil {
		return fmt.Errorf("cannot read running tasks: %w", err)
	}
	p.runningTasks = lo.Map(rows, func(r row, _ int) *observedTask { return &observedTask{Task: r.Task, since: r.Since, from: r.From} })
	open := make(map[int64]bool, len(p.runningTasks))
	var asked []*observedTask
	var refs []Ref
	for _, w := range p.runningTasks {
		open[w.CurrentRunID] = true
		w.local = p.Store.hostLocal(w.ClaimLock)
		w.ref = p.workerRef(w)
		if (w.WorkerPID != 0 || w.dispatcherStarted) && !w.containerGone {
			asked, refs = append(asked, w), append(refs, w.ref)
		}
	}
	left, err := p.departedWorkers(open)
	if err != nil {
		return err
	}
	refs = append(refs, lo.Map(left, func(w *observedTask, _ int) Ref { return w.ref })...)
	if p.Runner != nil && len(refs) > 0 {
		sightings, err := p.Runner.WorkerStates(p.ctx, refs)
		if err == nil && len(sightings) != len(refs) {
			err = fmt.Errorf("%d answers", len(sightings))
		}
		if err != nil {
			return fmt.Errorf("cannot learn about %d workers: %w", len(refs), err)
		}
		for i, w := range append(asked, left...) {
			p.storeReport(w, sightings[i])
		}
	}
	p.sortDeparted(left)
	if err := p.recordMissingPIDs(asked); err != nil {
		return err
	}
	for _, w := range asked {
		// The process can't have run for longer than it exists. If the clock was set since the claim, the claim looks older, or is
		// in the future.
		if begin := procstat.StartedAt(w.ref.Start).Unix(); w.ref.Start != 0 && begin <= p.now && (begin > w.since || w.since > p.now+clockSlack) {
			w.since = begin
		}
		w.pidReused = w.liveness == Unknown && w.local && w.WorkerPID != 0 && p.pidWasReused(w)
	}
	return nil
}

// dropEnded drops the ledger's records of workers that have ended, and records the claims of other programs. Only the holder of
// the tick lock may call it.
func (p *pass) dropEnded() {
	if unanswered := p.unansweredStarts; p.mayStart {
		p.unansweredStarts = nil
		p.cancelStarts(unanswered)
	}
	open := make(map[int64]bool, len(p.runningTasks)+len(p.leavingWorkers))
	for _, w := range append(p.runningTasks, p.leavingWorkers...) {
		open[w.CurrentRunID] = true
		recorded := w.CurrentRunID == 0 || p.workers.runs[w.CurrentRunID].Task == w.ID
		if w.Status == Running && w.local && !w.containerGone && !recorded { // a later pass needs the record to tell whether the worker can still be alive
			p.recordWorker(workerRecord{Run: w.CurrentRunID, Task: w.ID, Foreign: true})
		}
	}
	maps.DeleteFunc(p.notes, func(run int64, _ *runNotes) bool { return !open[run] })
	if len(p.endedEntries) == 0 {
		return
	}
	if p.Runner != nil {
		p.Runner.Forget(lo.Map(p.endedEntries, func(e workerRecord, _ int) Ref {
			return Ref{DB: p.Store.paths.DB, Board: p.Store.paths.Board, Task: e.Task, Run: e.Run, Worker: e.Worker}
		}))
	}
	for _, e := range p.endedEntries {
		delete(p.workers.runs, e.Run)
	}
	p.saveWorkerList()
}

// recordWorker writes an entry to the ledger, with this host, volume and container. It must be called before the worker can
// start.
func (p *pass) recordWorker(e workerRecord) {
	e.Host, e.Boot, e.Volume = p.Store.opt.Host, p.containerInstance, p.Volume
	p.workers.runs[e.Run] = e
	p.saveWorkerList()
}

func (p *pass) saveWorkerList() {
	if err := p.workers.save(); err != nil {
		p.log().Warn("cannot write the ledger of workers", "path", p.workers.path, "error", err)
	}
}

// isGone reports whether the worker of a ledger entry has certainly ended. Then the entry is from an earlier boot or container of
// this host, or from an earlier container that had this container's data volume. Only one container at a time can have the
// volume.
func (p *pass) isGone(e workerRecord) bool {
	return e.Boot != "" && p.containerInstance != "" && e.Boot != p.containerInstance &&
		(e.Host == p.Store.opt.Host || e.Volume != "" && e.Volume == p.Volume)
}

// workerRef builds the Ref by which the runner finds the worker of a running task. It takes the process from the ledger, and sets
// w.dispatcherStarted and w.containerGone.
func (p *pass) workerRef(w *observedTask) Ref {
	ref := p.Dispatcher.taskRef(w.Task)
	e, known := p.workers.runs[w.CurrentRunID]
	if !known || e.Task != w.ID {
		return ref
	}
	w.containerGone = p.isGone(e)
	if e.Foreign || !w.containerGone && e.Host != p.Store.opt.Host {
		return ref
	}
	w.dispatcherStarted = true
	if w.WorkerPID == 0 || w.WorkerPID == e.PID {
		ref.Worker = e.Worker
	}
	return ref
}

func (d *Dispatcher) taskRef(t Task) Ref {
	return Ref{DB: d.Store.paths.DB, Board: d.Store.paths.Board, Task: t.ID, Run: t.CurrentRunID, Worker: Worker{PID: t.WorkerPID}}
}

// storeReport stores the runner's answer about a worker. It ignores NeverStarted unless a dispatcher began the run, because a
// claim without a worker may belong to a person at a terminal.
func (p *pass) storeReport(w *observedTask, s WorkerReport) {
	if s.Liveness == NeverStarted && !w.dispatcherStarted {
		return
	}
	w.liveness, w.exit = s.Liveness, s.Exit
	if s.Liveness == Alive || s.Liveness == Ended {
		w.local = true
		if s.Worker.PID != 0 {
			w.ref.Worker = s.Worker
		}
	}
}

// recordMissingPIDs writes missing pids of workers to the board. A pid is missing if the dispatcher died before it could record
// the pid. The pid comes from the runner or the ledger.
func (p *pass) recordMissingPIDs(asked []*observedTask) error {
	for _, w := range asked {
		if w.WorkerPID != 0 || w.ref.PID == 0 || w.liveness == NeverStarted {
			continue
		}
		if err := p.recordSpawn(w.ID, w.CurrentRunID, w.ref.PID); err != nil {
			return err
		}
		w.WorkerPID = w.ref.PID
	}
	return nil
}

// terminate ends workers in parallel: through the runner if the runner knows them, otherwise by pid. The results are in the order
// of list.
func (p *pass) terminate(list []*observedTask) []Termination {
	ends := make([]Termination, len(list))
	var known []int
	var refs []Ref
	var wait sync.WaitGroup
	for i, w := range list {
		switch {
		case w.liveness == Ended || w.liveness == NeverStarted || w.containerGone || w.pidReused:
			ends[i] = Termination{Attempted: true, Terminated: true}
		case w.liveness == Alive:
			known, refs = append(known, i), append(refs, w.ref)
		case w.WorkerPID == 0 || !w.local:
			// Kill nothing: the pid is unknown, or belongs to another host.
		default:
			wait.Go(func() { ends[i] = p.endByPID(w.WorkerPID, w.ID) })
		}
	}
	if len(refs) > 0 {
		by := p.Runner.End(p.ctx, refs, TerminateGrace)
		for n, i := range known {
			ends[i] = by[n]
			if w := list[i]; !ends[i].Attempted && w.ref.PID != 0 { // the runner doesn't have this run, but gave its process
				wait.Go(func() { ends[i] = p.endByPID(w.ref.PID, w.ID) })
			}
		}
	}
	wait.Wait()
	return ends
}

// endByPID ends the worker of a task that only its pid identifies. It leaves every other process alone, because any program can
// write a pid to the board. A process whose environment can't be read counts as a worker that survived.
func (p *pass) endByPID(pid int, task string) Termination {
	is, known := p.procs().WorksOn(pid, task)
	if is {
		return p.procs().End(p.ctx, pid, TerminateGrace)
	}
	return Termination{Attempted: true, Terminated: known || !p.procs().Alive(pid)}
}

// survived reports whether a worker may still run after a termination. If so, its task must not get another worker.
func (w *observedTask) survived(t Termination) bool { return t.Attempted && w.local && !t.Terminated }

// terminationInfo returns members for the payload of an event: how the worker was terminated.
func (w *observedTask) terminationInfo(t Termination) object {
	return object{
		{"prev_pid", orNull(w.WorkerPID)}, {"host_local", w.local}, {"termination_attempted", t.Attempted}, {"terminated", t.Terminated}, {"sigkill", t.Killed},
	}
}

// write runs a write transaction with the time of the pass.
func (p *pass) write(do func(*tx)) error {
	return p.Store.write(p.ctx, time.Unix(p.now, 0), func(t *tx) error {
		do(t)
		return nil
	})
}
