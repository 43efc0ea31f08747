package kanban

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"hinit/kanban"
)

const (
	readyTasks = 100
	profiles   = 20
	waiting    = 2000
	blocked    = 500
)

type runner struct{ started int }

func (r *runner) Start(context.Context, kanban.WorkerJob) (kanban.Worker, error) {
	r.started++
	return kanban.Worker{PID: 1 << 30, StartTime: 1}, nil
}

func (r *runner) WorkerStates(_ context.Context, refs []kanban.RunRef) ([]kanban.WorkerReport, error) {
	list := make([]kanban.WorkerReport, len(refs))
	for i := range list {
		list[i].Liveness = kanban.Alive
	}
	return list, nil
}

func (r *runner) End(_ context.Context, refs []kanban.RunRef, _ time.Duration) []kanban.Termination {
	return make([]kanban.Termination, len(refs))
}

func (*runner) Withdraw(context.Context, kanban.RunRef) (kanban.WorkerReport, error) {
	return kanban.WorkerReport{}, nil
}

func (*runner) Leftovers(kanban.RunRef) ([]int, bool) { return nil, true }

func (r *runner) Forget([]kanban.RunRef) {}

type anybody struct{}

func (anybody) Exists(string) (bool, error) { return true, nil }

func (anybody) Dir(string) string { return "" }

func (anybody) Toolsets(string) []string { return nil }

// fill creates the tasks of the board.
func fill(tb testing.TB, path string, tasks int, now int64) {
	tb.Helper()
	db, err := sql.Open("sqlite", path)
	check(tb, err)
	defer db.Close()
	tx, err := db.Begin()
	check(tb, err)
	defer tx.Rollback()
	task, err := tx.Prepare(`INSERT INTO tasks (id, title, body, assignee, status, priority, created_at, claim_lock, claim_expires, worker_pid, current_run_id)
		VALUES (?, 'a task', ?, ?, ?, ?, ?, ?, ?, ?, ?)`)
	check(tb, err)
	run, err := tx.Prepare(`INSERT INTO task_runs (id, task_id, profile, status, outcome, started_at, ended_at) VALUES (?, ?, ?, ?, ?, ?, ?)`)
	check(tb, err)
	event, err := tx.Prepare(`INSERT INTO task_events (task_id, run_id, kind, payload, created_at) VALUES (?, ?, ?, ?, ?)`)
	check(tb, err)
	link, err := tx.Prepare(`INSERT INTO task_links VALUES (?, ?)`)
	check(tb, err)
	body := strings.Repeat("what is to be done. ", 20)
	for n := range tasks {
		id := fmt.Sprintf("t_%08x", n)
		who := "profile" + strconv.Itoa(n%profiles)
		status, kind := kanban.Done, "completed"
		var lock, expires, pid, current, ended any
		ended = now - 90000
		switch {
		case n < readyTasks:
			status = kanban.Ready
		case n < readyTasks+profiles:
			status, lock, expires, pid, current, ended = kanban.Running, "bench:1", now+1000, 1<<30, n, nil
		case n < readyTasks+profiles+waiting:
			status = kanban.Todo
			_, err = link.Exec(fmt.Sprintf("t_%08x", n%readyTasks), id)
			check(tb, err)
		case n < readyTasks+profiles+waiting+blocked:
			status, kind = kanban.Blocked, "blocked"
		}
		_, err = task.Exec(id, body, who, status, n%3, now-100000+int64(n%1000), lock, expires, pid, current)
		check(tb, err)
		if status == kanban.Done || status == kanban.Running {
			_, err = run.Exec(n, id, who, status, "completed", now-99000, ended)
			check(tb, err)
		}
		for _, k := range []string{"created", "claimed", "spawned", kind} {
			_, err = event.Exec(id, n, k, `{"pid": 1}`, now-99000)
			check(tb, err)
		}
	}
	check(tb, tx.Commit())
}

// resetTasks makes the started tasks ready again.
func resetTasks(tb testing.TB, path string) {
	tb.Helper()
	db, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(60000)")
	check(tb, err)
	defer db.Close()
	for _, stmt := range []string{
		"DELETE FROM task_runs WHERE id IN (SELECT current_run_id FROM tasks WHERE status = 'running' AND id < 't_00000064')",
		`UPDATE tasks SET status = 'ready', claim_lock = NULL, claim_expires = NULL, worker_pid = NULL, current_run_id = NULL
			WHERE status = 'running' AND id < 't_00000064'`,
	} {
		_, err := db.Exec(stmt)
		check(tb, err)
	}
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func BenchmarkTick(b *testing.B) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	now := time.Now()
	for _, tasks := range []int{10_000, 200_000} {
		path := filepath.Join(b.TempDir(), "kanban.db")
		paths := kanban.Paths{Board: "default", DB: path, Workspaces: filepath.Join(filepath.Dir(path), "w"), Logs: filepath.Join(filepath.Dir(path), "l")}
		open := func() *kanban.Store {
			s, err := kanban.Open(b.Context(), paths, kanban.Options{Env: os.Getenv, Host: "bench", PID: 1})
			check(b, err)
			return s
		}
		s := open()
		fill(b, path, tasks, now.Unix())
		d := &kanban.Dispatcher{
			Store: s, Runner: &runner{}, Profiles: anybody{},
			Environ: os.Environ(),
		}
		measure := func(name string, opt kanban.TickOptions, want int) {
			b.Run(fmt.Sprintf("%s/tasks=%d", name, tasks), func(b *testing.B) {
				for b.Loop() {
					r, err := d.Tick(b.Context(), now, opt)
					check(b, err)
					if len(r.Spawned) != want {
						b.Fatalf("%+v", r)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "ms/tick")
			})
		}
		d.Config.MaxInProgressPerProfile = new(1)
		measure("every-profile-at-its-cap", kanban.TickOptions{}, 0)
		d.Config.MaxInProgressPerProfile = nil
		measure("dry-run-of-100", kanban.TickOptions{DryRun: true}, readyTasks)
		b.Run(fmt.Sprintf("python-same-questions/tasks=%d", tasks), func(b *testing.B) {
			out, err := exec.CommandContext(b.Context(), "python3", "peer.py", path, strconv.Itoa(b.N), strconv.FormatInt(now.Unix(), 10)).Output()
			if err != nil {
				b.Skip(err)
			}
			ms, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
			check(b, err)
			b.ReportMetric(ms, "ms/tick")
			b.ReportMetric(0, "ns/op") // Exclude the interpreter's start time.
		})
		b.Run(fmt.Sprintf("start-100/tasks=%d", tasks), func(b *testing.B) {
			for b.Loop() {
				r, err := d.Tick(b.Context(), now, kanban.TickOptions{})
				check(b, err)
				if len(r.Spawned) != readyTasks {
					b.Fatalf("%+v", r)
				}
				b.StopTimer()
				resetTasks(b, path)
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "ms/tick")
		})
		check(b, s.Close())
	}
}
