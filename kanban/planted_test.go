package kanban

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAFifoOrADeviceInPlaceOfAFileStopsNobody checks that a FIFO or a link to /dev/zero in place of
// a board file neither blocks the dispatcher nor fills its memory.
func TestAFifoOrADeviceInPlaceOfAFileStopsNobody(t *testing.T) {
	t.Parallel()
	for _, plant := range []func(path string) error{
		func(path string) error { return unix.Mkfifo(path, 0o644) },
		func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		b := newBoard(t)
		root := filepath.Dir(b.paths.DB)
		must(t, os.MkdirAll(filepath.Join(root, "kanban/boards/side"), 0o755))
		for _, name := range []string{"kanban.db.workers", "config.yaml", "kanban/current", "kanban/boards/side/board.json", "kanban/boards/side/kanban.db", "x.log"} {
			must(t, plant(filepath.Join(root, name)))
		}
		id := b.createReady("alpha")
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
		if _, err := os.ReadFile(b.paths.ledgerPath()); err != nil || !strings.Contains(readAll(t, b.paths.ledgerPath()), id) {
			t.Errorf("the worker is not remembered: %v", err)
		}
		boards := &Boards{Root: root, Env: b.env.get}
		if m := boards.Meta("side"); m.Name != "Side" || boards.Current() != DefaultBoard {
			t.Errorf("%+v", m)
		}
		_, _, err := ReadConfig(filepath.Join(root, "config.yaml"))
		_, failed := openStoreAt(t, filepath.Join(root, "kanban/boards/side/kanban.db"))
		_, unread := Paths{Logs: root}.TailLog("x", 0)
		for _, err := range []error{err, failed, unread} {
			if err == nil || !strings.Contains(err.Error(), "no regular file") {
				t.Errorf("%v", err)
			}
		}
	}
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

// TestALongLineInTheLedgerHidesNoWorker checks that a ledger line of more than 64 kB does not hide
// workers.
func TestALongLineInTheLedgerHidesNoWorker(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	writeTestFile(t, b.paths.ledgerPath(), bytes.Repeat([]byte("x"), 200_000))
	id := b.createReady("alpha")
	b.tick()
	if run := b.task(id).CurrentRunID; readLedger(b.paths.ledgerPath()).runs[run].Task != id {
		t.Errorf("run %d is not there", run)
	}
}

// TestNoRowMakesTheDispatcherEndItself checks that the dispatcher ignores impossible worker pids,
// such as its own and PID 1.
func TestNoRowMakesTheDispatcherEndItself(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	pids := []int{os.Getpid(), 1, -1}
	for _, pid := range pids {
		b.claimForPID(b.createReady("alpha"), pid, true)
	}
	b.advance(2 * time.Hour)
	b.dispatcher.Config.MaxSpawn = new(0)
	b.tick()
	checkEqual(t, "signals", b.procs.signals)
	if list, err := b.Tasks(t.Context(), TaskFilter{Status: Running}); err != nil || len(list) > 0 {
		t.Errorf("%v: %d still stand", err, len(list))
	}
}

// TestATaskDoesNotWaitForAClockThatHasGoneBack checks that tasks do not wait after the clock was
// set back.
func TestATaskDoesNotWaitForAClockThatHasGoneBack(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	b.dispatcher.Backoff = time.Minute
	failed, done, talked, left := b.createReady("alpha"), b.createReady("alpha"), b.createReady("alpha"), b.createReady("beta")
	b.runner.reportsStarted = true
	b.tick()
	b.reportExit(failed, Exit{Code: 1})
	b.tick()
	for _, id := range []string{done, talked, left} {
		_, err := b.Complete(t.Context(), b.now, id, Completion{Summary: "x"})
		must(t, err)
	}
	err := b.AddComment(t.Context(), b.now, talked, "me", "https://github.com/a/b/pull/1")
	must(t, err)
	b.execSQL("DELETE FROM task_runs WHERE task_id = ?", talked)
	b.execSQL("UPDATE tasks SET status = 'ready' WHERE id IN (?, ?)", done, talked)
	leaves := b.runner.pid(left)
	b.advance(-365 * 24 * time.Hour)
	checkEqual(t, "spawned", spawnedIDs(b.tick()), failed, done, talked)
	if b.procs.Alive(leaves) && len(b.runner.ended) == 0 {
		t.Error("the worker of a finished task stays for a year")
	}
}

// TestAWorkspaceMayEndWithASlash checks that a workspace path may end with a slash, which PID 1
// would refuse.
func TestAWorkspaceMayEndWithASlash(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	dir := filepath.Join(t.TempDir(), "work")
	id := b.create(Task{Assignee: "alpha", WorkspaceKind: WorkspaceDir, WorkspacePath: dir + "/"})
	b.tick()
	if got := b.runner.jobs[0].Dir; got != dir || b.task(id).WorkspacePath != dir {
		t.Errorf("%s, and the task has %s", got, b.task(id).WorkspacePath)
	}
}

// TestAHugePIDOfARowIsNoProcess checks that a pid above the kernel's maximum matches no process.
// The kernel would truncate it to 32 bits.
func TestAHugePIDOfARowIsNoProcess(t *testing.T) {
	me := os.Getpid()
	for _, number := range []int64{1<<32 + int64(me), 1<<32 + 1, 1<<22 + 1} {
		pid := int(number)
		if int64(pid) != number {
			continue // No pid is that large on this machine.
		}
		if k := (realProcesses{}); k.Alive(pid) || !k.End(t.Context(), pid, time.Second).Terminated {
			t.Errorf("%d is taken for a process", pid)
		}
	}
}

// TestATaskThatBeganAtNoTimeGoesOn checks that a task with the smallest integer as its start time
// does not count as new.
func TestATaskThatBeganAtNoTimeGoesOn(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	id := b.createReady("alpha")
	b.claim(id)
	b.execSQL("UPDATE tasks SET worker_pid = 4194305, claim_expires = 9223372036854775807, started_at = -9223372036854775808 WHERE id = ?", id)
	b.execSQL("UPDATE task_runs SET started_at = -9223372036854775808")
	b.dispatcher.Procs = realProcesses{}
	checkEqual(t, "crashed", b.tick().Crashed, id)
}

// TestNoRowMakesTheDispatcherEndAnotherProcess checks that claims and ledger entries with a foreign
// pid never make the dispatcher end that process.
func TestNoRowMakesTheDispatcherEndAnotherProcess(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	b.dispatcher.Procs = realProcesses{}
	b.dispatcher.Config.MaxSpawn = new(0)
	sleep := func(vars ...string) *exec.Cmd {
		cmd := exec.Command("sleep", "1000")
		cmd.Env = append(os.Environ(), vars...)
		must(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd
	}
	expired, over, reclaimed, left, own := b.createReady("alpha"), b.createReady("alpha"), b.createReady("alpha"), b.createReady("alpha"), b.createReady("alpha")
	strangers := []*exec.Cmd{sleep(), sleep("HERMES_KANBAN_TASK=" + own), sleep("X=HERMES_KANBAN_TASK=" + reclaimed), sleep()}
	worker := sleep("HERMES_KANBAN_TASK=" + own)
	for i, id := range []string{expired, over, reclaimed} {
		b.claimForPID(id, strangers[i].Process.Pid, true)
	}
	b.claimForPID(own, worker.Process.Pid, true)
	b.execSQL("UPDATE tasks SET claim_expires = 1, last_heartbeat_at = 1 WHERE id IN (?, ?)", expired, own)
	b.execSQL("UPDATE tasks SET max_runtime_seconds = 1 WHERE id = ?", over)
	pid := strangers[3].Process.Pid
	must(t, readLedger(b.paths.ledgerPath()).add(workerRecord{
		Run: 99, Task: left, Host: testHost, Worker: Worker{PID: pid, StartTime: realProcesses{}.StartTime(pid), BootID: currentContainerID()},
	}))
	ok, err := b.dispatcher.Reclaim(t.Context(), b.now, reclaimed, "")
	if must(t, err); !ok {
		t.Error("not reclaimed")
	}
	b.advance(2 * time.Hour)
	b.tick()
	b.tick() // This pass drops the ledger's records of the ended claims.
	for _, id := range []string{expired, over, reclaimed, left, own} {
		b.checkStatus(id, Ready)
	}
	for i, cmd := range strangers {
		if !(realProcesses{}).Alive(cmd.Process.Pid) {
			t.Errorf("process %d was ended", i)
		}
	}
	if (realProcesses{}).Alive(worker.Process.Pid) {
		t.Error("the worker is still alive")
	}
	if l := readLedger(b.paths.ledgerPath()); len(l.runs) > 0 {
		t.Errorf("the ledger still has %v", l.runs)
	}
}

// TestAPathAsIDLeadsNowhere checks that a task ID that is a path does not move the log or the
// workspace out of their directories.
func TestAPathAsIDLeadsNowhere(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	ids := []string{"../../stolen", "..", "/tmp/x", "a/b"}
	for _, id := range ids {
		b.execSQL("INSERT INTO tasks (id, title, assignee, status, created_at) VALUES (?, 'x', 'alpha', 'ready', 1)", id)
	}
	good := b.createReady("alpha")
	checkEqual(t, "spawned", spawnedIDs(b.tick()), good)
	for _, id := range ids {
		if task := b.task(id); task.Status != Ready || !strings.Contains(task.LastFailureError, "can't name a file") {
			t.Errorf("%+v", task)
		}
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(b.paths.DB), "stolen")); err == nil {
		t.Error("a directory outside the workspaces was made")
	}
}

// TestADamagedBoardNamesTheDoctor checks that the error for a damaged page refers to the doctor.
func TestADamagedBoardNamesTheDoctor(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	for range 200 {
		b.createReady("alpha")
	}
	_, err := b.db.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
	must(t, err)
	f, err := os.OpenFile(b.paths.DB, os.O_WRONLY, 0)
	must(t, err)
	st, err := f.Stat()
	must(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, int(st.Size())-4096), 4096)
	must(t, errors.Join(err, f.Close()))
	if _, err = Open(t.Context(), b.paths, Options{Env: b.env.get, Host: testHost, SkipCheck: true}); err == nil {
		t.Fatal("the board opens")
	}
	if why := ExplainFileError(err); !strings.Contains(why, "damaged (") || !strings.Contains(why, "; see: hinit kanban doctor") {
		t.Errorf("%s", why)
	}
}
