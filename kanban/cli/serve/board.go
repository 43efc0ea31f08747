package serve

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/samber/lo"

	"hinit/internal/pause"
	"hinit/kanban"
)

// servedBoard is one board that the server dispatches, in its own goroutine.
type servedBoard struct {
	server      *Server
	slug        string
	workerEnded chan struct{} // Receives a value when a worker of any board has ended.
	lockTried   chan struct{} // Closed after the first try to lock the board, or when the board can't be opened.

	dispatcher       *kanban.Dispatcher
	changes          <-chan struct{} // Receives a value after a change of the board's file.
	dataVersion      int64           // Data version of the board before the last pass, see [kanban.Store.DataVersion].
	lastPassDuration time.Duration   // Duration of the last pass.
	stuckSince       time.Time       // Start of the oldest wait of ready tasks while none is started; zero: no ready task waits.
	lastWarning      time.Time       // Time of the last warning about stuck tasks.
	lastSummary      time.Time       // Time of the last summary.
}

const (
	// brokenBoardRetry is how long the server waits before it tries again to open a board that it couldn't open. A change of the
	// file ends the wait.
	brokenBoardRetry = 300 * time.Second
	// failedPassRetry is the pause after a failed pass. It doubles up to maxFailedPassRetry.
	failedPassRetry    = time.Second
	maxFailedPassRetry = 30 * time.Second
	// passTimeout is the time limit of a pass. A pass that takes longer is cancelled, and the next one continues.
	passTimeout = 5 * time.Minute
	// lockRetryPause is the pause between two tries to lock a board. A gateway, or a command that makes one pass, usually releases
	// the lock within quietRetries such pauses, so only a longer wait is reported.
	lockRetryPause = 250 * time.Millisecond
	quietRetries   = 4
	// While the container stops, the server makes a pass every finalPassPause, for finalPassesTimeout at most.
	finalPassPause     = 100 * time.Millisecond
	finalPassesTimeout = time.Minute
	// maxPassPause limits the pause before a pass that follows a change of the board's file, see [servedBoard.pauseBeforePass].
	maxPassPause = time.Second
	// The server warns when tasks have been ready for stuckWarningRounds intervals and none was started. It repeats the warning
	// after stuckWarningInterval.
	stuckWarningRounds   = 6
	stuckWarningInterval = 300 * time.Second
	// minSummaryInterval is the shortest time between two summaries of a board. A summary takes time, because it counts all
	// tasks.
	minSummaryInterval = time.Second
)

// serve dispatches the tasks of the board until ctx ends or the board is removed.
func (b *servedBoard) serve(ctx context.Context) {
	log := b.server.Log.With("board", b.slug)
	paths, err := b.server.Boards.Paths(b.slug)
	if err != nil {
		log.Error("cannot serve the board", "error", err)
		return
	}
	tried := sync.OnceFunc(func() { close(b.lockTried) })
	defer tried()
	for ctx.Err() == nil && b.server.Boards.Exists(b.slug) {
		if b.dispatcher, err = b.server.OpenBoard(ctx, paths); err != nil {
			if tried(); ctx.Err() == nil {
				log.Error("cannot open the board; it is left alone until the file changes", "error", err)
				b.server.setBoardText(b.slug, boardText{kanban.ExplainFileError(err), true})
				b.awaitRepair(ctx, paths.DB)
			}
			continue
		}
		changes, stop := WatchDatabase(paths.DB)
		b.changes = changes
		if b.lockBoard(ctx, tried) {
			b.runPasses(ctx)
		}
		if ctx.Err() != nil && b.server.IsStopping != nil && b.server.IsStopping() {
			b.makeFinalPasses()
		}
		stop()
		_ = b.dispatcher.Store.Close() // Ignore the error, because all writes are already done.
	}
}

// lockBoard waits until it has the board's tick lock. It opens the lock's file again for each try, because another program
// may replace the file. If the file can't be locked at all, lockBoard also returns true, and the board is dispatched without
// the lock. It returns false if ctx ends or the board is removed.
func (b *servedBoard) lockBoard(ctx context.Context, tried func()) bool {
	path := b.dispatcher.Store.Paths().TickLock()
	for times := 0; ; times++ {
		held, err := b.dispatcher.HoldTickLock()
		tried()
		if err != nil {
			b.server.Log.Warn("dispatching without the lock of the board", "path", path, "error", err)
		}
		if held || err != nil {
			return true
		}
		if times == quietRetries {
			b.server.Log.Info("another dispatcher has the board; waiting for its end", "lock", path)
			b.server.setBoardText(b.slug, boardText{text: "waits: another dispatcher has the board"})
		}
		if !pause.For(ctx, lockRetryPause) || !b.server.Boards.Exists(b.slug) || !b.dispatcher.Store.IsFileInPlace() {
			return false
		}
	}
}

// makeFinalPasses makes passes while the container stops, until all workers have ended. The passes start no workers; they release
// the claims of the ended ones. Otherwise the next dispatcher would have to wait until these claims expire.
func (b *servedBoard) makeFinalPasses() {
	ctx, cancel := context.WithTimeout(context.Background(), finalPassesTimeout)
	defer cancel()
	for {
		res, err := b.dispatcher.Tick(ctx, b.server.Now(), kanban.TickOptions{MaxSpawn: new(int)})
		b.report(res)
		if err != nil || res.AliveWorkers == 0 || !pause.For(ctx, finalPassPause) {
			return
		}
	}
}

// awaitRepair waits until a broken database file changes, for at most brokenBoardRetry. It waits for failedPassRetry in any case,
// because a program may write to the broken file all the time, and each check reads the whole file.
func (b *servedBoard) awaitRepair(ctx context.Context, db string) {
	was := fileVersion(db)
	changes, stop := WatchDatabase(db)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, brokenBoardRetry)
	defer cancel()
	pause.For(ctx, failedPassRetry)
	// The file of a removed board never changes again.
	for ctx.Err() == nil && fileVersion(db) == was && b.server.Boards.Exists(b.slug) {
		pause.Until(ctx, changes)
	}
}

// fileVersion returns a text that changes whenever a file is changed or replaced.
func fileVersion(path string) string {
	st, err := os.Stat(path)
	if err != nil {
		return "none"
	}
	return fmt.Sprint(st.Size(), st.ModTime().UnixNano())
}

// runPasses makes passes until ctx ends, or until the board's file is removed or replaced.
func (b *servedBoard) runPasses(ctx context.Context) {
	due := time.After(0)
	failed := failedPassRetry
	for {
		changed := false
		select {
		case <-ctx.Done():
			return
		case <-b.changes:
			changed = true
		case <-b.workerEnded:
		case <-due: // The first pass comes at once.
		}
		if !b.server.Boards.Exists(b.slug) || !b.dispatcher.Store.IsFileInPlace() {
			return
		}
		if changed {
			if v, err := b.dispatcher.Store.DataVersion(ctx); err == nil && v == b.dataVersion {
				continue // The change is from the server's own pass, so keep the planned time.
			}
			if !b.pauseBeforePass(ctx) {
				return
			}
		}
		wait, ok := b.makePass(ctx, &failed)
		if !ok {
			return
		}
		due = nil
		if wait > 0 {
			due = time.After(wait)
		}
	}
}

// pauseBeforePass waits before a pass that follows a change of the file: for as long as the last pass took, and at most
// maxPassPause. Without the pause, a board that changes all the time would cause passes without end. The end of a worker ends
// the pause. pauseBeforePass returns false if ctx has ended.
func (b *servedBoard) pauseBeforePass(ctx context.Context) bool {
	select {
	case <-time.After(min(b.lastPassDuration, maxPassPause)):
	case <-b.workerEnded:
	case <-ctx.Done():
		return false
	}
	return true
}

// makePass makes one pass. wait is the time until the next pass if the board doesn't change before; 0 means that no pass is
// planned. ok is false if the server can't use the board any more.
func (b *servedBoard) makePass(ctx context.Context, failed *time.Duration) (wait time.Duration, ok bool) {
	log := b.server.Log.With("board", b.slug)
	begin := b.server.Now()
	// Read the version before the pass. A program that changes the board during the pass makes the versions differ, which
	// causes one more pass.
	if v, err := b.dispatcher.Store.DataVersion(ctx); err == nil {
		b.dataVersion = v
	}
	// A request to stop must not cut off a pass that has begun.
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), passTimeout)
	defer cancel()
	res, err := b.dispatcher.Tick(limited, begin, kanban.TickOptions{})
	b.lastPassDuration = b.server.Now().Sub(begin)
	b.report(res)
	if ctx.Err() != nil {
		return 0, false
	}
	if err != nil {
		log.Warn("a pass has failed", "error", err)
		b.server.setBoardText(b.slug, boardText{"a pass has failed: " + kanban.ExplainFileError(err), true})
		wait, *failed = *failed, min(2**failed, maxFailedPassRetry)
		return wait, true
	}
	*failed = failedPassRetry
	now := b.server.Now()
	next, err := b.dispatcher.NextPassTime(ctx, now)
	if err != nil {
		log.Warn("cannot find the next deadline", "error", err)
		return failedPassRetry, true
	}
	if !next.IsZero() {
		wait = max(next.Sub(now), time.Millisecond)
	}
	if again := b.reportAndWarn(ctx, res, now); again > 0 && (wait == 0 || again < wait) {
		wait = again
	}
	return wait, true
}

// report logs which workers a pass has started, and which have ended.
func (b *servedBoard) report(res kanban.TickResult) {
	log := b.server.Log.With("board", b.slug)
	for _, t := range res.Spawned {
		log.Info("started", "task", t.Task, "profile", t.Assignee)
	}
	for _, x := range res.EndedRuns {
		log.Info("ended", "task", x.Task, "profile", x.Profile, "outcome", x.Outcome, "code", x.Exit.Code, "signal", x.Exit.Signal, "oom", x.Exit.OOM)
	}
	for _, f := range res.FailedSpawns {
		log.Warn("cannot start a worker", "task", f.Task, "error", f.Error)
	}
	for _, id := range res.AutoBlocked {
		log.Warn("blocked after too many failures", "task", id)
	}
}

// reportAndWarn updates the board's text on the status page. It logs a warning if ready tasks aren't started and the reason
// is unknown. again is the time after which the caller must call it again, or 0.
func (b *servedBoard) reportAndWarn(ctx context.Context, res kanban.TickResult, now time.Time) (again time.Duration) {
	if left := minSummaryInterval - now.Sub(b.lastSummary); left > 0 {
		again = left
	} else if st, err := b.dispatcher.Store.Stats(ctx, now); err == nil {
		b.lastSummary = now
		b.server.setBoardText(b.slug, boardText{text: BoardSummary(st, res)})
	}
	if len(res.Spawned) > 0 || len(res.SkippedCapped)+len(res.RespawnGuarded) > 0 || res.DueNotStarted == 0 {
		b.stuckSince = time.Time{}
		return again
	}
	if b.stuckSince.IsZero() {
		b.stuckSince = now
	}
	limit := stuckWarningRounds * max(b.dispatcher.Config.Interval, time.Second)
	if now.Sub(b.stuckSince) >= limit && now.Sub(b.lastWarning) >= stuckWarningInterval {
		b.lastWarning = now
		b.server.Log.Warn("kanban dispatcher stuck: tasks are ready and none is started; see: hinit kanban doctor", "board", b.slug, "since", b.stuckSince)
	}
	if again == 0 || limit < again {
		again = limit
	}
	return again
}

// BoardSummary describes a board in one line, such as "3 ready, 2 running (coder 1, ops 1), 1 blocked, 2 capped".
func BoardSummary(st kanban.Stats, res kanban.TickResult) string {
	parts := []string{fmt.Sprintf("%d ready", st.ByStatus[kanban.Ready])}
	running := fmt.Sprintf("%d running", st.ByStatus[kanban.Running])
	who := lo.FilterMap(slices.Sorted(maps.Keys(st.ByAssignee)), func(name string, _ int) (string, bool) {
		n := st.ByAssignee[name][kanban.Running]
		return fmt.Sprintf("%s %d", name, n), n > 0
	})
	if len(who) > 0 {
		running += " (" + strings.Join(who, ", ") + ")"
	}
	parts = append(parts, running, fmt.Sprintf("%d blocked", st.ByStatus[kanban.Blocked]))
	if n := len(res.SkippedCapped); n > 0 {
		parts = append(parts, fmt.Sprintf("%d capped", n))
	}
	if res.DepartedAlive > 0 {
		parts = append(parts, fmt.Sprintf("%d leaving", res.DepartedAlive))
	}
	return strings.Join(parts, ", ")
}
