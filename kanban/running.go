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

// observedTask is a task and the state of its worker in this pass. The task is running, or its attempt is over but the worker
// may still run.
type observedTask struct {
	Task
	// Start of the run, or of the task if it has no run; for an attempt that is over, its end; in seconds since 1970.
	since             int64
	claimedFrom       Status // Status in which the task was claimed, and to which a release returns it.
	ref               RunRef
	dispatcherStarted bool     // Whether the ledger shows that a dispatcher started the run.
	isOnThisHost      bool     // Whether the worker runs on this host, so that its pid is valid.
	liveness          Liveness // What the runner knows about the worker.
	exit              Exit
	containerGone     bool // Whether the worker has ended with its container or machine.
	pidReused         bool // Whether the worker's pid now belongs to another process.
	isHandled         bool // Whether an earlier step of this pass has handled the task.
}

// boardPass holds the data of one pass over the board by [Dispatcher.Tick] or [Dispatcher.observe].
type boardPass struct {
	*Dispatcher
	ctx               context.Context //nolint:containedctx // a pass ends before the call that passed ctx
	now               int64           // Time of the pass, in seconds since 1970.
	dryRun            bool            // Whether to start nothing.
	mayStart          bool            // Whether the pass is a call of Tick that may start workers.
	res               *TickResult
	ledger            *workerLedger
	containerInstance string // Boot and container of this process, see [currentContainerID].
	runningTasks      []*observedTask
	livingDeparted    []*observedTask // Living workers whose attempt is over.
	endedEntries      []workerRecord  // Ledger entries whose workers have ended.
	unansweredStarts  []*observedTask // Workers whose attempt is over, and whose requested start may still happen.

	freeSlots        int             // Number of workers that may still be started.
	runningByProfile map[string]int  // Number of running workers by profile.
	profileExists    map[string]bool // Cached answers of [Profiles], by profile.
	defaultAssignee  string
}

// workerEnded reports whether the worker has ended, as the runner says. If the runner does not know the worker, it checks the
// worker's pid.
func (p *boardPass) workerEnded(w *observedTask) bool {
	if w.liveness != Unknown {
		return w.liveness != Alive
	}
	return w.containerGone || w.pidReused || !p.procs().Alive(w.WorkerPID)
}

// pidWasReused reports whether the worker's pid now belongs to another process. The process then has another start time than
// the worker in the ledger, or than the process that this dispatcher first saw with the pid. A process that was not started
// for the task is another process too, because any program can write a pid to the board or the ledger.
func (p *boardPass) pidWasReused(w *observedTask) bool {
	if w.WorkerPID <= 1 || w.WorkerPID == os.Getpid() { // This program must never end itself or PID 1.
		return true
	}
	start := p.procs().StartTime(w.WorkerPID)
	if start == 0 {
		return false
	}
	seen := p.runStateOf(w.CurrentRunID)
	seen.workerStart = cmp.Or(seen.workerStart, start)
	is, known := p.procs().IsWorkerOf(w.WorkerPID, w.ID)
	return start != cmp.Or(w.ref.StartTime, seen.workerStart) || known && !is
}

// observeWorkers determines the state of the workers of all running tasks, and of the workers in the ledger whose attempt is
// over. It stores them in the lists of the pass.
func (p *boardPass) observeWorkers() error {
	p.ledger = readLedger(p.Store.paths.ledgerPath())
	p.containerInstance = currentContainerID()
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
	p.runningTasks = lo.Map(rows, func(r row, _ int) *observedTask {
		return &observedTask{Task: r.Task, since: r.Since, claimedFrom: r.From}
	})
	open := make(map[int64]bool, len(p.runningTasks))
	var queried []*observedTask
	var refs []RunRef
	for _, w := range p.runningTasks {
		open[w.CurrentRunID] = true
		w.isOnThisHost = p.Store.isClaimOfThisHost(w.ClaimLock)
		w.ref = p.workerRef(w)
		if (w.WorkerPID != 0 || w.dispatcherStarted) && !w.containerGone {
			queried, refs = append(queried, w), append(refs, w.ref)
		}
	}
	left, err := p.departedWorkers(open)
	if err != nil {
		return err
	}
	refs = append(refs, lo.Map(left, func(w *observedTask, _ int) RunRef { return w.ref })...)
	if p.Runner != nil && len(refs) > 0 {
		sightings, err := p.Runner.WorkerStates(p.ctx, refs)
		if err == nil && len(sightings) != len(refs) {
			err = fmt.Errorf("%d answers", len(sightings))
		}
		if err != nil {
			return fmt.Errorf("cannot learn about %d workers: %w", len(refs), err)
		}
		for i, w := range append(queried, left...) {
			p.storeReport(w, sightings[i])
		}
	}
	p.sortDeparted(left)
	if err := p.recordMissingPIDs(queried); err != nil {
		return err
	}
	for _, w := range queried {
		// The process can't have run for longer than it exists, so use its start. The time of the claim can be earlier, or in
		// the future, if the clock was set since.
		if begin := procstat.StartedAt(w.ref.StartTime).Unix(); w.ref.StartTime != 0 && begin <= p.now && (begin > w.since || w.since > p.now+clockSlackSeconds) {
			w.since = begin
		}
		w.pidReused = w.liveness == Unknown && w.isOnThisHost && w.WorkerPID != 0 && p.pidWasReused(w)
	}
	return nil
}

// updateLedger removes ended workers from the ledger, and adds the claims of other programs to it. If the pass may start
// workers, it first cancels starts that the runner has not answered. Only the holder of the tick lock may call it.
func (p *boardPass) updateLedger() {
	if unanswered := p.unansweredStarts; p.mayStart {
		p.unansweredStarts = nil
		p.cancelStarts(unanswered)
	}
	open := make(map[int64]bool, len(p.runningTasks)+len(p.livingDeparted))
	for _, w := range append(p.runningTasks, p.livingDeparted...) {
		open[w.CurrentRunID] = true
		recorded := w.CurrentRunID == 0 || p.ledger.runs[w.CurrentRunID].Task == w.ID
		// Record the claim, because a later pass must know whether its worker can still be alive.
		if w.Status == Running && w.isOnThisHost && !w.containerGone && !recorded {
			p.recordWorker(workerRecord{Run: w.CurrentRunID, Task: w.ID, IsForeignClaim: true})
		}
	}
	maps.DeleteFunc(p.runStates, func(run int64, _ *runState) bool { return !open[run] })
	if len(p.endedEntries) == 0 {
		return
	}
	if p.Runner != nil {
		p.Runner.Forget(lo.Map(p.endedEntries, func(e workerRecord, _ int) RunRef {
			return RunRef{DB: p.Store.paths.DB, Board: p.Store.paths.Board, Task: e.Task, Run: e.Run, Worker: e.Worker}
		}))
	}
	for _, e := range p.endedEntries {
		delete(p.ledger.runs, e.Run)
	}
	p.saveLedger()
}

// recordWorker writes an entry to the ledger, and adds this host, volume and container to it. It must be called before the
// worker can start.
func (p *boardPass) recordWorker(e workerRecord) {
	e.Host, e.BootID, e.Volume = p.Store.opt.Host, p.containerInstance, p.ExclusiveVolumeID
	p.ledger.runs[e.Run] = e
	p.saveLedger()
}

func (p *boardPass) saveLedger() {
	if err := p.ledger.save(); err != nil {
		p.log().Warn("cannot write the ledger of workers", "path", p.ledger.path, "error", err)
	}
}

// isWorkerGone reports whether the worker of a ledger entry has certainly ended. That is so if it ran in an earlier boot or
// container of this host. It is also so if it ran in an earlier container with the same data volume, because only one
// container at a time can have the volume.
func (p *boardPass) isWorkerGone(e workerRecord) bool {
	return e.BootID != "" && p.containerInstance != "" && e.BootID != p.containerInstance &&
		(e.Host == p.Store.opt.Host || e.Volume != "" && e.Volume == p.ExclusiveVolumeID)
}

// workerRef builds the RunRef with which the runner finds the worker of a running task. It takes the process from the ledger,
// and also sets w.dispatcherStarted and w.containerGone.
func (p *boardPass) workerRef(w *observedTask) RunRef {
	ref := p.Dispatcher.taskRef(w.Task)
	e, known := p.ledger.runs[w.CurrentRunID]
	if !known || e.Task != w.ID {
		return ref
	}
	w.containerGone = p.isWorkerGone(e)
	if e.IsForeignClaim || !w.containerGone && e.Host != p.Store.opt.Host {
		return ref
	}
	w.dispatcherStarted = true
	if w.WorkerPID == 0 || w.WorkerPID == e.PID {
		ref.Worker = e.Worker
	}
	return ref
}

func (d *Dispatcher) taskRef(t Task) RunRef {
	return RunRef{DB: d.Store.paths.DB, Board: d.Store.paths.Board, Task: t.ID, Run: t.CurrentRunID, Worker: Worker{PID: t.WorkerPID}}
}

// storeReport stores the runner's answer about a worker. It ignores NeverStarted if the ledger has no record that a
// dispatcher started the run: a person at a terminal may have made the claim, without any worker.
func (p *boardPass) storeReport(w *observedTask, s WorkerReport) {
	if s.Liveness == NeverStarted && !w.dispatcherStarted {
		return
	}
	w.liveness, w.exit = s.Liveness, s.Exit
	if s.Liveness == Alive || s.Liveness == Ended {
		w.isOnThisHost = true
		if s.Worker.PID != 0 {
			w.ref.Worker = s.Worker
		}
	}
}

// recordMissingPIDs writes the pids of workers to the board, if the dispatcher that started them died before it could. The
// pids come from the runner or the ledger.
func (p *boardPass) recordMissingPIDs(tasks []*observedTask) error {
	for _, w := range tasks {
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

// terminate ends workers in parallel. It asks the runner if the runner knows the worker, and otherwise uses the pid. The
// results are in the order of list.
func (p *boardPass) terminate(list []*observedTask) []Termination {
	ends := make([]Termination, len(list))
	var known []int
	var refs []RunRef
	var wait sync.WaitGroup
	for i, w := range list {
		switch {
		case w.liveness == Ended || w.liveness == NeverStarted || w.containerGone || w.pidReused:
			ends[i] = Termination{Attempted: true, Terminated: true}
		case w.liveness == Alive:
			known, refs = append(known, i), append(refs, w.ref)
		case w.WorkerPID == 0 || !w.isOnThisHost:
			// Kill nothing: the pid is unknown, or belongs to another host.
		default:
			wait.Go(func() { ends[i] = p.endByPID(w.WorkerPID, w.ID) })
		}
	}
	if len(refs) > 0 {
		by := p.Runner.End(p.ctx, refs, TerminateGrace)
		for n, i := range known {
			ends[i] = by[n]
			if w := list[i]; !ends[i].Attempted && w.ref.PID != 0 { // The runner doesn't know the run, so end the process by its pid.
				wait.Go(func() { ends[i] = p.endByPID(w.ref.PID, w.ID) })
			}
		}
	}
	wait.Wait()
	return ends
}

// endByPID ends a worker of which only the pid is known. It never ends another process: any program can write a pid to the
// board, so the process must have been started for the task. If the environment of the process can't be read, endByPID
// reports that the worker has survived.
func (p *boardPass) endByPID(pid int, task string) Termination {
	is, known := p.procs().IsWorkerOf(pid, task)
	if is {
		return p.procs().End(p.ctx, pid, TerminateGrace)
	}
	return Termination{Attempted: true, Terminated: known || !p.procs().Alive(pid)}
}

// mayStillRun reports whether a worker may still run after a termination. If so, its task must not get another worker.
func (w *observedTask) mayStillRun(t Termination) bool {
	return t.Attempted && w.isOnThisHost && !t.Terminated
}

// terminationInfo returns members for the payload of an event that tell how the worker was terminated.
func (w *observedTask) terminationInfo(t Termination) jsonObject {
	return jsonObject{
		{"prev_pid", nilIfZero(w.WorkerPID)}, {"host_local", w.isOnThisHost}, {"termination_attempted", t.Attempted}, {"terminated", t.Terminated}, {"sigkill", t.Killed},
	}
}

// write runs a write transaction with the time of the pass.
func (p *boardPass) write(do func(*writeTx)) error {
	return p.Store.write(p.ctx, time.Unix(p.now, 0), func(t *writeTx) error {
		do(t)
		return nil
	})
}
