package serve

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/samber/lo"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/watch"
	"hinit/internal/watch/shared"
	"hinit/kanban"
)

// Server dispatches the tasks of all boards of an installation. Set the exported fields before [Server.Run], and don't change
// them afterwards.
type Server struct {
	Boards *kanban.Boards
	// OpenBoard opens a board and returns a new dispatcher for it. The Server closes the dispatcher's store.
	OpenBoard   func(ctx context.Context, paths kanban.Paths) (*kanban.Dispatcher, error)
	WorkerEnded <-chan struct{} // Receives a value when a worker has ended.
	// Shows a text about all boards on the status page. trouble is the part about problems that a
	// person must solve, or "".
	ShowStatus func(text, trouble string)
	OnReady    func() // Called once, when each board's lock was tried or after maxReadyDelay.
	// IsStopping reports whether the container is stopping, and so ends its workers. nil means that it never stops.
	IsStopping func() bool
	Log        *slog.Logger
	Now        func() time.Time

	mu              sync.Mutex
	served          map[string]*servedBoard // Served boards by slug.
	boardsAtWarning int                     // Number of boards in the last warning about too many boards; 0: no warning yet.
	boardEnded      chan struct{}           // Receives a value when the server stops serving a board.

	textsLock       sync.Mutex           // Guards texts and lastStatusTexts, and serialises calls of ShowStatus.
	boardTexts      map[string]boardText // Texts for ShowStatus, by the board's slug.
	lastStatusTexts [2]string            // Arguments of the last call of ShowStatus.
}

// boardText is the text about one board for [Server.ShowStatus]. problem is true if a person must solve a problem.
type boardText struct {
	text      string
	isProblem bool
}

// maxBoards limits the number of boards that are served. Each board needs descriptors and a watcher, and an agent can make
// any number of boards.
const maxBoards = 64

// rescanEvery is the interval at which the list of boards is read even if the kernel reports no change.
const rescanEvery = time.Hour

// Run dispatches the boards until ctx ends. It returns an error only if it can't make the directory of the boards.
//
// Run holds the tick lock of each board that it serves. Meanwhile, the agent's gateways don't dispatch the board's tasks. They
// still decompose tasks and send notifications.
func (s *Server) Run(ctx context.Context) error {
	s.boardEnded = make(chan struct{}, 1)
	s.served, s.boardTexts = make(map[string]*servedBoard), make(map[string]boardText)
	var all sync.WaitGroup
	defer all.Wait()
	dir := filepath.Join(s.Boards.Root, "kanban", "boards")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot serve the boards: %w", err)
	}
	listChanges, stop := watchFiles(dir, "")
	defer stop()
	s.scanBoards(ctx, &all)
	all.Go(func() { s.reportReady(ctx) })
	rescan := time.Tick(rescanEvery)
	for {
		select {
		case <-ctx.Done():
			return nil
		// Ignore that a new board's directory is still empty: the watch reports the change again after firstSettlePause.
		case <-listChanges:
			s.scanBoards(ctx, &all)
		case <-rescan:
			s.scanBoards(ctx, &all)
		case <-s.boardEnded:
			if s.boardsAtWarning > 0 {
				s.scanBoards(ctx, &all)
			}
		case <-s.WorkerEnded: // Any of the boards may have started the worker, so tell all.
			s.mu.Lock()
			for _, b := range s.served {
				pause.Wake(b.workerEnded)
			}
			s.mu.Unlock()
		}
	}
}

// maxReadyDelay limits how long the server waits for boards that can't be opened, before it calls OnReady. The agent's gateways
// start only after that call, and a broken board must not prevent their start.
const maxReadyDelay = 3 * time.Second

// reportReady calls OnReady when each board's lock was tried or maxReadyDelay has passed.
func (s *Server) reportReady(ctx context.Context) {
	s.mu.Lock()
	boards := slices.Collect(maps.Values(s.served))
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, maxReadyDelay)
	defer cancel()
	for _, b := range boards {
		pause.Until(ctx, b.lockTried)
	}
	s.OnReady()
}

// scanBoards reads the list of boards and starts a goroutine for each new one.
func (s *Server) scanBoards(ctx context.Context, all *sync.WaitGroup) {
	list, err := s.Boards.List()
	if err != nil {
		s.Log.Error("cannot list the boards", "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range list {
		if m.Archived || s.served[m.Slug] != nil {
			continue
		}
		if len(s.served) >= maxBoards {
			if s.boardsAtWarning != len(list) {
				s.Log.Warn("there are too many boards; the rest is not dispatched", "served", maxBoards, "boards", len(list))
			}
			s.boardsAtWarning = len(list)
			break
		}
		b := &servedBoard{server: s, slug: m.Slug, workerEnded: make(chan struct{}, 1), lockTried: make(chan struct{})}
		s.served[m.Slug] = b
		all.Go(func() {
			defer guard.CatchPanic("serving board " + m.Slug)
			b.serve(ctx)
			if ctx.Err() == nil {
				s.setBoardText(m.Slug, boardText{})
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.served, m.Slug)
			pause.Wake(s.boardEnded) // Read the list again, because another board can be served now.
		})
	}
}

// setBoardText replaces the text about one board, or removes it if the new text is empty. If the texts of all boards have
// changed, it passes them to ShowStatus.
func (s *Server) setBoardText(slug string, w boardText) {
	s.textsLock.Lock()
	defer s.textsLock.Unlock()
	if s.boardTexts[slug] = w; w.text == "" {
		delete(s.boardTexts, slug)
	}
	var all, troubles []string
	for _, slug := range slices.Sorted(maps.Keys(s.boardTexts)) {
		w := s.boardTexts[slug]
		if slug != kanban.DefaultBoard {
			w.text = slug + ": " + w.text
		}
		all = append(all, w.text)
		if w.isProblem {
			troubles = append(troubles, w.text)
		}
	}
	now := [2]string{strings.Join(all, "; "), strings.Join(troubles, "; ")}
	if s.lastStatusTexts != now {
		s.ShowStatus(now[0], now[1])
	}
	s.lastStatusTexts = now
}

// The kernel may report a change before other programs can see it, because the writer syncs its data first. So the watch
// reports each change again after firstSettlePause, and then after pauses that double up to lastSettlePause. For the list of
// boards the pauses double up to rescanEvery. The copy of a database may take long, and gets its name at the end, in a directory
// that is not watched.
const (
	firstSettlePause = 2 * time.Millisecond
	lastSettlePause  = 2 * time.Second
)

// pollInterval is how often a file counts as changed where the kernel does not report all changes, as on a network file system.
const pollInterval = 2 * time.Second

// WatchDatabase watches the database file db. changes receives a value after one or more changes, and sometimes without a
// change. stop ends the watch. WatchDatabase watches the whole directory, because SQLite creates and removes the write-ahead
// log there.
func WatchDatabase(db string) (changes <-chan struct{}, stop func()) {
	return watchFiles(filepath.Dir(db), filepath.Base(db))
}

// watchFiles watches the file base in the directory dir, and its companions -wal and -shm. If base is "", it watches all files in
// dir.
func watchFiles(dir, base string) (changes <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	news := make(chan struct{}, 1)
	f := shared.ProcessWatch.Follow(dir, func(e watch.Event) bool {
		name := filepath.Base(e.Name)
		return e.Op != watch.Chmod && (base == "" || name == base || name == base+"-wal" || name == base+"-shm")
	})
	last, poll := lastSettlePause, time.Duration(0)
	if !f.Rearm() || !fsutil.IsLocal(dir) {
		poll = pollInterval
	} else if base == "" {
		last = rescanEvery
	}
	over := guard.GoWithDone("watching "+dir, func() {
		defer f.Close()
		forwardChanges(ctx, f, last, poll, news)
	})
	return news, func() {
		cancel()
		<-over
	}
}

// forwardChanges sends a value to news after each change, and again after each settle pause, of which last is the longest. If poll
// is not 0, it also sends a value at this interval.
func forwardChanges(ctx context.Context, f *shared.Follower, last, poll time.Duration, news chan<- struct{}) {
	// Report again after a pause, because a change from just before the watch may not be visible yet.
	for settle := firstSettlePause; ; {
		limit := lo.Ternary(settle > last, poll, settle)
		changed, err := f.Wait(ctx, limit)
		switch {
		case err != nil:
			return
		case changed:
			settle = firstSettlePause
		case settle <= last:
			settle *= 2
		}
		pause.Wake(news)
	}
}
