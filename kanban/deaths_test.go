package kanban

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

var errCrashPoint = errors.New("the process died")

// openCrashingStore opens a store that acts like a process that dies at its n-th crash point: later calls
// have no effect.
func openCrashingStore(t *testing.T, paths Paths, e testEnv, n int) (*Store, *[]string) {
	t.Helper()
	var passed []string
	opt := Options{Env: e.get, Host: testHost, PID: 4242, crashHook: func(name string) error {
		passed = append(passed, name)
		if n > 0 && len(passed) >= n {
			return errCrashPoint
		}
		return nil
	}}
	s, err := Open(t.Context(), paths, opt)
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s, &passed
}

// persistentRunner is a runner that outlives dispatchers, as PID 1 does. It checks that no task has
// two workers.
type persistentRunner struct {
	fakeRunner
	t            *testing.T
	runningTasks map[string]int64 // Run of each running task.
	crash        func(point string) error
}

func (r *persistentRunner) Start(ctx context.Context, job WorkerJob) (Worker, error) {
	if run, busy := r.runningTasks[job.Task]; busy {
		r.t.Errorf("a second worker of %s: run %d, while run %d works", job.Task, job.Run, run)
	}
	if err := r.crash("remembered"); err != nil { // The dispatcher dies before its request.
		return Worker{}, err
	}
	w, err := r.fakeRunner.Start(ctx, job)
	if err == nil {
		r.runningTasks[job.Task] = job.Run
		err = r.crash("started") // The dispatcher dies before it gets the answer.
	}
	return w, err
}

func (r *persistentRunner) WorkerStates(ctx context.Context, refs []RunRef) ([]WorkerReport, error) {
	list, err := r.fakeRunner.WorkerStates(ctx, refs)
	for i := range list {
		if list[i].Liveness == Unknown {
			list[i].Liveness = NeverStarted
		}
	}
	return list, err
}

// TestDispatcherDies kills a dispatcher at every crash point of a pass. Another one must finish
// every task without double starts or counted failures.
func TestDispatcherDies(t *testing.T) {
	t.Parallel()
	points, deaths := runWithCrashes(t, 0)
	if points == 0 || deaths != 0 {
		t.Fatalf("%d points, %d deaths", points, deaths)
	}
	for n := 1; n <= points; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if _, deaths := runWithCrashes(t, n); deaths == 0 {
				t.Error("it never died")
			}
		})
	}
}

// runWithCrashes lets dispatchers finish a board; one dies at the n-th crash point. It returns the
// largest number of passed points.
func runWithCrashes(t *testing.T, n int) (points, deaths int) {
	b := newBoard(t)
	r := &persistentRunner{t: t, runningTasks: make(map[string]int64)}
	r.fakeRunner = fakeRunner{reportsByRun: make(map[int64]WorkerReport), procs: b.procs, reportsStarted: true}
	parent := b.createReady("alpha")
	ids := []string{parent, b.createReady("beta"), b.create(Task{Assignee: "alpha"}, parent)}
	for round := 0; round < 40 && b.task(ids[2]).Status != Done; round++ {
		at := 0
		if deaths == 0 {
			at = n
		}
		s, passed := openCrashingStore(t, b.paths, b.env, at)
		r.crash = s.opt.crashHook
		d := &Dispatcher{Store: s, Runner: r, Procs: b.procs, Profiles: b.dispatcher.Profiles, Environ: b.dispatcher.Environ}
		for range 4 {
			b.advance(time.Second)
			_, err := d.Tick(t.Context(), b.now, TickOptions{})
			if errors.Is(err, errCrashPoint) {
				deaths++
				break
			}
			must(t, err)
			for _, id := range slices.Sorted(mapKeys(r.runningTasks)) { // Every running worker finishes its task.
				run := r.runningTasks[id]
				ok, err := b.Complete(t.Context(), b.now, id, Completion{Run: run, Summary: "done"})
				if must(t, err); !ok {
					t.Errorf("%s: run %d was superseded", id, run)
				}
				r.reportsByRun[run] = WorkerReport{Liveness: Ended, Exit: Exit{Known: true}}
				delete(r.runningTasks, id)
			}
		}
		points = max(points, len(*passed))
	}
	for _, id := range ids {
		if task := b.task(id); task.Status != Done || task.ConsecutiveFailures != 0 {
			t.Errorf("%s: %+v; %q", id, task, b.eventKinds(id))
		}
	}
	b.checkIntegrity()
	return points, deaths
}

func mapKeys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// TestOperationsDie kills a process at every crash point of each operation, which must be atomic.
func TestOperationsDie(t *testing.T) {
	t.Parallel()
	everything := []string{"tasks", "task_events", "task_runs", "task_links", "task_comments"}
	for name, op := range map[string]func(s *Store, b *testBoard, ids []string) error{
		"create": func(s *Store, b *testBoard, ids []string) error {
			_, err := s.Create(b.t.Context(), b.now, Task{Title: "new", Status: Blocked}, ids[:2]...)
			return err
		},
		"complete": func(s *Store, b *testBoard, ids []string) error {
			_, err := s.Complete(b.t.Context(), b.now, ids[0], Completion{Summary: "t_deadbeef"})
			return err
		},
		"block": func(s *Store, b *testBoard, ids []string) error {
			_, err := s.Block(b.t.Context(), b.now, ids[0], "x", 0)
			return err
		},
		"archive": func(s *Store, b *testBoard, ids []string) error {
			_, err := s.Archive(b.t.Context(), b.now, ids[0])
			return err
		},
		"delete": func(s *Store, b *testBoard, ids []string) error {
			_, err := s.Archive(b.t.Context(), b.now, ids[0])
			if err == nil {
				_, err = s.DeleteArchived(b.t.Context(), ids[0])
			}
			return err
		},
		"claim": func(s *Store, b *testBoard, ids []string) error {
			_, _, err := s.claim(b.t.Context(), b.now, ids[1], claimOptions{from: Ready})
			return err
		},
		"link": func(s *Store, b *testBoard, ids []string) error { return s.Link(b.t.Context(), b.now, ids[0], ids[1]) },
		"crash": func(s *Store, b *testBoard, ids []string) error {
			b.procs.setProcess(71, false, 0)
			_, err := (&Dispatcher{Store: s, Procs: b.procs, Profiles: profileSet("")}).Tick(b.t.Context(), b.now.Add(time.Minute), TickOptions{})
			return err
		},
		"reclaim": func(s *Store, b *testBoard, ids []string) error {
			_, err := (&Dispatcher{Store: s, Procs: b.procs}).Reclaim(b.t.Context(), b.now, ids[0], "x")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; n < 20; n++ {
				b := newBoard(t)
				ids := []string{b.createReady("alpha"), b.createReady("alpha")}
				b.create(Task{}, ids[:1]...)
				b.claimForPID(ids[0], 71, true)
				before := dumpTables(t, b.Store, everything...)
				s, passed := openCrashingStore(t, b.paths, b.env, n)
				err := op(s, b, ids)
				after := dumpTables(t, b.Store, everything...)
				committed := slices.Contains(*passed, "committed")
				if err != nil && !errors.Is(err, errCrashPoint) {
					t.Fatal(err)
				}
				if !committed && after != before || committed && after == before {
					t.Errorf("died at %q, and the board is\n%safter\n%s", *passed, after, before)
				}
				b.checkIntegrity()
				if err == nil {
					if n == 1 {
						t.Error("it never died")
					}
					return
				}
			}
		})
	}
}

// TestFilesDie checks that files beside the board are replaced atomically, and that leftovers do no
// harm.
func TestFilesDie(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := filepath.Join(dir, "missing", "file")
	must(t, replaceFile(target, []byte("one")))
	must(t, os.Chmod(filepath.Dir(target), 0o700))
	must(t, os.Mkdir(target+".dir", 0o755))
	if err := replaceFile(target+".dir", []byte("two")); err == nil {
		t.Error("a directory was replaced")
	}
	left, err := os.ReadDir(filepath.Dir(target))
	must(t, err)
	if len(left) != 2 {
		t.Errorf("%v was left behind", left)
	}

	b := newBoard(t) // The ledger is truncated at any byte.
	l := readLedger(b.paths.ledgerPath())
	must(t, l.add(workerRecord{Run: 1, Task: "t_1", Host: testHost}))
	must(t, l.add(workerRecord{Run: 2, Task: "t_2", Host: testHost, Worker: Worker{PID: 7, StartTime: 9, BootID: "b"}}))
	whole, err := os.ReadFile(l.path)
	must(t, err)
	for n := range whole {
		must(t, os.WriteFile(l.path, whole[:n], 0o644))
		cut := readLedger(l.path)
		must(t, cut.add(workerRecord{Run: 3, Task: "t_3"}))
		again := readLedger(l.path)
		if again.runs[3].Task != "t_3" || len(again.runs) > 3 {
			t.Fatalf("cut at %d: %+v", n, again.runs)
		}
		if e, ok := again.runs[2]; ok && (e.PID != 7 || e.StartTime != 9) {
			t.Fatalf("cut at %d: %+v", n, e)
		}
	}
}

// TestAdoption checks that a new dispatcher recognises a dead dispatcher's workers by their run and
// start time.
func TestAdoption(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T) (*testBoard, string, Task) {
		b := newBoard(t)
		id := b.createReady("alpha")
		b.tick()
		b.dispatcher.Config.MaxSpawn = new(int)
		b.advance(time.Minute)
		return b, id, b.task(id)
	}
	successor := func(b *testBoard) {
		d := *b.dispatcher
		d.runStates = nil
		b.dispatcher = &d
	}
	t.Run("alive", func(t *testing.T) {
		b, id, task := start(t)
		successor(b)
		b.tick()
		if got := b.task(id); got.Status != Running || got.WorkerPID != task.WorkerPID {
			t.Errorf("%+v", got)
		}
	})
	t.Run("another process has the pid", func(t *testing.T) {
		b, id, task := start(t)
		successor(b)
		b.procs.starts[task.WorkerPID] += 100
		checkEqual(t, "crashed", b.tick().Crashed, id)
		checkEqual(t, "signals", b.procs.signals)
	})
	t.Run("the container is another one", func(t *testing.T) {
		b, id, task := start(t)
		e := readLedger(b.paths.ledgerPath()).runs[task.CurrentRunID]
		if e.PID != task.WorkerPID || e.BootID == "" {
			t.Fatalf("%+v", e)
		}
		e.BootID = "another boot"
		must(t, readLedger(b.paths.ledgerPath()).add(e))
		successor(b)
		r := b.tick() // The pid was recorded in another boot, so it means nothing although it is alive.
		checkEqual(t, "released", r.Released, id)
		checkEqual(t, "crashed", r.Crashed)
		if got := b.task(id); got.Status != Ready || got.ConsecutiveFailures != 0 {
			t.Errorf("%+v", got)
		}
	})
	stamp := func(b *testBoard, change func(e *workerRecord)) {
		l := readLedger(b.paths.ledgerPath())
		for _, e := range l.runs {
			change(&e)
			must(b.t, l.add(e))
		}
	}
	// For instance, "compose up" with a new image changes the host name.
	t.Run("a recreated container has another host name", func(t *testing.T) {
		for name, c := range map[string]struct {
			volume string
			want   Status
		}{"the volume has one holder": {"vol-7", Ready}, "the volume may have several": {"", Running}} {
			b := newBoard(t)
			b.dispatcher.ExclusiveVolumeID = c.volume
			id := b.createReady("alpha")
			b.tick()
			terminal := b.createReady("alpha") // Another program in the old container has claimed this task.
			b.claim(terminal)
			b.tick()
			stamp(b, func(e *workerRecord) { e.Host, e.BootID = "a-container-that-is-gone", "boot/1" })
			b.execSQL("UPDATE tasks SET claim_lock = replace(claim_lock, 'host:', 'a-container-that-is-gone:')")
			successor(b)
			b.dispatcher.Config.MaxSpawn = new(int)
			b.advance(time.Second)
			b.tick()
			for _, id := range []string{id, terminal} {
				if got := b.task(id); got.Status != c.want || got.ConsecutiveFailures != 0 {
					t.Errorf("%s: %+v", name, got)
				}
			}
			checkEqual(t, "signals", b.procs.signals)
		}
	})
	t.Run("a claim at a terminal has no worker", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		task := b.claim(id)
		b.runner.reportsByRun[task.CurrentRunID] = WorkerReport{Liveness: NeverStarted}
		b.advance(time.Minute)
		b.tick()
		b.checkStatus(id, Running)
	})
	t.Run("only the ledger has the pid", func(t *testing.T) {
		b, id, task := start(t)
		b.execSQL("UPDATE tasks SET worker_pid = NULL WHERE id = ?", id)
		successor(b)
		b.tick()
		if got := b.task(id); got.Status != Running || got.WorkerPID != task.WorkerPID {
			t.Errorf("%+v", got)
		}
		b.procs.alive[task.WorkerPID] = false
		b.execSQL("UPDATE tasks SET worker_pid = NULL WHERE id = ?", id)
		checkEqual(t, "crashed", b.tick().Crashed, id)
	})
	t.Run("the pid was not written down", func(t *testing.T) {
		b, id, task := start(t)
		b.execSQL("UPDATE tasks SET worker_pid = NULL WHERE id = ?", id)
		b.runner.reportsByRun[task.CurrentRunID] = WorkerReport{Liveness: Alive, Worker: Worker{PID: task.WorkerPID}}
		successor(b)
		b.tick()
		if got := b.task(id); got.WorkerPID != task.WorkerPID || b.countEvents(id, "spawned") != 2 {
			t.Errorf("%+v", got)
		}
	})
}
