package kanban

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"hinit/internal/procstat"

	"golang.org/x/sys/unix"
)

// TestLiveness checks the rows of the contract about liveness and crashes, section 28.5.
func TestLiveness(t *testing.T) {
	t.Parallel()
	k := realProcesses{}
	if !k.Alive(os.Getpid()) || k.Alive(0) || k.Alive(-1) || k.Alive(1<<30) {
		t.Error("self, none or huge")
	}
	cmd := exec.Command("sleep", "60")
	must(t, cmd.Start())
	pid := cmd.Process.Pid
	if start := k.StartTime(pid); start == 0 || start < k.StartTime(os.Getpid()) {
		t.Errorf("start %d", start)
	}
	end := k.End(t.Context(), pid, TerminateGrace) // No process reaps the killed process, so it is a zombie.
	if !end.Attempted || !end.Terminated || end.Killed {
		t.Errorf("%+v", end)
	}
	if st, _ := procstat.Read(pid); st.State != 'Z' || k.Alive(pid) {
		t.Errorf("state %c, alive %v", st.State, k.Alive(pid))
	}
	_ = cmd.Wait()
	if k.Alive(pid) {
		t.Error("it is gone, and alive")
	}
	if end := k.End(t.Context(), pid, TerminateGrace); !end.Terminated {
		t.Errorf("no such process: %+v", end)
	}
}

func TestEndKillsTheDeaf(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	_, err = out.Read(make([]byte, 16))
	must(t, err)
	end := realProcesses{}.End(t.Context(), cmd.Process.Pid, 200*time.Millisecond)
	if !end.Killed || !end.Terminated {
		t.Errorf("%+v", end)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.Sys(); got == nil || !strings.Contains(cmd.ProcessState.String(), unix.SIGKILL.String()) {
		t.Errorf("%v", cmd.ProcessState)
	}
}

func TestCrashes(t *testing.T) {
	t.Parallel()
	t.Run("grace", func(t *testing.T) {
		for value, grace := range map[string]time.Duration{"": 30 * time.Second, "5": 5 * time.Second, "0": 0, "soon": 30 * time.Second, "-1": 30 * time.Second} {
			b := newBoard(t)
			b.env["HERMES_KANBAN_CRASH_GRACE_SECONDS"] = value
			b.dispatcher.Config.MaxSpawn = new(0)
			id := b.createReady("alpha")
			b.claimForPID(id, 71, false)
			if grace > 0 {
				b.advance(grace - time.Second)
				checkEqual(t, value+": inside", b.tick().Crashed)
				b.advance(time.Second)
			}
			checkEqual(t, value+": after", b.tick().Crashed, id)
		}
	})
	t.Run("grace of a retry", func(t *testing.T) { // The agent's own dispatcher differs: it counts the grace period from the task's first start.
		b := newBoard(t)
		id := b.createReady("alpha")
		b.claimForPID(id, 71, false)
		b.advance(time.Minute)
		b.dispatcher.Config.MaxSpawn = new(0)
		b.tick()
		b.claimForPID(id, 72, false)
		b.advance(time.Second)
		checkEqual(t, "crashed", b.tick().Crashed)
		b.checkStatus(id, Running)
	})
	t.Run("single crash", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.MaxSpawn = new(0)
		id := b.createReady("alpha")
		b.claimForPID(id, 71, false)
		b.advance(time.Minute)
		checkEqual(t, "crashed", b.tick().Crashed, id)
		task := b.task(id)
		if task.Status != Ready || task.ConsecutiveFailures != 1 || task.LastFailureError != "pid 71 not alive" || task.ClaimLock != "" {
			t.Errorf("%+v", task)
		}
		if run := b.lastRun(id); run.Outcome != "crashed" || run.Status != "crashed" || run.Error != "pid 71 not alive" || run.WorkerPID != 0 {
			t.Errorf("%+v", run)
		}
		checkEqual(t, "events", b.eventKinds(id), "created", "claimed", "crashed")
		b.checkIntegrity()
	})
	for name, c := range map[string]struct {
		exit    Exit
		text    string
		payload map[string]any
	}{
		"non-zero exit": {Exit{Code: 3}, "exited with code 3", map[string]any{"exit_kind": "nonzero_exit", "exit_code": 3.0}},
		"signal":        {Exit{Signal: 9}, "killed by signal 9", map[string]any{"exit_kind": "signaled", "exit_code": 9.0}},
		"out of memory": {Exit{Signal: 9, OOM: true}, "out of memory", map[string]any{"exit_kind": "signaled"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBoard(t)
			id := b.createReady("alpha")
			b.tick()
			b.reportExit(id, c.exit) // The runner saw the worker's end, so no grace period applies.
			b.dispatcher.Config.MaxSpawn = new(0)
			r := b.tick()
			checkEqual(t, "crashed", r.Crashed, id)
			if len(r.EndedRuns) != 1 || r.EndedRuns[0].Outcome != "crashed" || r.EndedRuns[0].Exit.Code != c.exit.Code {
				t.Errorf("%+v", r.EndedRuns)
			}
			if task := b.task(id); !strings.Contains(task.LastFailureError, c.text) || task.ConsecutiveFailures != 1 {
				t.Errorf("%+v", task)
			}
			p := b.lastPayload(id, "crashed")
			for key, want := range c.payload {
				if p[key] != want {
					t.Errorf("%v", p)
				}
			}
		})
	}
	t.Run("protocol violation", func(t *testing.T) { // An exit with 0 may be an answer to SIGTERM, so it counts as a failure.
		b := newBoard(t)
		id := b.createReady("alpha")
		b.tick()
		for n, want := range []string{"spawned", "gave_up"} { // The event after the first and after the second failure.
			b.reportExit(id, Exit{Code: 0, EndedAt: b.now})
			checkEqual(t, "too early", b.tick().Crashed)
			b.checkStatus(id, Running)
			next, err := b.dispatcher.NextPassTime(t.Context(), b.now)
			if must(t, err); next.Unix() != b.now.Unix()+crashReasonGrace {
				t.Errorf("next at %v, now %v", next, b.now)
			}
			b.advance(crashReasonGrace * time.Second)
			r := b.tick()
			checkEqual(t, "crashed", r.Crashed, id)
			kinds := b.eventKinds(id)
			if b.task(id).ConsecutiveFailures != int64(n+1) || kinds[len(kinds)-1] != want {
				t.Errorf("%d: %+v; %q", n, b.task(id), kinds)
			}
		}
		b.checkStatus(id, Blocked)
		if b.countEvents(id, "protocol_violation") != 2 || b.countEvents(id, "blocked") != 0 {
			t.Errorf("%q", b.eventKinds(id))
		}
		ok, err := b.Unblock(t.Context(), b.now, id)
		if must(t, err); !ok {
			t.Error("cannot unblock")
		}
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
	})
	// The test acts like the agent's reclaim_task: it sends SIGTERM, waits and writes.
	t.Run("a worker that ends well on SIGTERM is no violation", func(t *testing.T) {
		for _, x := range []Exit{{Code: 0}, {Signal: 15}, {Code: 143}} {
			b := newBoard(t)
			id := b.createReady("alpha")
			b.tick()
			lock := b.task(id).ClaimLock
			x.EndedAt = b.now
			b.reportExit(id, x)
			b.tick()
			b.execSQL("UPDATE task_runs SET status = 'reclaimed', outcome = 'reclaimed', ended_at = ?, claim_lock = NULL WHERE task_id = ?", b.now.Unix(), id)
			b.execSQL("UPDATE tasks SET status = 'ready', claim_lock = NULL, worker_pid = NULL, current_run_id = NULL WHERE id = ? AND claim_lock = ?", id, lock)
			checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
			if task := b.task(id); task.ConsecutiveFailures != 0 || b.countEvents(id, "crashed")+b.countEvents(id, "protocol_violation") != 0 {
				t.Errorf("%+v: %+v %q", x, task, b.eventKinds(id))
			}
		}
	})
	t.Run("many workers that somebody ends are no fault of all tasks", func(t *testing.T) {
		b := newBoard(t)
		var ids []string
		for range 4 {
			ids = append(ids, b.createReady("alpha"))
		}
		b.tick()
		for _, id := range ids {
			b.reportExit(id, Exit{Signal: 15, EndedAt: b.now})
		}
		b.advance(time.Minute)
		b.dispatcher.Config.MaxSpawn = new(0)
		b.tick()
		for _, id := range ids {
			b.checkStatus(id, Ready)
		}
	})
	t.Run("four equal crashes, two", func(t *testing.T) {
		for n, want := range map[int]Status{4: Blocked, 2: Ready} {
			b := newBoard(t)
			var ids []string
			for i := range n {
				ids = append(ids, b.createReady("alpha"))
				b.claimForPID(ids[i], 71+i, false)
			}
			b.dispatcher.Config.MaxSpawn = new(0)
			b.advance(time.Minute)
			for range 2 {
				b.tick()
				for _, id := range ids {
					b.checkStatus(id, want)
				}
			}
		}
	})
	t.Run("rate limit six times", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		for range 6 {
			checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
			b.reportExit(id, Exit{Code: 75, Terminated: true})
			r := b.tick()
			checkEqual(t, "rate limited", r.RateLimited, id)
			checkEqual(t, "crashed", r.Crashed)
			task := b.task(id)
			if task.Status != Ready || task.ConsecutiveFailures != 0 || !strings.Contains(task.LastFailureError, "rate-limited (quota wall)") {
				t.Fatalf("%+v", task)
			}
			if b.lastRun(id).Outcome != "rate_limited" || b.lastPayload(id, "rate_limited")["exit_code"] != 75.0 {
				t.Fatalf("%+v", b.lastRun(id))
			}
			b.advance(DefaultRateLimitCooldown)
		}
	})
	t.Run("real crash twice", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		for _, want := range []Status{Running, Blocked} {
			b.tick()
			b.reportExit(id, Exit{Code: 1})
			b.tick()
			b.checkStatus(id, want)
			if want == Running {
				continue
			}
			if p := b.lastPayload(id, "gave_up"); p["limit_source"] != "dispatcher" || p["effective_limit"] != 2.0 || p["failures"] != 2.0 {
				t.Errorf("%v", p)
			}
		}
	})
	t.Run("ended on purpose", func(t *testing.T) { // A stop from outside is no protocol violation (contract, 22.1).
		b := newBoard(t)
		id := b.createReady("alpha")
		b.tick()
		b.reportExit(id, Exit{Code: 0, Terminated: true})
		b.dispatcher.Config.MaxSpawn = new(0)
		r := b.tick()
		checkEqual(t, "released", r.Released, id)
		if task := b.task(id); task.Status != Ready || task.ConsecutiveFailures != 0 || task.LastFailureError != "" {
			t.Errorf("%+v", task)
		}
		if b.lastRun(id).Outcome != "reclaimed" {
			t.Errorf("%+v", b.lastRun(id))
		}
		b.checkIntegrity()
	})
	t.Run("an exit that is known beats the end of the claim", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		b.tick()
		b.reportExit(id, Exit{Code: 75})
		b.advance(time.Hour)
		b.dispatcher.Config.MaxSpawn = new(0)
		r := b.tick()
		checkEqual(t, "rate limited", r.RateLimited, id)
		if r.Reclaimed != 0 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("finished in time", func(t *testing.T) {
		b := newBoard(t)
		b.runner.reportsStarted = true
		id := b.createReady("alpha")
		b.tick()
		run := b.task(id).CurrentRunID
		b.reportExit(id, Exit{Code: 0})
		ok, err := b.Complete(t.Context(), b.now, id, Completion{Run: run, Summary: "fine"})
		if must(t, err); !ok {
			t.Fatal("cannot complete")
		}
		b.tick()
		b.checkStatus(id, Done)
		checkEqual(t, "forgotten", b.runner.forgotten, run)
		b.tick()
		checkEqual(t, "forgotten once", b.runner.forgotten, run)
	})
	t.Run("a pid of somebody else", func(t *testing.T) { // The agent's own dispatcher differs: it takes the other process for the worker.
		b := newBoard(t)
		id := b.createReady("alpha")
		b.claimForPID(id, 71, true)
		b.procs.starts[71] = 1000
		b.tick()
		b.checkStatus(id, Running)
		b.procs.starts[71] = 2000 // The worker has died, and another process has its pid.
		b.advance(time.Minute)
		b.dispatcher.Config.MaxSpawn = new(0)
		checkEqual(t, "crashed", b.tick().Crashed, id)
		checkEqual(t, "signals", b.procs.signals)
	})
	t.Run("clock went back", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		b.claimForPID(id, 71, false)
		b.advance(-time.Hour)
		b.dispatcher.Config.MaxSpawn = new(0)
		checkEqual(t, "crashed", b.tick().Crashed, id)
	})
}
