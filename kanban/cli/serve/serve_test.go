package serve_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"hinit/kanban"
	"hinit/kanban/cli/serve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 40 * time.Second

func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// workerHost imitates the host of workers: its workers are map entries.
type workerHost struct {
	mu   sync.Mutex
	jobs map[string]kanban.Liveness // State of each worker, by task and run.
	all  []string
	wake chan struct{}
}

func newWorkerHost() *workerHost {
	return &workerHost{jobs: make(map[string]kanban.Liveness), wake: make(chan struct{}, 1)}
}

func key(r kanban.RunRef) string { return fmt.Sprint(r.DB, " ", r.Task, " ", r.Run) }

func (o *workerHost) Start(_ context.Context, job kanban.WorkerJob) (kanban.Worker, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, twice := o.jobs[key(job.RunRef)]; !twice {
		o.jobs[key(job.RunRef)] = kanban.Alive
		o.all = append(o.all, job.Task)
	}
	return kanban.Worker{PID: os.Getpid()}, nil
}

func (o *workerHost) WorkerStates(_ context.Context, refs []kanban.RunRef) ([]kanban.WorkerReport, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]kanban.WorkerReport, len(refs))
	for i, r := range refs {
		out[i] = kanban.WorkerReport{Liveness: o.jobs[key(r)], Exit: kanban.Exit{Known: true, Code: 1}}
	}
	return out, nil
}

func (o *workerHost) Withdraw(ctx context.Context, ref kanban.RunRef) (kanban.WorkerReport, error) {
	list, err := o.WorkerStates(ctx, []kanban.RunRef{ref})
	return list[0], err
}

func (o *workerHost) End(_ context.Context, refs []kanban.RunRef, _ time.Duration) []kanban.Termination {
	out := make([]kanban.Termination, len(refs))
	for i := range refs {
		out[i] = kanban.Termination{Attempted: true, Terminated: true}
	}
	return out
}

func (*workerHost) Leftovers(kanban.RunRef) ([]int, bool) { return nil, true }

func (*workerHost) Forget([]kanban.RunRef) {}

// crash ends every worker and wakes the server.
func (o *workerHost) crash() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for k := range o.jobs {
		o.jobs[k] = kanban.Ended
	}
	o.wake <- struct{}{}
}

func (o *workerHost) started() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.all)
}

// installation is a set of boards with a server's log.
type installation struct {
	*testing.T
	boards   *kanban.Boards
	log      bytes.Buffer
	mu       sync.Mutex
	messages []string
	trouble  string
}

func newInstallation(t *testing.T) *installation {
	t.Helper()
	root := t.TempDir()
	p := &installation{T: t, boards: &kanban.Boards{Root: root, Env: func(string) string { return "" }}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log:\n%s", p.log.String())
		}
	})
	return p
}

// Write collects the log.
func (p *installation) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *installation) logged(text string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Count(p.log.String(), text)
}

// serve runs a server until the test calls stop.
func (p *installation) serve(o *workerHost) (stop func()) {
	p.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &serve.Server{
		Boards: p.boards, WorkerEnded: o.wake, Log: slog.New(slog.NewTextHandler(p, nil)), Now: time.Now, OnReady: func() {},
		ShowStatus: func(text, trouble string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.messages, p.trouble = append(p.messages, text), trouble
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

func (p *installation) open(board string) *kanban.Store {
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

func (p *installation) create(s *kanban.Store) string {
	p.Helper()
	id, err := s.Create(p.Context(), time.Now(), kanban.Task{Title: "x", Assignee: "default"})
	if err != nil {
		p.Fatal(err)
	}
	return id
}

func TestAChangeOfTheBoardWakesIt(t *testing.T) {
	p, o := newInstallation(t), newWorkerHost()
	p.serve(o)
	s := p.open("")
	for n := range 3 { // Make one change after the other, because each must wake the server.
		p.create(s)
		await(t, "a worker", func() bool { return o.started() == n+1 })
	}
	await(t, "what is said", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.messages) > 0 && strings.Contains(p.messages[len(p.messages)-1], "running (default 3)")
	})
}

func TestTheEndOfAWorkerWakesIt(t *testing.T) {
	p, o := newInstallation(t), newWorkerHost()
	p.serve(o)
	s := p.open("")
	id := p.create(s)
	await(t, "a worker", func() bool { return o.started() == 1 })
	o.crash()
	await(t, "another attempt", func() bool { return o.started() == 2 })
	if runs, err := s.Runs(t.Context(), id); err != nil || runs[0].Outcome != "crashed" {
		t.Errorf("%+v, %v", runs, err)
	}
}

func TestANewBoardNeedsNoRestart(t *testing.T) {
	p, o := newInstallation(t), newWorkerHost()
	p.serve(o)
	if _, err := p.boards.Create(t.Context(), time.Now(), kanban.BoardMeta{Slug: "side"}); err != nil {
		t.Fatal(err)
	}
	s := p.open("side")
	p.create(s)
	await(t, "a worker of the new board", func() bool { return o.started() == 1 })
}

// TestARemovedBoardIsNotSpokenOf checks that the service's status line does not name removed
// boards.
func TestARemovedBoardIsNotSpokenOf(t *testing.T) {
	p, o := newInstallation(t), newWorkerHost()
	if _, err := p.boards.Create(t.Context(), time.Now(), kanban.BoardMeta{Slug: "side"}); err != nil {
		t.Fatal(err)
	}
	p.serve(o)
	last := func() string {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.messages[max(0, len(p.messages)-1):][0]
	}
	await(t, "both boards", func() bool { return p.spoken() && strings.Contains(last(), "side: ") })
	if _, err := p.boards.Remove(time.Now(), "side", true); err != nil {
		t.Fatal(err)
	}
	await(t, "one board", func() bool { return !strings.Contains(last(), "side: ") })
}

func (p *installation) troubled() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trouble
}

func (p *installation) spoken() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.messages) > 0
}

// TestManyBoardsAreBounded checks that the service watches only a limited number of boards, because
// agents can create any number.
func TestManyBoardsAreBounded(t *testing.T) {
	p, o := newInstallation(t), newWorkerHost()
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
	await(t, "the warning", func() bool { return p.logged("too many boards") > 0 })
	files, err := filepath.Glob(filepath.Join(p.boards.Root, "kanban/boards/*/kanban.db"))
	if err != nil || len(files) > 64 {
		t.Errorf("%d boards are served, %v", len(files), err)
	}
	p.create(p.open(""))
	await(t, "a worker of the default board", func() bool { return o.started() == 1 })
}

// TestABoardTakesAFreePlace checks that a board beyond the limit of 64 is served after another one
// is removed.
func TestABoardTakesAFreePlace(t *testing.T) {
	p, o := newInstallation(t), newWorkerHost()
	for n := range 64 {
		if _, err := p.boards.Create(t.Context(), time.Now(), kanban.BoardMeta{Slug: fmt.Sprintf("b%02d", n)}); err != nil {
			t.Fatal(err)
		}
	}
	p.serve(o)
	await(t, "the warning", func() bool { return p.logged("too many boards") > 0 })
	p.create(p.open("b63"))
	if _, err := p.boards.Remove(time.Now(), "b00", true); err != nil {
		t.Fatal(err)
	}
	await(t, "a worker of the last board", func() bool { return o.started() == 1 })
}

// TestABackupInPlaceOfTheBoardIsServed checks that the service continues with a backup that
// replaces the board's file.
func TestABackupInPlaceOfTheBoardIsServed(t *testing.T) {
	p, o := newInstallation(t), newWorkerHost()
	s := p.open("")
	p.serve(o)
	await(t, "the board", p.spoken)
	backup := filepath.Join(p.boards.Root, "backup.db")
	p.create(s)
	await(t, "a worker", func() bool { return o.started() == 1 })
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
	await(t, "a worker of the new file", func() bool { return o.started() == 2 })
}

// TestABoardWhoseLogWasRemovedIsServed checks that the service reopens a board whose write-ahead
// log was removed. Otherwise tasks would be lost.
func TestABoardWhoseLogWasRemovedIsServed(t *testing.T) {
	for _, end := range []string{"-wal", "-shm"} {
		t.Run(end, func(t *testing.T) {
			p, o := newInstallation(t), newWorkerHost()
			p.serve(o)
			await(t, "the board", p.spoken)
			log := filepath.Join(p.boards.Root, "kanban.db"+end)
			if err := os.Remove(log); err != nil {
				t.Fatal(err)
			}
			await(t, "the service to open the board again", func() bool {
				_, err := os.Stat(log)
				return err == nil
			})
			p.create(p.open(""))
			await(t, "a worker of the task", func() bool { return o.started() == 1 })
		})
	}
}

// TestACorruptBoardIsLoggedOnceAndLeftAlone checks that a broken board is logged once and does not
// disturb others (contract, 28.12).
func TestACorruptBoardIsLoggedOnceAndLeftAlone(t *testing.T) {
	p, o := newInstallation(t), newWorkerHost()
	if _, err := p.boards.Create(t.Context(), time.Now(), kanban.BoardMeta{Slug: "side"}); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(p.boards.Root, "kanban.db")
	if err := os.WriteFile(broken, bytes.Repeat([]byte("no database "), 100), 0o644); err != nil {
		t.Fatal(err)
	}
	p.serve(o)
	await(t, "the error", func() bool { return p.logged("cannot open the board") == 1 })
	p.create(p.open("side"))
	await(t, "a worker of the other board", func() bool { return o.started() == 1 })
	if trouble := p.troubled(); !strings.HasPrefix(trouble, "cannot open board") || strings.Contains(trouble, "side: ") {
		t.Errorf("somebody has to look after %q", trouble)
	}
	if n := p.logged("cannot open the board"); n != 1 || p.logged("goroutine ") > 0 {
		t.Errorf("the error was logged %d times, or with a stack", n)
	}
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	p.create(p.open(""))
	await(t, "a worker of the mended board", func() bool { return o.started() == 2 })
	await(t, "the end of the trouble", func() bool { return p.troubled() == "" })
}

// TestTheNextTakesOver checks that a second server waits, and takes over when the first ends.
func TestTheNextTakesOver(t *testing.T) {
	p, first, second := newInstallation(t), newWorkerHost(), newWorkerHost()
	stop := p.serve(first)
	s := p.open("")
	p.create(s)
	await(t, "a worker of the first", func() bool { return first.started() == 1 })
	stopSecond := p.serve(second)
	await(t, "the second to wait", func() bool { return p.logged("another dispatcher has the board") == 1 })
	p.create(s)
	await(t, "another worker of the first", func() bool { return first.started() == 2 })
	stop()
	p.create(s)
	await(t, "a worker of the second", func() bool { return second.started() == 1 })
	if first.started() != 2 {
		t.Errorf("the first has started %d", first.started())
	}
	stopSecond()
}

// TestNothingIsStartedTwice checks that a manual dispatch beside the service starts no task twice.
func TestNothingIsStartedTwice(t *testing.T) {
	p, o, byHand := newInstallation(t), newWorkerHost(), newWorkerHost()
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
	await(t, "all to be started", func() bool { return o.started()+byHand.started() >= n })
	seen := make(map[string]bool)
	for _, id := range append(append([]string{}, o.all...), byHand.all...) {
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
	if got, want := serve.Summary(st, kanban.Result{SkippedCapped: make([]kanban.CappedTask, 2)}), "3 ready, 2 running (coder 1, ops 1), 1 blocked, 2 capped"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
