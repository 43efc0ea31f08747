package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
	"hinit/kanban"
)

// Server dispatches for all boards of an installation. Its fields must not change while it runs.
type Server struct {
	Boards *kanban.Boards
	// Board makes the dispatcher of a board; the Server closes its store.
	Board func(ctx context.Context, paths kanban.Paths) (*kanban.Dispatcher, error)
	Wake  <-chan struct{}   // receives when a worker has ended
	Say   func(text string) // shown beside the service; nil for none
	// Stopping says whether the container stops, and the workers with it; nil where that is never so.
	Stopping func() bool
	Log      *slog.Logger
	Now      func() time.Time

	mu     sync.Mutex
	serves map[string]*board
	texts  map[string]string // by board
	said   string
}

// rescanEvery is how often the list of boards is read where nothing says that it has changed.
const rescanEvery = time.Hour

// Run serves until ctx ends. The error is about what it can't do without.
//
// It holds the lock of each board's pass for as long as it serves the board. So the agent's gateways find that lock held, and dispatch
// nothing; the rest of their loop, which decomposes tasks, and their notifier go on.
func (s *Server) Run(ctx context.Context) error {
	s.serves, s.texts = make(map[string]*board), make(map[string]string)
	var all sync.WaitGroup
	defer all.Wait()
	dir := filepath.Join(s.Boards.Root, "kanban", "boards")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot serve the boards: %w", err)
	}
	list, err := watchDir(dir)
	if err != nil {
		return err
	}
	defer list.Close()
	s.scan(ctx, &all)
	timer := time.NewTicker(rescanEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-list.C: // a new directory is empty at first; it is told again when it has settled
			s.scan(ctx, &all)
		case <-timer.C:
			s.scan(ctx, &all)
		case <-s.Wake:
			s.poke()
		}
	}
}

// whenFree blocks until nobody holds a lock of either kind that the kernel has.
func whenFree(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &unix.Flock_t{Type: unix.F_WRLCK})
		}
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// scan begins to serve boards that are new.
func (s *Server) scan(ctx context.Context, all *sync.WaitGroup) {
	list, err := s.Boards.List()
	if err != nil {
		s.Log.Error("cannot list the boards", "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range list {
		if m.Archived || s.serves[m.Slug] != nil {
			continue
		}
		b := &board{server: s, slug: m.Slug, poked: make(chan struct{}, 1)}
		s.serves[m.Slug] = b
		all.Go(func() {
			defer guard.Catch("serving board " + m.Slug)
			b.serve(ctx)
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.serves, m.Slug)
		})
	}
}

// poke lets every board look at its workers.
func (s *Server) poke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.serves {
		select {
		case b.poked <- struct{}{}:
		default:
		}
	}
}

// say shows what there is to say of a board, "" for nothing, with that of the others.
func (s *Server) say(slug, text string) {
	s.mu.Lock()
	if s.texts[slug] = text; text == "" {
		delete(s.texts, slug)
	}
	var all []string
	for _, slug := range slices.Sorted(maps.Keys(s.texts)) {
		text := s.texts[slug]
		if slug != "" && slug != kanban.DefaultBoard {
			text = slug + ": " + text
		}
		all = append(all, text)
	}
	text = strings.Join(all, "; ")
	same := s.said == text
	s.said = text
	s.mu.Unlock()
	if s.Say != nil && !same {
		s.Say(text)
	}
}
