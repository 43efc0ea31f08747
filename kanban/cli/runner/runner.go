package runner

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"strconv"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/internal/runs"
	"hinit/kanban"
)

// runHost starts, stops and lists one-shot runs. [pid1Host] and [localHost] implement it.
type runHost interface {
	start(ctx context.Context, tag string, job kanban.WorkerJob) (client.Run, error)
	StopRun(ctx context.Context, id string) (client.Run, error)
	Runs(ctx context.Context) ([]client.Run, error)
	// FollowRuns calls tell once for every run, and again whenever a run begins or ends. It returns when ctx ends. It returns
	// an error if the host can no longer report runs.
	FollowRuns(ctx context.Context, tell func(client.Run) error) error
}

// Runner implements [kanban.Runner] for workers that a host starts as one-shot runs. Close it after use.
type Runner struct {
	host       runHost
	cancel     context.CancelFunc
	followDone <-chan struct{} // Closed when the goroutine that follows the runs has ended.

	mu          sync.Mutex
	runs        map[string]client.Run // Runs by tag.
	adoptedPIDs map[int]bool          // Pids of an earlier dispatcher's workers; one goroutine waits for the exit of each.
	runEnded    chan struct{}         // Closed when a run has ended, and then replaced.
	workerEnded chan struct{}
}

// followRetryPause is the pause after which FollowRuns is called again when it failed. It usually fails because PID 1 re-executes
// itself.
const followRetryPause = 200 * time.Millisecond

func newRunner(ctx context.Context, h runHost) (*Runner, error) {
	r := &Runner{
		host: h, runs: make(map[string]client.Run), adoptedPIDs: make(map[int]bool), runEnded: make(chan struct{}),
		workerEnded: make(chan struct{}, 1),
	}
	if err := r.reloadRuns(ctx); err != nil {
		return nil, err
	}
	follow, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.cancel = cancel
	r.followDone = guard.GoWithDone("following the runs", func() {
		for follow.Err() == nil {
			// Ignore the error: if the host still fails, Start and End return that error.
			_ = r.host.FollowRuns(follow, func(run client.Run) error {
				r.storeRun(run)
				return nil
			})
			pause.For(follow, followRetryPause)
		}
	})
	return r, nil
}

// Close stops following the runs. The workers continue.
func (r *Runner) Close() {
	r.cancel()
	<-r.followDone
}

// WorkerEnded returns a channel that receives a value when a worker has ended. The dispatcher should then make a pass.
func (r *Runner) WorkerEnded() <-chan struct{} { return r.workerEnded }

func (r *Runner) reloadRuns(ctx context.Context) error {
	list, err := r.host.Runs(ctx)
	if err != nil {
		return err
	}
	for _, run := range list {
		r.storeRun(run)
	}
	return nil
}

// storeRun stores the new state of a run. If the run has ended, it wakes all goroutines that wait for the end of a run.
func (r *Runner) storeRun(run client.Run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, had := r.runs[run.Tag]
	if had && known.End != nil { // The run has already ended, so this report is outdated.
		return
	}
	r.runs[run.Tag] = run
	if run.End != nil {
		if len(r.runs) > 2*runs.MaxEndedRuns { // The agent can start any number of other runs, so limit the map.
			maps.DeleteFunc(r.runs, func(_ string, old client.Run) bool { return old.End != nil && old.Seq+runs.MaxEndedRuns < run.Seq })
		}
		close(r.runEnded)
		r.runEnded = make(chan struct{})
		pause.Wake(r.workerEnded)
	}
}

// runTag returns the name of an attempt's run. It is different for each attempt on any board of the container.
func runTag(ref kanban.RunRef) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(ref.DB)) // Writing to a hash never fails.
	return fmt.Sprintf("%s.%x/%s/%d", ref.Board, h.Sum64(), ref.Task, ref.Run)
}

// Start implements [kanban.Runner].
func (r *Runner) Start(ctx context.Context, job kanban.WorkerJob) (kanban.Worker, error) {
	run, err := r.host.start(ctx, runTag(job.RunRef), job)
	if err != nil {
		return kanban.Worker{}, wrapHostError(err)
	}
	r.storeRun(run)
	if run.PID == 0 && run.End != nil {
		return kanban.Worker{}, fmt.Errorf("%s", run.End.Error)
	}
	return workerReport(run).Worker, nil
}

// unavailableHostErrors lists the kinds of error that prevent the host from starting any worker now. The value is true if the
// worker may start in spite of the error.
var unavailableHostErrors = map[client.Kind]bool{
	client.KindBusy: false, client.KindStopping: false, client.KindNotAllowed: false,
	client.KindUnreachable: true, client.KindTimeout: true, client.KindReplaced: true,
}

// wrapHostError turns an error that concerns all workers of the host into a [kanban.HostError]. It returns an error about a
// single worker unchanged.
func wrapHostError(err error) error {
	unsure := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	host := unsure
	if answer, is := errors.AsType[*client.Error](err); is {
		unsure, host = unavailableHostErrors[answer.Kind]
	}
	if host {
		return &kanban.HostError{Err: err, MayHaveStarted: unsure}
	}
	return err
}

// WorkerStates implements [kanban.Runner].
func (r *Runner) WorkerStates(ctx context.Context, refs []kanban.RunRef) ([]kanban.WorkerReport, error) {
	out := make([]kanban.WorkerReport, len(refs))
	fresh := false
	for i, ref := range refs {
		run, known := r.knownRun(ref)
		// The dispatcher may have died after it claimed the task, before the host reported the worker's pid.
		if !known && ref.PID == 0 && !fresh {
			fresh = true
			if err := r.reloadRuns(ctx); err != nil {
				return nil, err
			}
			run, known = r.knownRun(ref)
		}
		switch {
		case known:
			out[i] = workerReport(run)
		case ref.PID == 0:
			if out[i] = findUnrecordedWorker(ref); out[i].Liveness == kanban.Alive {
				r.wakeWhenEnded(out[i].Worker)
			}
		default:
			r.wakeWhenEnded(ref.Worker)
		}
	}
	return out, nil
}

// workerReport converts the state of a run to a [kanban.WorkerReport].
func workerReport(run client.Run) kanban.WorkerReport {
	s := kanban.WorkerReport{Liveness: kanban.Alive, Worker: kanban.Worker{PID: run.PID, StartTime: run.StartTicks}}
	if run.End != nil {
		s.Liveness, s.Exit = kanban.Ended, exitOf(run)
	}
	return s
}

// nonexistentDir is a path at which no directory can ever exist. A run with this working directory always fails to start.
const nonexistentDir = os.DevNull + "/withdrawn"

// Withdraw implements [kanban.Runner]. A host starts only one run for each tag, so Withdraw starts a run with the worker's
// tag in nonexistentDir. That run fails and uses up the tag, so the host never starts the worker. If the worker was already
// started, the host returns the worker's run instead. If the host refuses the failing run, it also refuses the worker.
func (r *Runner) Withdraw(ctx context.Context, ref kanban.RunRef) (kanban.WorkerReport, error) {
	run, err := r.host.start(ctx, runTag(ref), kanban.WorkerJob{RunRef: ref, Dir: nonexistentDir})
	if err == nil {
		r.storeRun(run)
		return workerReport(run), nil
	}
	if err := wrapHostError(err); errors.As(err, new(*kanban.HostError)) {
		return kanban.WorkerReport{}, err
	}
	return kanban.WorkerReport{Liveness: kanban.NeverStarted}, nil
}

func (r *Runner) knownRun(ref kanban.RunRef) (client.Run, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	run, known := r.runs[runTag(ref)]
	return run, known
}

// exitOf converts the end of a run to a [kanban.Exit].
func exitOf(run client.Run) kanban.Exit {
	e := run.End
	x := kanban.Exit{
		Known: !e.ExitUnknown, OOM: e.OOM, Terminated: run.StopReason != "" || e.Cause == "operator" || e.Cause == "shutdown", EndedAt: e.EndedAt,
		DuringShutdown: run.StopReason == client.RunShutdown || e.Cause == "shutdown",
	}
	switch {
	case e.Signal != nil:
		x.Signal = *e.Signal
	case e.Code != nil:
		x.Code = *e.Code
	default:
		x.Known = false
	}
	return x
}

// endReportTimeout is how long End waits, after the grace of a worker, for the host to kill it and report its end.
const endReportTimeout = 5 * time.Second

// End implements [kanban.Runner].
func (r *Runner) End(ctx context.Context, refs []kanban.RunRef, grace time.Duration) []kanban.Termination {
	out := make([]kanban.Termination, len(refs))
	var all sync.WaitGroup
	for i, ref := range refs {
		if run, known := r.knownRun(ref); known {
			all.Go(func() { out[i] = r.endRun(ctx, run, grace) })
		}
	}
	all.Wait()
	return out
}

func (r *Runner) endRun(ctx context.Context, run client.Run, grace time.Duration) kanban.Termination {
	t := kanban.Termination{Attempted: true}
	if run.End == nil {
		if _, err := r.host.StopRun(ctx, run.ID); err != nil {
			return t
		}
	}
	ctx, cancel := context.WithTimeout(ctx, grace+endReportTimeout)
	defer cancel()
	for {
		r.mu.Lock()
		now, bell := r.runs[run.Tag], r.runEnded
		r.mu.Unlock()
		if now.End != nil {
			t.Terminated = true
			t.Killed = now.End.Signal != nil && *now.End.Signal == 9
			return t
		}
		if !pause.Until(ctx, bell) {
			return t
		}
	}
}

// Forget implements [kanban.Runner]. It removes the runs from the memory of this process. The host removes its own data later
// without a request.
func (r *Runner) Forget(refs []kanban.RunRef) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ref := range refs {
		if run, known := r.runs[runTag(ref)]; known && run.End != nil {
			delete(r.runs, runTag(ref))
		}
	}
}

// wakeWhenEnded starts a goroutine that waits for the exit of a worker that an earlier dispatcher started, and then wakes the
// dispatcher.
func (r *Runner) wakeWhenEnded(w kanban.Worker) {
	if ticks, alive := proc.StartTicks(w.PID); !alive || w.StartTime != 0 && ticks != w.StartTime {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.adoptedPIDs[w.PID] {
		return
	}
	r.adoptedPIDs[w.PID] = true
	guard.Go("waiting for a worker", func() {
		kanban.AwaitProcess(w.PID)
		r.mu.Lock()
		delete(r.adoptedPIDs, w.PID)
		r.mu.Unlock()
		pause.Wake(r.workerEnded)
	})
}

// findUnrecordedWorker looks for the worker of an attempt whose dispatcher died before it could record the pid. It searches the
// environments of all processes for the attempt's variables.
func findUnrecordedWorker(ref kanban.RunRef) kanban.WorkerReport {
	pids, sure, _ := scanProcesses(map[string]string{"HERMES_KANBAN_RUN_ID": strconv.FormatInt(ref.Run, 10), "HERMES_KANBAN_DB": ref.DB})
	switch {
	case len(pids) > 0:
		ticks, _ := proc.StartTicks(pids[0])
		return kanban.WorkerReport{Liveness: kanban.Alive, Worker: kanban.Worker{PID: pids[0], StartTime: ticks}}
	case sure:
		return kanban.WorkerReport{Liveness: kanban.NeverStarted}
	}
	return kanban.WorkerReport{Liveness: kanban.Unknown}
}

// Leftovers implements [kanban.Runner].
func (r *Runner) Leftovers(ref kanban.RunRef) (pids []int, ok bool) {
	pids, _, ok = scanProcesses(map[string]string{"HERMES_KANBAN_TASK": ref.Task, "HERMES_KANBAN_DB": ref.DB})
	return pids, ok
}

// scanTimeout limits the wait for a scan of all processes. A scan can hang, because reading the environment of a process in a
// frozen control group blocks.
const scanTimeout = 5 * time.Second

// scanProcesses calls [kanban.ProcessesWithVars], and returns its results pids and sure. It returns ok false after scanTimeout,
// for instance because an earlier scan hangs.
func scanProcesses(vars map[string]string) (pids []int, sure, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), scanTimeout)
	defer cancel()
	var found []int
	var all bool
	err := blocking.Within(ctx, blocking.Environ, "looking for processes", func() error {
		found, all = kanban.ProcessesWithVars(vars)
		return nil
	})
	if err != nil {
		return nil, false, false
	}
	return found, all, true
}
