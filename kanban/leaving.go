package kanban

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/samber/lo"
	"github.com/samber/lo/parallel"

	"hinit/internal/procstat"
	"hinit/internal/wholefile"
)

// departedWorkers returns the workers in the dispatcher's ledger whose attempt is over on the board. The attempt was
// finished, or another program has released the task. open is the set of the runs of all running tasks.
func (p *boardPass) departedWorkers(open map[int64]bool) (left []*observedTask, err error) {
	for run, e := range p.ledger.runs {
		if open[run] {
			continue
		}
		// Another program made the claim, or the worker has ended with its container or machine.
		if e.IsForeignClaim || e.BootID != p.containerInstance {
			p.endedEntries = append(p.endedEntries, e)
			continue
		}
		w := &observedTask{Task: Task{ID: e.Task, WorkerPID: e.PID, CurrentRunID: run}, dispatcherStarted: true, isOnThisHost: true, isHandled: true}
		w.ref = p.Dispatcher.taskRef(w.Task)
		w.ref.Worker = e.Worker
		left = append(left, w)
		end, err := queryFirst[struct {
			Assignee string
			Status   Status
			At       int64
		}](p.ctx, p.Store.db, `SELECT t.assignee, t.status, CAST(r.ended_at AS INTEGER)
			FROM tasks t JOIN task_runs r ON r.task_id = t.id WHERE r.id = ?`, run)
		if err != nil {
			return nil, fmt.Errorf("cannot read an attempt that is over: %w", err)
		}
		w.Assignee, w.Status, w.since = end.Assignee, end.Status, end.At
	}
	return left, nil
}

// sortDeparted sorts the workers in left, whose attempt is over, by the state of their process. A worker that still runs goes
// to p.livingDeparted, and an ended one to p.endedEntries. A worker whose start was requested and may still happen goes to
// p.unansweredStarts.
func (p *boardPass) sortDeparted(left []*observedTask) {
	for _, w := range left {
		alive := w.liveness == Alive
		if w.liveness == Unknown && w.ref.PID != 0 {
			alive = p.procs().Alive(w.ref.PID) && !p.pidWasReused(w)
		}
		switch w.WorkerPID = w.ref.PID; {
		case alive:
			p.livingDeparted = append(p.livingDeparted, w)
		case w.ref.PID == 0 && w.liveness != Ended:
			p.unansweredStarts = append(p.unansweredStarts, w)
		default:
			p.endedEntries = append(p.endedEntries, p.ledger.runs[w.CurrentRunID])
		}
	}
}

// cancelStarts withdraws the requests to start the workers in list, which the runner has not answered. Otherwise a late start
// could run beside the worker of a new attempt. If a worker turns out to run already, cancelStarts adds it to
// p.livingDeparted.
func (p *boardPass) cancelStarts(list []*observedTask) {
	for _, w := range list {
		s, err := p.Runner.Withdraw(p.ctx, w.ref)
		switch {
		case err != nil:
			p.log().Warn("cannot withdraw the start of a worker; the task waits", "task", w.ID, "run", w.CurrentRunID, "error", err)
			p.unansweredStarts = append(p.unansweredStarts, w)
		case s.Liveness == Alive:
			p.storeReport(w, s)
			w.WorkerPID = w.ref.PID
			p.livingDeparted = append(p.livingDeparted, w)
		default:
			p.endedEntries = append(p.endedEntries, p.ledger.runs[w.CurrentRunID])
		}
	}
}

// departedDeadline returns the time at which to end a worker whose attempt is over, in seconds since 1970. The worker first gets
// some time, because it usually still writes something after it has finished its task. 0 means now.
func (p *boardPass) departedDeadline(w *observedTask) int64 {
	failedAt, at := p.runStateOf(w.CurrentRunID).endFailedAt, w.since+envSeconds(p.Store.opt.Env, "HINIT_KANBAN_LEAVE_SECONDS", 0, DefaultDepartedGrace)
	switch {
	case failedAt != 0:
		return min(failedAt, p.now) + survivorRetrySeconds
	// End the worker now: a new attempt waits for its end, or w.since is useless because the clock was set back.
	case w.Status == Ready, w.Status == Review, w.since > p.now+clockSlackSeconds:
		return 0
	}
	return at
}

// endDepartedWorkers ends the workers whose attempt is over and whose [boardPass.departedDeadline] has passed.
func (p *boardPass) endDepartedWorkers() error {
	due, stay := lo.FilterReject(p.livingDeparted, func(w *observedTask, _ int) bool { return p.departedDeadline(w) <= p.now })
	p.livingDeparted = append(stay, p.terminateDeparted(due)...)
	return nil
}

// terminateDeparted ends the workers in due, whose attempt is over. It returns the workers that survive SIGKILL.
func (p *boardPass) terminateDeparted(due []*observedTask) (survive []*observedTask) {
	for i, end := range p.terminate(due) {
		w := due[i]
		p.log().Info("ended a worker whose attempt is over", "task", w.ID, "run", w.CurrentRunID, "pid", w.WorkerPID, "ended", end.Terminated)
		if end.Terminated {
			continue
		}
		p.runStateOf(w.CurrentRunID).endFailedAt = p.now
		survive = append(survive, w)
	}
	return survive
}

// endLeftovers ends all processes that earlier attempts at a task have left behind, whichever program started them. It
// reports whether all have ended. Only then may the caller start the task again, because two attempts must not use one
// workspace at the same time.
func (p *boardPass) endLeftovers(task string) bool {
	mine, others := lo.FilterReject(p.livingDeparted, func(w *observedTask, _ int) bool { return w.ID == task })
	if !slices.ContainsFunc(mine, func(w *observedTask) bool { return p.departedDeadline(w) > p.now }) {
		mine = p.terminateDeparted(mine)
		p.livingDeparted = append(others, mine...)
	}
	if len(mine) > 0 || p.Runner == nil {
		return len(mine) == 0
	}
	if slices.ContainsFunc(p.unansweredStarts, func(w *observedTask) bool { return w.ID == task }) {
		return false
	}
	ref := RunRef{DB: p.Store.paths.DB, Task: task}
	left, ok := p.Runner.Leftovers(ref)
	if len(left) > 0 { // The runner does not know these workers, so end them by pid.
		parallel.ForEach(left, func(pid, _ int) { p.procs().End(p.ctx, pid, TerminateGrace) })
		left, ok = p.Runner.Leftovers(ref)
	}
	if len(left) > 0 || !ok {
		p.log().Warn("cannot end the processes of an earlier attempt; the task waits", "task", task, "pids", left, "seen", ok)
	}
	return len(left) == 0 && ok
}

// DepartedWorker is a living worker whose attempt is over.
type DepartedWorker struct {
	Task, Profile           string
	Run                     int64
	PID                     int
	AttemptEnd, EndDeadline time.Time // End of the attempt, and the time at which the dispatcher ends the worker.
}

// DepartedWorkers lists the living workers whose attempt is over.
func (d *Dispatcher) DepartedWorkers(ctx context.Context, now time.Time) ([]DepartedWorker, error) {
	p, err := d.observe(ctx, now)
	return lo.Map(p.livingDeparted, func(w *observedTask, _ int) DepartedWorker {
		return DepartedWorker{w.ID, w.Assignee, w.CurrentRunID, w.WorkerPID, time.Unix(w.since, 0), time.Unix(p.departedDeadline(w), 0)}
	}), err
}

// workerRecord is an entry of the dispatcher's ledger, which lists the workers that it started or
// was about to start (PID 0). Host, volume and boot show later whether the worker can still be
// alive. The ledger also has claims of other programs on the same host.
type workerRecord struct {
	Run            int64  `json:"run,omitempty"`
	Task           string `json:"task,omitempty"`
	Host           string `json:"host,omitempty"`
	Volume         string `json:"volume,omitempty"`
	IsForeignClaim bool   `json:"seen,omitempty"` // Whether another program or a person made the claim, which may have no worker.
	Worker
}

// workerLedger is the dispatcher's ledger: a file with a workerRecord for each worker. The file has one JSON object a line; the
// last entry of a run is the valid one. Only the holder of the tick lock writes it. The file needs no fsync: it is only
// needed after a crash of the dispatcher. After a crash of the machine, no worker is left.
type workerLedger struct {
	path string
	runs map[int64]workerRecord
}

func readLedger(path string) *workerLedger {
	l := &workerLedger{path: path, runs: make(map[int64]workerRecord)}
	data, _ := wholefile.Read(path, maxFileSize) // An unreadable file counts as empty, and the next save replaces it.
	for line := range bytes.Lines(data) {
		var e workerRecord
		if json.Unmarshal(line, &e) == nil && e.Run != 0 {
			l.runs[e.Run] = e
		}
	}
	return l
}

func (l *workerLedger) save() error {
	var b bytes.Buffer
	for _, e := range l.runs {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		b.Write(append(line, '\n'))
	}
	return replaceFile(l.path, b.Bytes())
}

// currentContainerID identifies this container: the boot of the machine and the start of PID 1. A worker whose ledger entry has
// another value has ended with its container or machine. "" means that /proc can't be read.
func currentContainerID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	id := strings.TrimSpace(string(boot))
	if st, err := procstat.Read(1); err == nil {
		id += "/" + strconv.FormatUint(st.Start, 10)
	}
	return id
}
