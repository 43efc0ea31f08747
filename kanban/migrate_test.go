package kanban

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// makeOldFile returns a board of an early version, with few columns, other names, and text keys.
func makeOldFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kanban.db")
	db, err := sql.Open("sqlite", path)
	must(t, err)
	defer db.Close()
	for _, stmt := range []string{
		`CREATE TABLE tasks (id TEXT PRIMARY KEY, title TEXT NOT NULL, body TEXT, assignee TEXT, status TEXT NOT NULL, priority INTEGER DEFAULT 0,
			created_by TEXT, created_at INTEGER NOT NULL, started_at INTEGER, completed_at INTEGER, workspace_kind TEXT NOT NULL DEFAULT 'scratch',
			workspace_path TEXT, claim_lock TEXT, claim_expires INTEGER, result TEXT, spawn_failures INTEGER NOT NULL DEFAULT 0, last_spawn_error TEXT, worker_pid INTEGER)`,
		`CREATE TABLE task_links (parent_id TEXT NOT NULL, child_id TEXT NOT NULL, PRIMARY KEY (parent_id, child_id))`,
		`CREATE TABLE task_comments (id TEXT PRIMARY KEY, task_id TEXT NOT NULL, author TEXT NOT NULL, body TEXT NOT NULL, created_at INTEGER NOT NULL)`,
		`CREATE TABLE task_events (id TEXT PRIMARY KEY, task_id TEXT NOT NULL, kind TEXT NOT NULL, payload TEXT, created_at INTEGER NOT NULL)`,
		`CREATE TABLE kanban_notify_subs (task_id TEXT NOT NULL, platform TEXT NOT NULL, chat_id TEXT NOT NULL, thread_id TEXT NOT NULL DEFAULT '',
			user_id TEXT, created_at INTEGER NOT NULL, last_event_id TEXT NOT NULL DEFAULT '', PRIMARY KEY (task_id, platform, chat_id, thread_id))`,
		`INSERT INTO tasks (id, title, assignee, status, created_at, started_at, claim_lock, claim_expires, worker_pid, spawn_failures, last_spawn_error) VALUES
			('t_00000001', 'ready', 'alpha', 'ready', 1, NULL, NULL, NULL, NULL, 1, 'no such file'),
			('t_00000002', 'running', 'alpha', 'running', 2, 3, 'host:9', 4, 77, 0, NULL)`,
		`INSERT INTO task_comments VALUES ('c_b', 't_00000001', 'user', 'first', 1), ('c_a', 't_00000001', 'user', 'second', 2)`,
		`INSERT INTO task_events VALUES ('e1', 't_00000001', 'ready', NULL, 1), ('e2', 't_00000001', 'priority', NULL, 2), ('e3', 't_00000001', 'spawn_auto_blocked', '{}', 3)`,
		`INSERT INTO kanban_notify_subs VALUES ('t_00000001', 'p', 'c1', '', NULL, 1, '12'), ('t_00000001', 'p', 'c2', '', NULL, 1, 'e3')`,
	} {
		_, err := db.Exec(stmt)
		must(t, err)
	}
	return path
}

func TestMigration(t *testing.T) {
	path := makeOldFile(t)
	s, err := openStoreAt(t, path)
	must(t, err)
	fresh := filepath.Join(t.TempDir(), "kanban.db")
	f, err := openStoreAt(t, fresh)
	must(t, err)
	_ = f
	got, want := readStructure(t, path), readStructure(t, fresh)
	columns := got["tasks"].(map[string]any)
	for _, left := range []string{"spawn_failures", "last_spawn_error"} {
		if columns[left] == nil {
			t.Errorf("column %s is gone; an old program may need it", left)
		}
		delete(columns, left)
	}
	for name, is := range want {
		if !reflect.DeepEqual(got[name], is) {
			t.Errorf("%s: %v, not %v", name, got[name], is)
		}
	}
	one, err := s.Task(t.Context(), "t_00000001")
	must(t, err)
	if one.ConsecutiveFailures != 1 || one.LastFailureError != "no such file" {
		t.Errorf("%+v", one)
	}
	runs, err := s.Runs(t.Context(), "t_00000002")
	must(t, err)
	if two, _ := s.Task(t.Context(), "t_00000002"); len(runs) != 1 || two.CurrentRunID != runs[0].ID || runs[0].WorkerPID != 77 || runs[0].StartedAt != 3 || runs[0].Profile != "alpha" {
		t.Errorf("%+v %+v", two, runs)
	}
	comments, err := s.Comments(t.Context(), "t_00000001")
	must(t, err)
	if len(comments) != 2 || comments[0].Body != "first" || comments[0].ID != 1 {
		t.Errorf("%+v", comments)
	}
	events, err := s.Events(t.Context(), "t_00000001", 0)
	must(t, err)
	var kinds []string
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	checkEqual(t, "kinds", kinds, "promoted", "reprioritized", "gave_up")
	cursors, err := queryAll[int64](t.Context(), s.db, "SELECT last_event_id FROM kanban_notify_subs ORDER BY chat_id")
	must(t, err)
	checkEqual(t, "cursors", cursors, 12, 0)
	checkIntegrity(t, s)

	backups, err := filepath.Glob(path + ".migration.????????????????.bak")
	if must(t, err); len(backups) != 1 {
		t.Fatalf("%q", backups)
	}
	if reason, err := s.checkIntegrity(t.Context(), backups[0]); reason != "" || err != nil {
		t.Errorf("%s %v", reason, err)
	}
	old, err := openDatabase(backups[0], "ro", time.Second)
	must(t, err)
	defer old.Close()
	kept, err := queryAll[string](t.Context(), old, "SELECT id FROM task_comments ORDER BY created_at")
	must(t, err)
	checkEqual(t, "the copy", kept, "c_b", "c_a")

	before := dumpTables(t, s, "sqlite_master", "tasks", "task_events", "task_runs")
	must(t, s.Close())
	clearCheckedFiles()
	s, err = openStoreAt(t, path)
	must(t, err)
	if after := dumpTables(t, s, "sqlite_master", "tasks", "task_events", "task_runs"); after != before {
		t.Errorf("a second migration changed\n%sinto\n%s", before, after)
	}
	if again, _ := filepath.Glob(path + ".migration.*.bak"); len(again) != 1 {
		t.Errorf("%q", again)
	}
}

func TestMigrationOfRunsWithTextKeys(t *testing.T) {
	path := makeOldFile(t)
	db, err := sql.Open("sqlite", path)
	must(t, err)
	for _, stmt := range []string{
		`CREATE TABLE task_runs (id TEXT PRIMARY KEY, task_id TEXT NOT NULL, profile TEXT, status TEXT NOT NULL, started_at INTEGER NOT NULL, ended_at INTEGER, outcome TEXT)`,
		`ALTER TABLE tasks ADD COLUMN current_run_id TEXT`,
		`INSERT INTO task_runs VALUES ('r_z', 't_00000002', 'alpha', 'running', 1, NULL, NULL), ('r_a', 't_00000002', 'alpha', 'running', 3, NULL, NULL), ('r_b', 't_00000001', 'alpha', 'done', 1, 2, 'completed')`,
		`UPDATE tasks SET current_run_id = 'r_a' WHERE id = 't_00000002'`,
	} {
		_, err := db.Exec(stmt)
		must(t, err)
	}
	must(t, db.Close())
	s, err := openStoreAt(t, path)
	must(t, err)
	runs, err := s.Runs(t.Context(), "t_00000002")
	must(t, err)
	if len(runs) != 2 || runs[0].Outcome != "reclaimed" || runs[1].EndedAt != 0 {
		t.Errorf("%+v", runs)
	}
	checkIntegrity(t, s)
}

func TestConcurrentMigration(t *testing.T) {
	for range 3 {
		path := makeOldFile(t)
		var wait sync.WaitGroup
		for range 4 {
			wait.Go(func() {
				s := &Store{paths: Paths{DB: path}, opt: Options{Env: testEnv{}.get, Log: newTestLog(t), BusyTimeout: time.Minute, initLockTimeout: 1}}
				defer s.Close()
				if err := s.connectFile(t.Context(), "rwc"); err != nil {
					t.Error(err)
					return
				}
				// This migration does not take the init lock.
				if err := s.migrate(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		clearCheckedFiles()
		s, err := openStoreAt(t, path)
		must(t, err)
		checkIntegrity(t, s)
		n, err := queryAll[int](t.Context(), s.db, "SELECT count(*) FROM task_comments")
		if must(t, err); n[0] != 2 {
			t.Errorf("%d comments", n[0])
		}
	}
}

func TestMigrationWithoutRoomForACopy(t *testing.T) {
	dir := mountSmallDisk(t, "400k")
	path := filepath.Join(dir, "kanban.db")
	must(t, copyFile(makeOldFile(t), path))
	db, err := sql.Open("sqlite", path)
	must(t, err)
	for range 10 {
		_, err = db.Exec("INSERT INTO tasks (id, title, status, created_at, body) VALUES (lower(hex(randomblob(4))), 'x', 'ready', 1, ?)", strings.Repeat("b", 25000))
		must(t, err)
	}
	must(t, db.Close())
	sum, err := hashFile(path)
	must(t, err)
	_, err = openStoreAt(t, path)
	if err == nil || !strings.Contains(err.Error(), "cannot copy it first") {
		t.Errorf("%v", err)
	}
	db, err = sql.Open("sqlite", path)
	must(t, err)
	defer db.Close()
	n, err := queryAll[int](t.Context(), db, "SELECT count(*) FROM pragma_table_info('tasks')")
	if must(t, err); n[0] != 18 {
		t.Errorf("%d columns: it was migrated (hash was %s)", n[0], sum)
	}
	if names, _ := filepath.Glob(dir + "/.backup*"); len(names) > 0 {
		t.Errorf("%q was left behind", names)
	}
}

func TestEmptyFileAndHalfSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kanban.db")
	writeTestFile(t, path, nil)
	s, err := openStoreAt(t, path)
	must(t, err)
	for _, name := range []string{"task_attachments", "kanban_notify_subs"} {
		_, err := s.db.Exec(fmt.Sprintf("DROP TABLE %s", name))
		must(t, err)
	}
	must(t, s.Close())
	clearCheckedFiles()
	s, err = openStoreAt(t, path)
	must(t, err)
	sh, err := readSchema(t.Context(), s.db)
	must(t, err)
	if complete, old := sh.checkComplete(); !complete || old {
		t.Error("not complete")
	}
	if names, _ := filepath.Glob(path + ".migration*"); len(names) > 0 {
		t.Errorf("a copy for tables that were only made: %q", names)
	}
}
