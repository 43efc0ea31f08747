package cli

import (
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"hinit/internal/testkit"
)

// TestATaskWithAHugeTitleHidAllBoards checks that `stats --all` shortens long titles, because the
// page reads at most 8 MiB of its output.
func TestATaskWithAHugeTitleHidAllBoards(t *testing.T) {
	s := newShell(t)
	huge := strings.Repeat("é", 5<<20)
	id := s.create(huge)
	s.mustRun("block", id, "x")
	if err := os.MkdirAll(filepath.Join(s.root, "kanban", "boards", "side"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.mustRun("boards", "create", "side", "--name", huge)
	out := s.mustRun("stats", "--all")
	var list []boardOverview
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(out) > 100<<10 || len(list) != 2 || !strings.HasPrefix(list[0].Blocked[0].Title, "éé") {
		t.Errorf("%d bytes: %v", len(out), err)
	}
}

// TestACommandFollowedAFileThatWasReplaced checks that a following command ends when a backup
// replaces the board's file.
func TestACommandFollowedAFileThatWasReplaced(t *testing.T) {
	s := newShell(t)
	s.create("x")
	db := filepath.Join(s.root, "kanban.db")
	ended := make(chan string, 1)
	go func() {
		_, _, errs := s.run("watch")
		ended <- errs
	}()
	replace := func() bool {
		copied := filepath.Join(s.root, "copy.db")
		_ = os.Remove(copied)
		s.mustRun("backup", copied)
		if err := os.Rename(copied, db); err != nil {
			t.Fatal(err)
		}
		select {
		case errs := <-ended:
			if !strings.Contains(errs, "was replaced") {
				t.Errorf("it says %q", errs)
			}
			return true
		case <-time.After(time.Second):
			return false
		}
	}
	testkit.Until(t, "the command ends", replace)
}

// TestAListReadTheBodiesOfTasks checks that a list does not read the tasks' bodies, which may be
// huge.
func TestAListReadTheBodiesOfTasks(t *testing.T) {
	s := newShell(t)
	const size = 8 << 20
	id := s.create("x", "--body", strings.Repeat("b", size), "--assignee", "coder")
	s.mustRun("claim", id)
	s.mustRun("block", id, "no", "key")
	for _, words := range [][]string{{"stats", "--all"}, {"list"}, {"doctor"}} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, out, _ := s.run(words...)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > size/2 || out == "" {
			t.Errorf("%q takes %d bytes: %s", words, took, out)
		}
	}
}

// TestTheDoctorDidNotSeeTasksWithoutAnID checks that the doctor names tasks without an ID, which
// can't be started.
func TestTheDoctorDidNotSeeTasksWithoutAnID(t *testing.T) {
	s := newShell(t)
	s.create("x", "--assignee", "coder")
	db, err := sql.Open("sqlite", filepath.Join(s.root, "kanban.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "INSERT INTO tasks (title, status, assignee, created_at) VALUES ('y', 'ready', 'coder', 1)"); err != nil {
		t.Fatal(err)
	}
	if _, out, _ := s.run("doctor"); !strings.Contains(out, "1 tasks have no id") || !strings.Contains(out, "DELETE FROM tasks WHERE id IS NULL") {
		t.Errorf("it says %s", out)
	}
}

// TestALockedBoardHidAllBoards checks that `stats --all` does not wait for a locked board, because
// the page waits only five seconds.
func TestALockedBoardHidAllBoards(t *testing.T) {
	s := newShell(t)
	s.create("x")
	s.mustRun("boards", "create", "side")
	db, err := sql.Open("sqlite", filepath.Join(s.root, "kanban.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, query := range []string{"PRAGMA locking_mode = EXCLUSIVE", "UPDATE tasks SET priority = 1"} {
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	s.env["HERMES_KANBAN_BUSY_TIMEOUT_MS"] = "60000"
	begin := time.Now()
	var list []boardOverview
	if err := json.Unmarshal([]byte(s.mustRun("stats", "--all")), &list); err != nil || len(list) != 2 || list[0].Error == "" || list[1].Error != "" {
		t.Errorf("%+v, %v", list, err)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("it takes %s", took)
	}
}

// TestTheDoctorNamesALogThatOnlyGrows checks that the doctor names a write-ahead log that grows
// because a read transaction never ends.
func TestTheDoctorNamesALogThatOnlyGrows(t *testing.T) {
	s := newShell(t)
	s.create("x")
	log := filepath.Join(s.root, "kanban.db-wal")
	if err := errors.Join(os.WriteFile(log, nil, 0o644), os.Truncate(log, maxLogBytes+1)); err != nil {
		t.Fatal(err)
	}
	if _, out, _ := s.run("doctor"); !strings.Contains(out, "kanban.db-wal has 64 MiB, because a program does not end its read transaction") {
		t.Errorf("%s", out)
	}
}
