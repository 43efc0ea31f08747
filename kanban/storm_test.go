package kanban

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var longTests = flag.Bool("full", false, "the long forms of the tests")

const (
	stormPerProfile = 3
	stormTotal      = 5

	// A storm has at least stormTasks tasks and stormRuns runs, and takes at most stormLongest.
	stormTasks, stormRuns = 40, 20
	stormLongest          = 3 * time.Minute
)

// TestStorm runs three dispatchers, eight writers and workers on one file, and kills them at
// random. No task may have two workers or be lost.
func TestStorm(t *testing.T) {
	if testing.Short() {
		t.Skip("ten seconds")
	}
	length := 8 * time.Second
	if *longTests {
		length = 5 * time.Minute
	}
	dir := t.TempDir()
	s := stormStore(t.Context(), dir, t.Fatal)
	defer s.Close()
	pythonCmd(t, "check", s.paths.DB) // The call skips this test if Python is missing.

	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	stormers := make([]func(context.Context) *exec.Cmd, 0, 11)
	for range 3 {
		stormers = append(stormers, func(ctx context.Context) *exec.Cmd { return stormRole(ctx, "dispatcher", dir) })
	}
	for n := range 4 {
		stormers = append(stormers,
			func(ctx context.Context) *exec.Cmd { return stormRole(ctx, "writer", dir) },
			func(ctx context.Context) *exec.Cmd {
				cmd := pythonCmd(t, "storm", s.paths.DB, strconv.Itoa(n), filepath.Join(dir, "made"))
				return exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
			})
	}
	kills := make([]int, len(stormers))
	for i, start := range stormers {
		wait.Go(func() { kills[i] = stormRestart(ctx, t, start) })
	}
	wait.Go(func() { stormWatchCaps(ctx, t, s.paths.DB) })
	wait.Go(func() { stormKillWorkers(ctx, dir) })
	begin := time.Now()
	for tasks, runs := 0, 0; time.Since(begin) < length || (tasks < stormTasks || runs < stormRuns) && time.Since(begin) < stormLongest; {
		<-time.After(500 * time.Millisecond)
		must(t, s.db.QueryRow("SELECT (SELECT count(*) FROM tasks), (SELECT count(*) FROM task_runs)").Scan(&tasks, &runs))
	}
	cancel()
	wait.Wait()

	finishStormTasks(t, s, dir)
	checkIntegrity(t, s)
	if data, _ := os.ReadFile(filepath.Join(dir, "twice")); len(data) > 0 {
		t.Errorf("a task had two workers at a time:\n%s", data)
	}
	checkStormTasks(t, s, dir, kills)
	replayStormEvents(t, s)
}

func stormStore(ctx context.Context, dir string, fail func(...any)) *Store {
	boards := &Boards{Root: dir, Env: os.Getenv}
	paths, err := boards.Paths(DefaultBoard)
	if err == nil {
		var s *Store
		if s, err = Open(ctx, paths, Options{Env: os.Getenv}); err == nil {
			return s
		}
	}
	fail(err)
	return nil
}

func stormRole(ctx context.Context, role, dir string, more ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), "KANBAN_TEST_ROLE="+role, "KANBAN_TEST_DIR="+dir, "HERMES_KANBAN_CRASH_GRACE_SECONDS=1",
		"HERMES_KANBAN_RATE_LIMIT_COOLDOWN_SECONDS=0", "HERMES_KANBAN_CLAIM_TTL_SECONDS=600")
	cmd.Env = append(cmd.Env, more...)
	return cmd
}

// stormRestart restarts a program whenever it ends, and kills it at random times.
func stormRestart(ctx context.Context, t *testing.T, start func(context.Context) *exec.Cmd) (kills int) {
	runtime.LockOSThread() // The kernel sends Pdeathsig when this thread ends.
	defer runtime.UnlockOSThread()
	for ctx.Err() == nil {
		cmd := start(ctx)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		life, end := context.WithTimeout(ctx, time.Duration(300+rand.IntN(2500))*time.Millisecond)
		if err := cmd.Start(); err != nil {
			if end(); ctx.Err() == nil { // Otherwise the storm ended before the start.
				t.Error(err)
			}
			return kills
		}
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		select {
		case <-life.Done():
			_ = cmd.Process.Kill()
			<-done
			kills++
		case err := <-done:
			if ctx.Err() == nil {
				t.Errorf("%q ended by itself: %v\n%s", cmd.Args, err, out.String())
				end()
				return kills
			}
		}
		end()
	}
	return kills
}

func stormWatchCaps(ctx context.Context, t *testing.T, path string) {
	db, err := openDatabase(path, "ro", time.Minute)
	if err != nil {
		t.Error(err)
		return
	}
	defer db.Close()
	for ctx.Err() == nil {
		total := 0
		running, err := queryAll[struct {
			Who string
			N   int
		}](ctx, db, "SELECT assignee, count(*) FROM tasks WHERE status = 'running' AND assignee IN ('alpha', 'beta') GROUP BY assignee")
		for _, r := range running {
			total += r.N
			if r.N > stormPerProfile {
				t.Errorf("%s runs %d tasks at a time", r.Who, r.N)
			}
		}
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		if total > stormTotal {
			t.Errorf("%d tasks run at a time", total)
		}
	}
}

// stormKillWorkers kills workers by their recorded pids.
func stormKillWorkers(ctx context.Context, dir string) {
	tick := time.NewTicker(150 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		files, _ := filepath.Glob(filepath.Join(dir, "at-work", "*"))
		if len(files) == 0 {
			continue
		}
		file := files[rand.IntN(len(files))]
		data, _ := os.ReadFile(file)
		if pid, err := strconv.Atoi(string(data)); err == nil {
			// The pid may belong to another process by now, so check env.
			env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if bytes.Contains(env, []byte("KANBAN_TEST_DIR="+dir)) && bytes.Contains(env, []byte("HERMES_KANBAN_TASK="+filepath.Base(file))) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}

// finishStormTasks lets one dispatcher finish the remaining tasks.
func finishStormTasks(t *testing.T, s *Store, dir string) {
	t.Helper()
	t.Setenv("HERMES_KANBAN_CRASH_GRACE_SECONDS", "1")
	t.Setenv("HERMES_KANBAN_RATE_LIMIT_COOLDOWN_SECONDS", "0")
	d := stormDispatcher(s, dir)
	d.Config.MaxInProgress, d.Config.MaxInProgressPerProfile = new(20), nil
	for _, status := range []Status{Ready, Todo} { // The storm creates more tasks than it can finish.
		list, err := s.Tasks(t.Context(), TaskFilter{Status: status})
		must(t, err)
		for _, task := range list[min(30, len(list)):] {
			_, err := s.Archive(t.Context(), time.Now(), task.ID)
			must(t, err)
		}
	}
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	deadline := time.Now().Add(5 * time.Minute)
	for left := 1; left > 0; {
		if time.Now().After(deadline) {
			list, _ := s.Tasks(t.Context(), TaskFilter{Status: Running})
			t.Fatalf("%d tasks are left; running: %+v", left, list)
		}
		if _, err := d.Tick(t.Context(), time.Now(), TickOptions{}); err != nil {
			t.Fatal(err)
		}
		// People's claims were killed with their terminals, and have expired.
		_, err := s.db.Exec("UPDATE tasks SET claim_expires = 1 WHERE status = 'running' AND assignee = 'orion'")
		must(t, err)
		must(t, s.db.QueryRow("SELECT count(*) FROM tasks WHERE status = 'running' OR status = 'ready' AND assignee IN ('alpha', 'beta')").Scan(&left))
		<-poll.C
	}
}

// checkStormTasks checks that every task that a writer has made exists.
func checkStormTasks(t *testing.T, s *Store, dir string, kills []int) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "made"))
	must(t, err)
	ids := strings.Fields(string(data))
	for _, id := range ids {
		if len(id) != 10 {
			continue // The writer may have been killed after it created the task.
		}
		if _, err := s.Task(t.Context(), id); err != nil {
			t.Errorf("%s is lost: %v", id, err)
		}
	}
	var runs, outcomes int
	must(t, s.db.QueryRow("SELECT count(*), count(DISTINCT outcome) FROM task_runs").Scan(&runs, &outcomes))
	t.Logf("%d tasks, %d runs, %d outcomes, kills %v", len(ids), runs, outcomes, kills)
	if len(ids) < stormTasks/2 || runs < stormRuns {
		t.Errorf("only %d tasks and %d runs: the storm proves nothing", len(ids), runs)
	}
}

// replayStormEvents replays each task's events and compares the resulting status with the task's status.
func replayStormEvents(t *testing.T, s *Store) {
	t.Helper()
	events, err := s.Events(t.Context(), "", 0)
	must(t, err)
	status := make(map[string]Status)
	claims, ends := make(map[int64]int), make(map[int64]int)
	tripped := make(map[int64]bool)
	loose := make(map[string]bool) // A link changes the status without an event.
	for _, e := range events {
		var p struct{ Status Status }
		if e.Payload != "" {
			must(t, json.Unmarshal([]byte(e.Payload), &p))
		}
		next := map[string]Status{
			"created": p.Status, "promoted": Ready, "promoted_manual": Ready, "claimed": Running, "claim_rejected": Todo, "reclaimed": Ready, "crashed": Ready,
			"protocol_violation": Ready, "rate_limited": Ready, "timed_out": Ready, "stale": Ready, "spawn_failed": Ready, "gave_up": Blocked, "blocked": Blocked,
			"completed": Done, "scheduled": Scheduled, "archived": Archived,
		}[e.Kind]
		if e.Kind == "unblocked" {
			if next = p.Status; next == "" {
				next = Ready
			}
		}
		if next != "" {
			status[e.TaskID] = next
			loose[e.TaskID] = false
		}
		loose[e.TaskID] = loose[e.TaskID] || e.Kind == "linked"
		switch e.Kind {
		case "claimed":
			claims[e.RunID]++
		case "reclaimed", "crashed", "protocol_violation", "rate_limited", "timed_out", "stale", "spawn_failed", "completed", "scheduled", "archived":
			ends[e.RunID]++
		case "blocked":
			if !tripped[e.RunID] { // After gave_up, "blocked" only keeps the task blocked and ends no run.
				ends[e.RunID]++
			}
		case "gave_up":
			tripped[e.RunID] = true
			if strings.Contains(e.Payload, `"trigger_outcome": "spawn_failed"`) {
				ends[e.RunID]++
			}
		}
	}
	tasks, err := s.Tasks(t.Context(), TaskFilter{IncludeArchived: true})
	must(t, err)
	for _, task := range tasks {
		if want := status[task.ID]; want != task.Status && !(loose[task.ID] && want == Ready && task.Status == Todo) {
			t.Errorf("%s is %s; its events lead to %s", task.ID, task.Status, want)
		}
	}
	runs, err := queryAll[int64](t.Context(), s.db, "SELECT id FROM task_runs")
	must(t, err)
	for _, run := range runs {
		if claims[run] > 1 || ends[run] != 1 && claims[run] == 1 {
			t.Errorf("run %d began %d times and ended %d times", run, claims[run], ends[run])
		}
	}
}
