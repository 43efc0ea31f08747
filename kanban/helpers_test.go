package kanban

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"hinit/internal/testkit"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("KANBAN_TEST_ROLE"); role != "" {
		os.Exit(runStormRole(role))
	}
	useOFDLocks() // make SQLite use OFD locks before a test opens a database
	slog.SetDefault(slog.New(slog.DiscardHandler))
	testkit.IsolateProcess()
	goleak.VerifyTestMain(m)
}

// testEnv is the environment of one test.
type testEnv map[string]string

func (e testEnv) get(name string) string { return e[name] }

// testBoard is a board with a dispatcher. The test controls its runner, processes, profiles and clock.
type testBoard struct {
	*Store
	t          *testing.T
	dispatcher *Dispatcher
	env        testEnv
	runner     *fakeRunner
	procs      *fakeProcs
	now        time.Time
}

const testHost = "host"

func newBoard(t *testing.T) *testBoard {
	t.Helper()
	return openBoard(t, t.TempDir(), testEnv{})
}

func openBoard(t *testing.T, root string, e testEnv) *testBoard {
	t.Helper()
	boards := &Boards{Root: root, Env: e.get}
	paths, err := boards.Paths("")
	must(t, err)
	s, err := Open(t.Context(), paths, Options{Env: e.get, Host: testHost, PID: 4242})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	b := &testBoard{Store: s, t: t, env: e, now: time.Unix(1_800_000_000, 0)}
	b.runner = &fakeRunner{reportsByRun: make(map[int64]WorkerReport)}
	b.procs = &fakeProcs{alive: make(map[int]bool), starts: make(map[int]uint64), survives: make(map[int]bool)}
	b.runner.procs = b.procs
	b.dispatcher = &Dispatcher{
		Store: s, Runner: b.runner, Procs: b.procs, Profiles: profileSet("default alpha beta someother"),
		Environ: []string{"PATH=/nowhere"},
	}
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (b *testBoard) advance(d time.Duration) { b.now = b.now.Add(d) }

// create creates a task and advances the clock by a second, which orders the tasks.
func (b *testBoard) create(n Task, parents ...string) string {
	b.t.Helper()
	if n.Title == "" {
		n.Title = "task"
	}
	id, err := b.Create(b.t.Context(), b.now, n, parents...)
	must(b.t, err)
	b.advance(time.Second)
	return id
}

func (b *testBoard) createReady(assignee string) string {
	b.t.Helper()
	return b.create(Task{Assignee: assignee})
}

func (b *testBoard) tick() TickResult {
	b.t.Helper()
	r, err := b.dispatcher.Tick(b.t.Context(), b.now, TickOptions{})
	must(b.t, err)
	return r
}

func (b *testBoard) dryTick() TickResult {
	b.t.Helper()
	r, err := b.dispatcher.Tick(b.t.Context(), b.now, TickOptions{DryRun: true})
	must(b.t, err)
	return r
}

func (b *testBoard) task(id string) Task {
	b.t.Helper()
	task, err := b.Task(b.t.Context(), id)
	must(b.t, err)
	return task
}

func (b *testBoard) lastRun(id string) Run {
	b.t.Helper()
	runs, err := b.Runs(b.t.Context(), id)
	must(b.t, err)
	if len(runs) == 0 {
		b.t.Fatalf("%s has no run", id)
	}
	return runs[len(runs)-1]
}

func (b *testBoard) claim(id string) Task {
	b.t.Helper()
	task, won, err := b.Store.claim(b.t.Context(), b.now, id, claimOptions{from: Ready})
	must(b.t, err)
	if !won {
		b.t.Fatalf("cannot claim %s: %+v", id, b.task(id))
	}
	return task
}

// claimForPID claims a task for a worker with a pid, as another program's dispatcher does.
func (b *testBoard) claimForPID(id string, pid int, alive bool) Task {
	b.t.Helper()
	task := b.claim(id)
	b.execSQL("UPDATE tasks SET worker_pid = ? WHERE id = ?", pid, id)
	b.execSQL("UPDATE task_runs SET worker_pid = ? WHERE id = ?", pid, task.CurrentRunID)
	b.procs.alive[pid] = alive
	return b.task(id)
}

func (b *testBoard) execSQL(query string, args ...any) {
	b.t.Helper()
	_, err := b.db.ExecContext(b.t.Context(), query, args...)
	must(b.t, err)
}

// eventKinds returns the kinds of a task's events in order.
func (b *testBoard) eventKinds(id string) []string {
	b.t.Helper()
	var list []string
	for _, e := range b.events(id) {
		list = append(list, e.Kind)
	}
	return list
}

func (b *testBoard) events(id string) []Event {
	b.t.Helper()
	list, err := b.Events(b.t.Context(), id, 0)
	must(b.t, err)
	return list
}

// lastPayload returns the payload of the last event of a kind, which must exist.
func (b *testBoard) lastPayload(id, kind string) map[string]any {
	b.t.Helper()
	list := b.events(id)
	for _, e := range slices.Backward(list) {
		if e.Kind == kind {
			var m map[string]any
			if e.Payload != "" {
				must(b.t, json.Unmarshal([]byte(e.Payload), &m))
			}
			return m
		}
	}
	b.t.Fatalf("no event %s of %s: %q", kind, id, b.eventKinds(id))
	return nil
}

func (b *testBoard) countEvents(id, kind string) (n int) {
	for _, k := range b.eventKinds(id) {
		if k == kind {
			n++
		}
	}
	return n
}

func (b *testBoard) checkStatus(id string, want Status) {
	b.t.Helper()
	if got := b.task(id); got.Status != want {
		b.t.Errorf("%s is %s, not %s; events %q", id, got.Status, want, b.eventKinds(id))
	}
}

// checkIntegrity checks the invariants of the board: a running task has one open run, any other task has none, and the file is sound.
func (b *testBoard) checkIntegrity() {
	b.t.Helper()
	checkIntegrity(b.t, b.Store)
}

func checkIntegrity(t *testing.T, s *Store) {
	t.Helper()
	for what, query := range map[string]string{
		"open runs that no task points at": `SELECT id FROM task_runs WHERE ended_at IS NULL
			AND id NOT IN (SELECT current_run_id FROM tasks WHERE current_run_id IS NOT NULL AND status = 'running')`,
		"running tasks without an open run": `SELECT t.id FROM tasks t LEFT JOIN task_runs r ON r.id = t.current_run_id
			WHERE t.status = 'running' AND (r.id IS NULL OR r.ended_at IS NOT NULL)`,
		"claims of tasks that do not run":   `SELECT id FROM tasks WHERE status <> 'running' AND (claim_lock IS NOT NULL OR worker_pid IS NOT NULL)`,
		"runs that ended before they began": `SELECT id FROM task_runs WHERE ended_at < started_at`,
	} {
		list, err := queryAll[any](t.Context(), s.db, query)
		must(t, err)
		if len(list) > 0 {
			t.Errorf("%s: %v", what, list)
		}
	}
	reason, err := s.checkIntegrity(t.Context(), s.paths.DB)
	must(t, err)
	if reason != "" {
		t.Errorf("integrity_check: %s", reason)
	}
}

func checkEqual[T comparable](t *testing.T, what string, got []T, want ...T) {
	t.Helper()
	if !slices.Equal(got, want) && len(got)+len(want) > 0 {
		t.Errorf("%s: %v, not %v", what, got, want)
	}
}

func spawnedIDs(r TickResult) (ids []string) {
	for _, s := range r.Spawned {
		ids = append(ids, s.Task)
	}
	return ids
}

func spawnedByProfile(r TickResult) map[string]int {
	n := make(map[string]int)
	for _, s := range r.Spawned {
		n[s.Assignee]++
	}
	return n
}

// profileSet holds the names of existing profiles, separated by blanks.
type profileSet string

func (profileSet) Dir(string) string { return "" }

func (profileSet) Toolsets(string) []string { return nil }

func (p profileSet) Exists(name string) (bool, error) {
	if name == "broken" {
		return false, errors.New("cannot look")
	}
	return slices.Contains(strings.Fields(string(p)), name), nil
}

// fakeRunner records requests, and reports states that the test has set. It starts no processes.
type fakeRunner struct {
	sync.Mutex
	procs          *fakeProcs
	jobs           []WorkerJob
	startError     error
	noPID          bool
	statesErr      error
	reportsByRun   map[int64]WorkerReport // Reported state by run.
	ended          []int64
	forgotten      []int64
	reportsStarted bool // Whether the runner reports the workers that it has started as alive.
	onStart        func(WorkerJob) error
	onWorkerStates func()
	ignoresEnd     bool             // Whether End leaves the worker alive.
	lateStarts     map[int64]Worker // Unanswered starts, which take effect with the next start.
	leftovers      map[string][]int
}

func (r *fakeRunner) Start(_ context.Context, job WorkerJob) (Worker, error) {
	r.Lock()
	defer r.Unlock()
	if host := (*HostError)(nil); errors.As(r.startError, &host) && host.MayHaveStarted && r.lateStarts != nil {
		r.lateStarts[job.Run] = Worker{PID: 77, StartTime: uint64(job.Run)}
	}
	if r.startError != nil {
		return Worker{}, r.startError
	}
	for run, w := range r.lateStarts {
		r.reportsByRun[run] = WorkerReport{Liveness: Alive, Worker: w}
	}
	r.jobs = append(r.jobs, job)
	if r.onStart != nil {
		if err := r.onStart(job); err != nil {
			return Worker{}, err
		}
	}
	if r.noPID {
		return Worker{}, nil
	}
	w := Worker{PID: 100000 + len(r.jobs), StartTime: uint64(job.Run)}
	r.procs.setProcess(w.PID, true, w.StartTime)
	if r.reportsStarted {
		r.reportsByRun[job.Run] = WorkerReport{Liveness: Alive, Worker: w}
	}
	return w, nil
}

// pid returns the pid of the last worker of a task.
func (r *fakeRunner) pid(task string) (pid int) {
	r.Lock()
	defer r.Unlock()
	for i, job := range r.jobs {
		if job.Task == task {
			pid = 100001 + i
		}
	}
	return pid
}

func (r *fakeRunner) WorkerStates(_ context.Context, refs []RunRef) ([]WorkerReport, error) {
	r.Lock()
	defer r.Unlock()
	if r.statesErr != nil {
		return nil, r.statesErr
	}
	if r.onWorkerStates != nil {
		r.onWorkerStates()
	}
	list := make([]WorkerReport, len(refs))
	for i, ref := range refs {
		list[i] = r.reportsByRun[ref.Run]
	}
	return list, nil
}

func (r *fakeRunner) Withdraw(_ context.Context, ref RunRef) (WorkerReport, error) {
	r.Lock()
	defer r.Unlock()
	if errors.As(r.startError, new(*HostError)) {
		return WorkerReport{}, r.startError
	}
	delete(r.lateStarts, ref.Run)
	return r.reportsByRun[ref.Run], nil
}

func (r *fakeRunner) End(_ context.Context, refs []RunRef, _ time.Duration) []Termination {
	r.Lock()
	defer r.Unlock()
	list := make([]Termination, len(refs))
	for i, ref := range refs {
		r.ended = append(r.ended, ref.Run)
		list[i] = Termination{Attempted: true, Terminated: !r.ignoresEnd}
		if !r.ignoresEnd {
			r.reportsByRun[ref.Run] = WorkerReport{Liveness: Ended, Exit: Exit{Known: true, Signal: 15, Terminated: true}}
		}
	}
	return list
}

func (r *fakeRunner) Leftovers(ref RunRef) ([]int, bool) {
	r.Lock()
	defer r.Unlock()
	return slices.DeleteFunc(slices.Clone(r.leftovers[ref.Task]), func(pid int) bool { return !r.procs.Alive(pid) }), true
}

func (r *fakeRunner) Forget(refs []RunRef) {
	r.Lock()
	defer r.Unlock()
	for _, ref := range refs {
		r.forgotten = append(r.forgotten, ref.Run)
	}
}

// reportExit makes the runner report the end of a task's worker.
func (b *testBoard) reportExit(id string, x Exit) {
	b.t.Helper()
	task := b.task(id)
	x.Known = true
	b.runner.reportsByRun[task.CurrentRunID] = WorkerReport{Liveness: Ended, Worker: Worker{PID: task.WorkerPID}, Exit: x}
	b.procs.alive[task.WorkerPID] = false
}

type fakeProcs struct {
	sync.Mutex
	alive       map[int]bool
	survives    map[int]bool
	starts      map[int]uint64
	foreignPIDs map[int]bool // Pids of processes that were not started for a task.
	signals     []int        // Pids that were asked to end.
	onEnd       func()
}

func (p *fakeProcs) setProcess(pid int, alive bool, start uint64) {
	p.Lock()
	defer p.Unlock()
	p.alive[pid], p.starts[pid] = alive, start
}

func (p *fakeProcs) Alive(pid int) bool {
	p.Lock()
	defer p.Unlock()
	return p.alive[pid]
}

func (p *fakeProcs) StartTime(pid int) uint64 {
	p.Lock()
	defer p.Unlock()
	return p.starts[pid]
}

func (p *fakeProcs) IsWorkerOf(pid int, _ string) (is, known bool) {
	p.Lock()
	defer p.Unlock()
	return !p.foreignPIDs[pid], true
}

func (p *fakeProcs) End(_ context.Context, pid int, _ time.Duration) Termination {
	if p.onEnd != nil {
		p.onEnd()
	}
	p.Lock()
	defer p.Unlock()
	p.signals = append(p.signals, pid)
	if p.survives[pid] {
		return Termination{Attempted: true, Killed: true}
	}
	p.alive[pid] = false
	return Termination{Attempted: true, Terminated: true}
}

// dumpTables formats the board's content for comparisons.
func dumpTables(t *testing.T, s *Store, tables ...string) string {
	t.Helper()
	var b strings.Builder
	for _, table := range tables {
		rows, err := s.db.QueryContext(t.Context(), "SELECT * FROM "+table+" ORDER BY 1, 2")
		must(t, err)
		cols, err := rows.Columns()
		must(t, err)
		for rows.Next() {
			values := make([]any, len(cols))
			for i := range values {
				values[i] = new(sql.NullString)
			}
			must(t, rows.Scan(values...))
			fmt.Fprintf(&b, "%s", table)
			for i, v := range values {
				if v := v.(*sql.NullString); v.Valid {
					fmt.Fprintf(&b, " %s=%q", cols[i], v.String)
				}
			}
			b.WriteByte('\n')
		}
		must(t, rows.Err())
		must(t, rows.Close())
	}
	return b.String()
}

func newTestLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

func (l *workerLedger) add(e workerRecord) error {
	l.runs[e.Run] = e
	return l.save()
}
