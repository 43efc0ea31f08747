package serve_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"hinit/internal/pause"
	"hinit/kanban"
	"hinit/kanban/cli/serve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = 40 * time.Second

func awaitCondition(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !so(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", testTimeout, what)
		}
	}
}

// fakeWorkerHost imitates the host of workers: its workers are map entries.
type fakeWorkerHost struct {
	mu           sync.Mutex
	jobs         map[string]kanban.Liveness // State of each worker, by task and run.
	startedTasks []string
	wake         chan struct{}
}

func newFakeWorkerHost() *fakeWorkerHost {
	return &fakeWorkerHost{jobs: make(map[string]kanban.Liveness), wake: make(chan struct{}, 1)}
}

func runKey(r kanban.RunRef) string { return fmt.Sprint(r.DB, " ", r.Task, " ", r.Run) }

func (o *fakeWorkerHost) Start(_ context.Context, job kanban.WorkerJob) (kanban.Worker, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, twice := o.jobs[runKey(job.RunRef)]; !twice {
		o.jobs[runKey(job.RunRef)] = kanban.Alive
		o.startedTasks = append(o.startedTasks, job.Task)
	}
	return kanban.Worker{PID: os.Getpid()}, nil
}

func (o *fakeWorkerHost) WorkerStates(_ context.Context, refs []kanban.RunRef) ([]kanban.WorkerReport, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]kanban.WorkerReport, len(refs))
	for i, r := range refs {
		out[i] = kanban.WorkerReport{Liveness: o.jobs[runKey(r)], Exit: kanban.Exit{Known: true, Code: 1}}
	}
	return out, nil
}

func (o *fakeWorkerHost) Withdraw(ctx context.Context, ref kanban.RunRef) (kanban.WorkerReport, error) {
	list, err := o.WorkerStates(ctx, []kanban.RunRef{ref})
	return list[0], err
}

func (o *fakeWorkerHost) End(_ context.Context, refs []kanban.RunRef, _ time.Duration) []kanban.Termination {
	out := make([]kanban.Termination, len(refs))
	for i := range refs {
		out[i] = kanban.Termination{Attempted: true, Terminated: true}
	}
	return out
}

func (*fakeWorkerHost) Leftovers(kanban.RunRef) ([]int, bool) { return nil, true }

func (*fakeWorkerHost) Forget([]kanban.RunRef) {}

// crash ends every worker and wakes the server.
func (o *fakeWorkerHost) crash() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for k := range o.jobs {
		o.jobs[k] = kanban.Ended
	}
	o.wake <- struct{}{}
}

func (o *fakeWorkerHost) started() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.startedTasks)
}

// testInstallation is a set of boards with a server's log.
type testInstallation struct {
	*testing.T
	boards      *kanban.Boards
	log         bytes.Buffer
	mu          sync.Mutex
	messages    []string
	troubleText string
}

func newTestInstallation(t *testing.T) *testInstallation {
	t.Helper()
	root := t.TempDir()
	p := &testInstallation{T: t, boards: &kanban.Boards{Root: root, Env: func(string) string { return "" }}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log:\n%s", p.log.String())
		}
	})
	return p
}

// Write collects the log.
func (p *testInstallation) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *testInstallation) countLogged(text string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Count(p.log.String(), text)
}

// serve runs a server until the test calls stop.
func (p *testInstallation) serve(o *fakeWorkerHost) (stop func()) {
	p.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &serve.Server{
		Boards: p.boards, WorkerEnded: o.wake, Log: slog.New(slog.NewTextHandler(p, nil)), Now: time.Now, OnReady: func() {},
		ShowStatus: func(text, trouble string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.messages, p.troubleText = append(p.messages, text), trouble
		},
		OpenBoard: func(ctx context.Context, paths kanban.Paths) (*kanban.Dispatcher, error) {
			store, err := kanban.Open(ctx, paths, kanban.Options{Env: p.boards.Env, Log: slog.New(slog.NewTextHandler(p, nil))})
			if err != nil {
				return nil, err
			}
			return &kanban.Dispatcher{Store: store, Runner: o, Profiles: kanban.ProfileDirs(p.boards.Root)}, nil
		},
	}
	over := make(chan error, 1)
	go func() { over <- s.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-over; err != nil {
				p.Error(err)
			}
		})
	}
	p.Cleanup(stop)
	return stop
}

func (p *testInstallation) open(board string) *kanban.Store {
	p.Helper()
	paths, err := p.boards.Paths(board)
	if err != nil {
		p.Fatal(err)
	}
	s, err := kanban.Open(p.Context(), paths, kanban.Options{Env: p.boards.Env})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = s.Close() })
	return s
}

func (p *testInstallation) create(s *kanban.Store) string {
	p.Helper()
	id, err := s.Create(p.Context(), time.Now(), kanban.Task{Title: "x", Assignee: "default"})
	if err != nil {
		p.Fatal(err)
	}
	return id
}

func TestAChangeOfTheBoardWakesIt(t *testing.T) {
	p, o := newTestInstallation(t), newFakeWorkerHost()
	p.serve(o)
	s := p.open("")
	for n := range 3 { // Make one change after the other, because each must wake the server.
		p.create(s)
		awaitCondition(t, "a worker", func() bool { return o.started() == n+1 })
	}
	awaitCondition(t, "what is said", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.messages) > 0 && strings.Contains(p.messages[len(p.messages)-1], "running (default 3)")
	})
}

func TestTheEndOfAWorkerWakesIt(t *testing.T) {
	p, o := newTestInstallation(t), newFakeWorkerHost()
	p.serve(o)
	s := p.open("")
	id := p.create(s)
	awaitCondition(t, "a worker", func() bool { return o.started() == 1 })
	o.crash()
	awaitCondition(t, "another attempt", func() bool { return o.started() == 2 })
	if runs, err := s.Runs(t.Context(), id); err != nil || runs[0].Outcome != "crashed" {
		t.Errorf("%+v, %v", runs, err)
	}
}

func TestANewBoardNeedsNoRestart(t *testing.T) {
	p, o := newTestInstallation(t), newFakeWorkerHost()
	p.serve(o)
	if _, err := p.boards.Create(t.Context(), time.Now(), kanban.BoardMeta{Slug: "side"}); err != nil {
		t.Fatal(err)
	}
	s := p.open("side")
	p.create(s)
	awaitCondition(t, "a worker of the new board", func() bool { return o.started() == 1 })
}

// A board whose file was copied for some seconds, and then renamed in the board's directory, was dispatched an hour later.
func TestABoardWhoseFileComesLaterIsServed(t *testing.T) {
	t.Parallel()
	p, o := newTestInstallation(t), newFakeWorkerHost()
	s := p.open("")
	p.create(s)
	dir := filepath.Join(p.boards.Root, "kanban", "boards", "late")
	if err := errors.Join(s.Backup(t.Context(), p.boards.Root+"/copy.db"), os.MkdirAll(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	p.serve(o)
	awaitCondition(t, "a worker of the default board", func() bool { return o.started() == 1 })
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	pause.For(t.Context(), 5*time.Second) // the time of the copy; the server read the list of boards again for 4 s only
	if err := os.Rename(p.boards.Root+"/copy.db", dir+"/kanban.db"); err != nil {
		t.Fatal(err)
	}
	awaitCondition(t, "a worker of the new board", func() bool { return o.started() == 2 })
}

// TestARemovedBoardIsNotSpokenOf checks that the service's status line does not name removed
// boards.
func TestARemovedBoardIsNotSpokenOf(t *testing.T) {
	p, o := newTestInstallation(t), newFakeWorkerHost()
	if _, err := p.boards.Create(t.Context(), time.Now(), kanban.BoardMeta{Slug: "side"}); err != nil {
		t.Fatal(err)
	}
	p.serve(o)
	last := func() string {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.messages[max(0, len(p.messages)-1):][0]
	}
	awaitCondition(t, "both boards", func() bool { return p.spoken() && strings.Contains(last(), "side: ") })
	if _, err := p.boards.Remove(time.Now(), "side", true); err != nil {
		t.Fatal(err)
	}
	awaitCondition(t, "one board", func() bool { return !strings.Contains(last(), "side: ") })
}

func (p *testInstallation) currentTrouble() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.troubleText
}

func (p *testInstallation) spoken() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.messages) > 0
}

// TestManyBoardsAreBounded checks that the service watches only a limited number of boards, because
// agents can create any number.
func TestManyBoardsAreBounded(t *testing.T) {
	p, o := newTestInstallation(t), newFakeWorkerHost()
	for n := range 80 {
		dir := filepath.Join(p.boards.Root, "kanban/boards", fmt.Sprint("b", n))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "board.json"), []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p.serve(o)
	awaitCondition(t, "the warning", func() bool { return p.countLogged("too many boards") > 0 })
	files, err := filepath.Glob(filepath.Join(p.boards.Root, "kanban/boards/*/kanban.db"))
	if err != nil || len(files) > 64 {
		t.Errorf("%d boards are served, %v", len(files), err)
	}
	p.create(p.open(""))
	awaitCondition(t, "a worker of the default board", func() bool { return o.started() == 1 })
}

// TestABoardTakesAFreePlace checks that a board beyond the limit of 64 is served after another one
// is removed.
func TestABoardTakesAFreePlace(t *testing.T) {
	p, o := newTestInstallation(t), newFakeWorkerHost()
	for n := range 64 {
		if _, err := p.boards.Create(t.Context(), time.Now(), kanban.BoardMeta{Slug: fmt.Sprintf("b%02d", n)}); err != nil {
			t.Fatal(err)
		}
	}
	p.serve(o)
	awaitCondition(t, "the warning", func() bool { return p.countLogged("too many boards") > 0 })
	p.create(p.open("b63"))
	if _, err := p.boards.Remove(time.Now(), "b00", true); err != nil {
		t.Fatal(err)
	}
	awaitCondition(t, "a worker of the last board", func() bool { return o.started() == 1 })
}

// TestABackupInPlaceOfTheBoardIsServed checks that the service continues with a backup that
// replaces the board's file.
func TestABackupInPlaceOfTheBoardIsServed(t *testing.T) {
	p, o := newTestInstallation(t), newFakeWorkerHost()
	s := p.open("")
	p.serve(o)
	awaitCondition(t, "the board", p.spoken)
	backup := filepath.Join(p.boards.Root, "backup.db")
	p.create(s)
	awaitCondition(t, "a worker", func() bool { return o.started() == 1 })
	if err := s.Backup(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	_ = s.Close() // Ignore the error: nothing was written to this file.
	for _, name := range []string{"-wal", "-shm"} {
		_ = os.Remove(filepath.Join(p.boards.Root, "kanban.db"+name)) // Remove fails if the file does not exist.
	}
	if err := os.Rename(backup, filepath.Join(p.boards.Root, "kanban.db")); err != nil {
		t.Fatal(err)
	}
	p.create(p.open(""))
	awaitCondition(t, "a worker of the new file", func() bool { return o.started() == 2 })
}

// TestABoardWhoseLogWasRemovedIsServed checks that the service reopens a board whose write-ahead
// log was removed. Otherwise tasks would be lost.
func TestABoardWhoseLogWasRemovedIsServed(t *testing.T) {
	for _, end := range []string{"-wal", "-shm"} {
		t.Run(end, func(t *testing.T) {
			p, o := newTestInstallation(t), newFakeWorkerHost()
			p.serve(o)
			awaitCondition(t, "the board", p.spoken)
			log := filepath.Join(p.boards.Root, "kanban.db"+end)
			if err := os.Remove(log); err != nil {
				t.Fatal(err)
			}
			awaitCondition(t, "the service to open the board again", func() bool {
				_, err := os.Stat(log)
				return err == nil
			})
			p.create(p.open(""))
			awaitCondition(t, "a worker of the task", func() bool { return o.started() == 1 })
		})
	}
}

// TestACorruptBoardIsLoggedOnceAndLeftAlone checks that a broken board is logged once and does not
// disturb others (contract, 28.12).
func TestACorruptBoardIsLoggedOnceAndLeftAlone(t *testing.T) {
	p, o := newTestInstallation(t), newFakeWorkerHost()
	if _, err := p.boards.Create(t.Context(), time.Now(), kanban.BoardMeta{Slug: "side"}); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(p.boards.Root, "kanban.db")
	if err := os.WriteFile(broken, bytes.Repeat([]byte("no database "), 100), 0o644); err != nil {
		t.Fatal(err)
	}
	p.serve(o)
	awaitCondition(t, "the error", func() bool { return p.countLogged("cannot open the board") == 1 })
	p.create(p.open("side"))
	awaitCondition(t, "a worker of the other board", func() bool { return o.started() == 1 })
	if trouble := p.currentTrouble(); !strings.HasPrefix(trouble, "cannot open board") || strings.Contains(trouble, "side: ") {
		t.Errorf("somebody has to look after %q", trouble)
	}
	if n := p.countLogged("cannot open the board"); n != 1 || p.countLogged("goroutine ") > 0 {
		t.Errorf("the error was logged %d times, or with a stack", n)
	}
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	p.create(p.open(""))
	awaitCondition(t, "a worker of the mended board", func() bool { return o.started() == 2 })
	awaitCondition(t, "the end of the trouble", func() bool { return p.currentTrouble() == "" })
}

// TestTheNextTakesOver checks that a second server waits, and takes over when the first ends.
func TestTheNextTakesOver(t *testing.T) {
	p, first, second := newTestInstallation(t), newFakeWorkerHost(), newFakeWorkerHost()
	stop := p.serve(first)
	s := p.open("")
	p.create(s)
	awaitCondition(t, "a worker of the first", func() bool { return first.started() == 1 })
	stopSecond := p.serve(second)
	awaitCondition(t, "the second to wait", func() bool { return p.countLogged("another dispatcher has the board") == 1 })
	p.create(s)
	awaitCondition(t, "another worker of the first", func() bool { return first.started() == 2 })
	stop()
	p.create(s)
	awaitCondition(t, "a worker of the second", func() bool { return second.started() == 1 })
	if first.started() != 2 {
		t.Errorf("the first has started %d", first.started())
	}
	stopSecond()
}

// TestNothingIsStartedTwice checks that a manual dispatch beside the service starts no task twice.
func TestNothingIsStartedTwice(t *testing.T) {
	p, o, byHand := newTestInstallation(t), newFakeWorkerHost(), newFakeWorkerHost()
	p.serve(o)
	s := p.open("")
	d := &kanban.Dispatcher{
		Store: s, Runner: byHand, Profiles: kanban.ProfileDirs(p.boards.Root),
	}
	const n = 20
	for range n {
		p.create(s)
		if _, err := d.Tick(t.Context(), time.Now(), kanban.TickOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	awaitCondition(t, "all to be started", func() bool { return o.started()+byHand.started() >= n })
	seen := make(map[string]bool)
	for _, id := range append(append([]string{}, o.startedTasks...), byHand.startedTasks...) {
		if seen[id] {
			t.Errorf("%s was started twice", id)
		}
		seen[id] = true
	}
}

func TestSummary(t *testing.T) {
	st := kanban.Stats{
		ByStatus:   map[kanban.Status]int{kanban.Ready: 3, kanban.Running: 2, kanban.Blocked: 1},
		ByAssignee: map[string]map[kanban.Status]int{"ops": {kanban.Running: 1}, "coder": {kanban.Running: 1, kanban.Ready: 3}},
	}
	if got, want := serve.BoardSummary(st, kanban.TickResult{SkippedCapped: make([]kanban.CappedTask, 2)}), "3 ready, 2 running (coder 1, ops 1), 1 blocked, 2 capped"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
