package kanban

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"hinit/internal/proc"
)

// stormRunner starts workers as a dispatcher without PID 1 does: as children in new sessions.
type stormRunner struct {
	sync.Mutex
	dir  string
	runs map[int64]*exec.Cmd
	ends map[int64]Exit
}

func stormDispatcher(s *Store, dir string) *Dispatcher {
	return &Dispatcher{
		Store: s, Runner: &stormRunner{dir: dir, runs: make(map[int64]*exec.Cmd), ends: make(map[int64]Exit)}, Profiles: profileSet("alpha beta"),
		Config:  Config{MaxInProgressPerProfile: new(stormPerProfile), MaxInProgress: new(stormTotal), FailureLimit: 3},
		Environ: os.Environ(),
	}
}

func (r *stormRunner) Start(_ context.Context, job WorkerJob) (Worker, error) {
	cmd := stormRole(context.Background(), "worker", r.dir)
	cmd.Env = proc.SetEnv(cmd.Env, job.EnvVars)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	log, err := os.OpenFile(job.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return Worker{}, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return Worker{}, err
	}
	r.Lock()
	r.runs[job.Run] = cmd
	r.Unlock()
	go func() {
		_ = cmd.Wait()
		st := cmd.ProcessState.Sys().(syscall.WaitStatus)
		x := Exit{Known: true, Code: st.ExitStatus()}
		if st.Signaled() {
			x.Code, x.Signal = 0, int(st.Signal())
		}
		r.Lock()
		defer r.Unlock()
		r.ends[job.Run] = x
	}()
	return Worker{PID: cmd.Process.Pid}, nil
}

func (r *stormRunner) WorkerStates(_ context.Context, refs []RunRef) ([]WorkerReport, error) {
	r.Lock()
	defer r.Unlock()
	list := make([]WorkerReport, len(refs))
	for i, ref := range refs {
		if x, ended := r.ends[ref.Run]; ended {
			list[i] = WorkerReport{Liveness: Ended, Worker: ref.Worker, Exit: x}
		} else if cmd := r.runs[ref.Run]; cmd != nil {
			list[i] = WorkerReport{Liveness: Alive, Worker: Worker{PID: cmd.Process.Pid}}
		} else if ref.PID == 0 {
			list[i] = findStormWorker(ref)
		}
	}
	return list, nil
}

// findStormWorker finds a run's worker by its environment.
func findStormWorker(ref RunRef) WorkerReport {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		env, _ := os.ReadFile(file)
		vars := strings.Split(string(env), "\x00")
		if slices.Contains(vars, fmt.Sprintf("HERMES_KANBAN_RUN_ID=%d", ref.Run)) && slices.Contains(vars, "HERMES_KANBAN_DB="+ref.DB) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return WorkerReport{Liveness: Alive, Worker: Worker{PID: pid}}
		}
	}
	return WorkerReport{Liveness: NeverStarted}
}

func (r *stormRunner) Withdraw(ctx context.Context, ref RunRef) (WorkerReport, error) {
	list, err := r.WorkerStates(ctx, []RunRef{ref})
	return list[0], err
}

func (r *stormRunner) End(ctx context.Context, refs []RunRef, grace time.Duration) []Termination {
	list := make([]Termination, len(refs))
	for i, ref := range refs {
		list[i] = realProcesses{}.End(ctx, ref.PID, grace)
	}
	return list
}

func (r *stormRunner) Leftovers(ref RunRef) ([]int, bool) {
	pids, _ := ProcessesWithVars(map[string]string{"HERMES_KANBAN_TASK": ref.Task, "HERMES_KANBAN_DB": ref.DB})
	return pids, true
}

func (r *stormRunner) Forget([]RunRef) {}

// runStormRole makes this test binary one of the storm's programs.
func runStormRole(role string) int {
	dir := os.Getenv("KANBAN_TEST_DIR")
	var err error
	s := stormStore(context.Background(), dir, func(a ...any) { err = fmt.Errorf("%v", a) })
	if err == nil {
		defer s.Close()
		switch role {
		case "dispatcher":
			d := stormDispatcher(s, dir)
			for err == nil {
				_, err = d.Tick(context.Background(), time.Now(), TickOptions{})
				time.Sleep(5 * time.Millisecond)
			}
		case "writer":
			err = changeBoardRandomly(context.Background(), s, dir)
		case "worker":
			return runStormWorker(context.Background(), s, dir)
		}
	}
	fmt.Fprintln(os.Stderr, role, err)
	return 1
}

// changeBoardRandomly makes random changes to the board.
func changeBoardRandomly(ctx context.Context, s *Store, dir string) error {
	made, err := os.OpenFile(filepath.Join(dir, "made"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	any := func(where string) string {
		var id string
		_ = s.db.QueryRowContext(ctx, "SELECT id FROM tasks "+where+" ORDER BY random() LIMIT 1").Scan(&id)
		return id
	}
	for {
		now := time.Now()
		var err error
		switch rand.IntN(10) {
		case 0, 1, 2, 3:
			var parents []string
			n := Task{Title: "made in Go", Assignee: []string{"alpha", "beta", "orion"}[rand.IntN(3)], CreatedBy: "user"}
			if parent := any("WHERE status <> 'archived'"); rand.IntN(3) == 0 && parent != "" {
				parents = append(parents, parent)
			}
			var id string
			if id, err = s.Create(ctx, now, n, parents...); err == nil {
				_, err = made.WriteString(id + "\n")
			}
		case 4:
			if x, y := any(""), any(""); x != y {
				err = s.Link(ctx, now, x, y)
			}
		case 5:
			_, err = s.Assign(ctx, now, any("WHERE status <> 'running'"), []string{"alpha", "beta"}[rand.IntN(2)])
		case 6:
			_, err = s.Block(ctx, now, any("WHERE status = 'ready'"), "why", 0)
		case 7:
			_, err = s.Unblock(ctx, now, any("WHERE status = 'blocked'"))
		case 8:
			_, err = s.Complete(ctx, now, any("WHERE status = 'blocked'"), Completion{Summary: "by hand"})
		case 9:
			if rand.IntN(4) == 0 {
				_, err = s.Archive(ctx, now, any("WHERE status = 'done'"))
			}
		}
		if err != nil && !strings.HasPrefix(err.Error(), "cannot ") && !errors.Is(err, ErrNoTask) && !errors.Is(err, ErrRunning) {
			return err
		}
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
	}
}

// runStormWorker is a worker. It holds a lock for its task, which reveals a second worker.
func runStormWorker(ctx context.Context, s *Store, dir string) int {
	id := os.Getenv("HERMES_KANBAN_TASK")
	run, _ := strconv.ParseInt(os.Getenv("HERMES_KANBAN_RUN_ID"), 10, 64)
	note := filepath.Join(dir, "at-work", id)
	lock, held, err := TryLock(filepath.Join(dir, "locks", id))
	if err != nil || !held {
		f, _ := os.OpenFile(filepath.Join(dir, "twice"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		fmt.Fprintln(f, id, run, err)
		return 1
	}
	defer lock.Release()
	_ = os.MkdirAll(filepath.Dir(note), 0o755)
	_ = os.WriteFile(note, []byte(strconv.Itoa(os.Getpid())), 0o644)
	defer os.Remove(note)
	time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
	if _, err := s.HeartbeatWorker(ctx, time.Now(), id, "", run); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	switch rand.IntN(10) {
	case 0:
		return 1
	case 1:
		return 0 // This worker forgets to complete its task.
	case 2:
		return 75
	case 3:
		_, err = s.Block(ctx, time.Now(), id, "a question", run)
	default:
		_, err = s.Complete(ctx, time.Now(), id, Completion{Summary: "done", Run: run})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
