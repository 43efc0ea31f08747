package inside

import (
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/sandbox/mux"
)

// processLoop is the goroutine that starts, signals and reaps processes. Only it accesses the process table and the runs, so they need
// no mutex.
type processLoop struct {
	table     *proc.Table
	calls     chan func() // Functions that other goroutines want the loop to call.
	runs      map[uint64]*run
	nextRunID uint64 // ID of the next run.
	// Function that returns how many processes of this container the kernel has killed for lack of memory; 0 if unknown.
	oomKills func() uint64
}

// run is a started command and its process tree.
type run struct {
	id        uint64
	mainAlive bool          // Whether the main process has not been reaped yet.
	end       mux.End       // Exit of the main process, and why the loop ended the tree.
	deadline  time.Time     // Time limit of the run; zero: none.
	grace     time.Duration // Time from SIGTERM to SIGKILL.

	killAt          time.Time    // Time to send SIGKILL; zero unless the tree is being ended.
	giveUpAt        time.Time    // Time to stop waiting for processes that survive SIGKILL.
	oomKillsAtStart uint64       // Value of oomKills at the start of the run.
	keepAfterEnd    bool         // Whether to keep the run after its main process has ended, so that its tree can be ended later.
	onDone          func(*run)   // Called when the main process has ended, or after the whole tree if the tree is being ended.
	onForget        []func(*run) // Called when the run is dropped.
}

const (
	// survivorTimeout is how long to wait for processes that survive SIGKILL. They hang in the kernel or belong to another user.
	survivorTimeout = 3 * time.Second
	// treeCheckInterval is how often the loop looks for remaining processes of a tree that it ends. The loop also looks after
	// the end of each process.
	treeCheckInterval = 10 * time.Millisecond
	// oomScoreIncrease is added to the oom_score_adj of commands. When memory runs out, the kernel then kills a command and not
	// the helper.
	oomScoreIncrease = 200
)

func newProcessLoop() (*processLoop, error) {
	proc.RestoreIgnoredSignals()
	table, err := proc.New()
	if err != nil {
		return nil, err
	}
	kills := proc.OOMKillCounter()
	if kills == nil {
		kills = func() uint64 { return 0 }
	}
	return &processLoop{table: table, calls: make(chan func(), 64), runs: make(map[uint64]*run), oomKills: kills}, nil
}

// serve runs the loop. It never returns.
func (l *processLoop) serve() {
	// Stay on one thread, because the kernel kills children with Spec.DiesWithStarter when the thread that started them ends.
	runtime.LockOSThread()
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	for {
		due := time.After(l.handleDeadlines(time.Now()))
		select {
		case <-children:
			l.reap()
		case f := <-l.calls:
			f()
		case <-due:
		}
	}
}

// spawn starts a process. The loop calls done once: when the main process has ended or, if the tree is being ended, when the
// whole tree has ended. done must not block. If keep is true, the run stays until forget is called.
func (l *processLoop) spawn(spec proc.Spec, timeout, grace time.Duration, keep bool, done func(*run)) (r *run, pid int, err error) {
	l.runInLoop(func() {
		l.nextRunID++
		spec.ID, spec.OOMIncrease, spec.DiesWithStarter = l.nextRunID, oomScoreIncrease, !keep
		r = &run{id: l.nextRunID, mainAlive: true, grace: grace, keepAfterEnd: keep, onDone: done, oomKillsAtStart: l.oomKills()}
		if pid, err = l.table.Spawn(spec); err != nil {
			return
		}
		if timeout > 0 {
			r.deadline = time.Now().Add(timeout)
		}
		l.runs[r.id] = r
	})
	return r, pid, err
}

// runInLoop runs f in the loop's goroutine, and returns when f has returned.
func (l *processLoop) runInLoop(f func()) {
	done := make(chan struct{})
	l.calls <- func() { f(); close(done) }
	<-done
}

// endTree begins to end a run's process tree and does not wait. The loop calls gone when the tree has ended or the loop has
// given up on it. gone may be nil.
func (l *processLoop) endTree(r *run, grace time.Duration, gone func(*run)) {
	l.calls <- func() {
		switch {
		case l.runs[r.id] != nil && gone != nil:
			r.onForget = append(r.onForget, gone)
		case gone != nil:
			gone(r)
		}
		l.endTreeNow(r, grace, &r.end.Interrupted)
	}
}

func (l *processLoop) endTreeNow(r *run, grace time.Duration, why *bool) {
	if l.runs[r.id] == nil {
		return
	}
	due := time.Now().Add(grace)
	if !r.end.TimedOut && !r.end.Interrupted {
		*why = true
	}
	if r.killAt.IsZero() {
		r.killAt = due
		l.table.SignalTree(r.id, int(unix.SIGTERM))
		l.table.SignalTree(r.id, int(unix.SIGCONT)) // A stopped process can't handle SIGTERM, so continue it.
	} else if due.Before(r.killAt) {
		r.killAt = due
	}
}

func (l *processLoop) reap() {
	trees := false
	for _, r := range l.runs {
		trees = trees || !r.killAt.IsZero() || r.keepAfterEnd
	}
	l.table.Reap(trees, func(x proc.Exit) {
		r := l.runs[x.ID]
		if r == nil {
			return
		}
		r.mainAlive, r.end.Code, r.end.Signal = false, x.Code, x.Signal
		r.end.OOM = l.oomKills() > r.oomKillsAtStart
		if r.killAt.IsZero() {
			l.callOnDone(r)
		}
	})
}

// handleDeadlines handles deadlines that have passed at the time now, for instance by sending SIGKILL. It returns the time until
// the next deadline.
func (l *processLoop) handleDeadlines(now time.Time) time.Duration {
	next := time.Hour
	gone := sync.OnceValue(l.emptyRuns)
	for _, r := range l.runs {
		if r.killAt.IsZero() {
			if r.deadline.IsZero() || !r.mainAlive {
				continue
			}
			if left := r.deadline.Sub(now); left > 0 {
				next = min(next, left)
				continue
			}
			l.endTreeNow(r, r.grace, &r.end.TimedOut)
		}
		switch {
		case slices.Contains(gone(), r.id):
			l.callOnDone(r)
			continue
		case now.Before(r.killAt):
		case l.table.SignalTree(r.id, int(unix.SIGKILL)) == 0 && !r.mainAlive:
			l.callOnDone(r)
			continue
		case r.giveUpAt.IsZero():
			r.giveUpAt = now.Add(survivorTimeout)
		case now.After(r.giveUpAt):
			r.end.Survivors = l.table.SignalTree(r.id, 0)
			l.callOnDone(r)
			continue
		}
		next = min(next, treeCheckInterval)
	}
	return next
}

// emptyRuns returns the ids of the runs that are being ended and have no process left.
func (l *processLoop) emptyRuns() (ids []uint64) {
	for _, r := range l.runs {
		if !r.killAt.IsZero() && !r.mainAlive {
			ids = append(ids, r.id)
		}
	}
	if len(ids) > 0 {
		ids = l.table.EndedRuns(ids)
	}
	return ids
}

func (l *processLoop) callOnDone(r *run) {
	if done := r.onDone; done != nil {
		r.onDone = nil
		done(r)
	}
	if r.keepAfterEnd && r.killAt.IsZero() {
		return
	}
	delete(l.runs, r.id)
	l.table.Forget(r.id)
	for _, tell := range r.onForget {
		tell(r)
	}
}

// forget drops a run that was spawned with keep.
func (l *processLoop) forget(r *run) {
	l.calls <- func() {
		r.keepAfterEnd = false
		if !r.mainAlive {
			l.callOnDone(r)
		}
	}
}

// killSession kills the processes of a session (setsid(2)) that were started before the time before, in clock ticks, see
// [proc.StartTicks]. A process that was started later belongs to a newer session with the same number.
func (l *processLoop) killSession(session int, before uint64) {
	_ = procstat.EachProcess("/proc", func(p procstat.Stat) {
		if session > 1 && p.Session == session && p.Start < before && !p.Dead() && p.PID != os.Getpid() {
			l.table.SignalNonChild(p, int(unix.SIGKILL))
		}
	})
}
