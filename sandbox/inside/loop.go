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

// loop owns the process table and all runs. Only its goroutine accesses them.
type loop struct {
	table    *proc.Table
	calls    chan func()
	runs     map[uint64]*run
	next     uint64
	oomKills func() uint64 // number of processes in this container that the kernel has killed for lack of memory; 0 if unknown
}

// run is a started command with its process tree.
type run struct {
	id        uint64
	mainAlive bool      // the main process has not been reaped yet
	end       mux.End   // how the main process and its tree have ended
	deadline  time.Time // the time limit; zero for none
	grace     time.Duration

	killAt      time.Time // when SIGKILL is due; zero unless the run is being ended
	giveUpAt    time.Time // when to give up on processes that survive SIGKILL
	killsBefore uint64
	kept        bool         // the run is kept after its main process has ended, so that its tree can still be ended
	onDone      func(*run)   // called when the main process has ended; when the tree is being ended, after its last process
	onForget    []func(*run) // called when the run is dropped
}

const (
	// survivorTime limits the wait for processes that survive SIGKILL, because they hang in the kernel or belong to another user.
	survivorTime = 3 * time.Second
	// treeCheckInterval is the interval between checks of a tree that is being ended. The loop also checks the tree after the end of
	// each process.
	treeCheckInterval = 10 * time.Millisecond
	// oomBias makes the kernel kill commands rather than the helper when memory runs out.
	oomBias = 200
)

func newLoop() (*loop, error) {
	proc.RestoreIgnoredSignals()
	table, err := proc.New()
	if err != nil {
		return nil, err
	}
	kills := proc.OOMKills()
	if kills == nil {
		kills = func() uint64 { return 0 }
	}
	return &loop{table: table, calls: make(chan func(), 64), runs: make(map[uint64]*run), oomKills: kills}, nil
}

// serve runs the loop. It never returns.
func (l *loop) serve() {
	runtime.LockOSThread() // children with Spec.DiesWithStarter are killed when the thread that started them ends
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	for {
		due := time.After(l.tick(time.Now()))
		select {
		case <-children:
			l.reap()
		case f := <-l.calls:
			f()
		case <-due:
		}
	}
}

// spawn starts a process. The loop calls the function done once, when the main process has ended. If the tree is being ended, the
// loop calls done when the whole tree has ended. done must not block. If keep is true, the loop keeps the run until forget is
// called.
func (l *loop) spawn(spec proc.Spec, timeout, grace time.Duration, keep bool, done func(*run)) (r *run, pid int, err error) {
	l.call(func() {
		l.next++
		spec.ID, spec.OOM, spec.DiesWithStarter = l.next, oomBias, !keep
		r = &run{id: l.next, mainAlive: true, grace: grace, kept: keep, onDone: done, killsBefore: l.oomKills()}
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

// call runs f in the loop's goroutine and waits until f has returned.
func (l *loop) call(f func()) {
	done := make(chan struct{})
	l.calls <- func() { f(); close(done) }
	<-done
}

// endTree begins to end a run's process tree, without waiting. If gone is not nil, the loop calls this function when the tree has
// ended, or when the loop has given up on it.
func (l *loop) endTree(r *run, grace time.Duration, gone func(*run)) {
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

func (l *loop) endTreeNow(r *run, grace time.Duration, why *bool) {
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
		l.table.SignalTree(r.id, int(unix.SIGCONT)) // a stopped process handles SIGTERM only after SIGCONT
	} else if due.Before(r.killAt) {
		r.killAt = due
	}
}

func (l *loop) reap() {
	trees := false
	for _, r := range l.runs {
		trees = trees || !r.killAt.IsZero() || r.kept
	}
	l.table.Reap(trees, func(x proc.Exit) {
		r := l.runs[x.ID]
		if r == nil {
			return
		}
		r.mainAlive, r.end.Code, r.end.Signal = false, x.Code, x.Signal
		r.end.OOM = l.oomKills() > r.killsBefore
		if r.killAt.IsZero() {
			l.finish(r)
		}
	})
}

// tick performs the actions that are due at the time now. It returns the time to wait until the next call.
func (l *loop) tick(now time.Time) time.Duration {
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
			l.finish(r)
			continue
		case now.Before(r.killAt):
		case l.table.SignalTree(r.id, int(unix.SIGKILL)) == 0 && !r.mainAlive:
			l.finish(r)
			continue
		case r.giveUpAt.IsZero():
			r.giveUpAt = now.Add(survivorTime)
		case now.After(r.giveUpAt):
			r.end.Survivors = l.table.SignalTree(r.id, 0)
			l.finish(r)
			continue
		}
		next = min(next, treeCheckInterval)
	}
	return next
}

// emptyRuns returns the ids of the runs that are being ended and have no process left.
func (l *loop) emptyRuns() (ids []uint64) {
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

func (l *loop) finish(r *run) {
	if done := r.onDone; done != nil {
		r.onDone = nil
		done(r)
	}
	if r.kept && r.killAt.IsZero() {
		return
	}
	delete(l.runs, r.id)
	l.table.Forget(r.id)
	for _, tell := range r.onForget {
		tell(r)
	}
}

// forget drops a run that was spawned with keep.
func (l *loop) forget(r *run) {
	l.calls <- func() {
		r.kept = false
		if !r.mainAlive {
			l.finish(r)
		}
	}
}

// killSession kills the processes of a session that were started earlier than the time before, in clock ticks, see [proc.StartTicks].
// Processes that were started later belong to another session with the same number.
func (l *loop) killSession(session int, before uint64) {
	_ = procstat.Each("/proc", func(p procstat.Stat) {
		if session > 1 && p.Session == session && p.Start < before && !p.Dead() && p.PID != os.Getpid() {
			l.table.SignalOther(p, int(unix.SIGKILL))
		}
	})
}
