package kanban

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFullDisk(t *testing.T) {
	dir := mountSmallDisk(t, "2m")
	b := openBoard(t, dir, testEnv{})
	id := b.createReady("alpha")
	var failed error
	made := 1
	for range 2000 {
		if _, failed = b.Create(t.Context(), b.now, Task{Title: "x", Body: strings.Repeat("b", 20000)}); failed != nil {
			break
		}
		made++
	}
	if failed == nil || !strings.Contains(failed.Error(), "full") {
		t.Fatalf("%v", failed)
	}
	list, err := b.Tasks(t.Context(), TaskFilter{})
	if must(t, err); len(list) != made {
		t.Errorf("%d tasks of %d", len(list), made)
	}
	checkIntegrity(t, b.Store)
	if _, err := b.dispatcher.Tick(t.Context(), b.now, TickOptions{}); err == nil {
		b.checkStatus(id, Running)
	}
	if err := b.Backup(t.Context(), filepath.Join(dir, "copy.db")); err == nil || isFile(filepath.Join(dir, "copy.db")) {
		t.Errorf("half a backup: %v", err)
	}
}

// TestReadOnlyVolume checks that read commands work on a read-only volume, and that the errors of
// other commands name it.
func TestReadOnlyVolume(t *testing.T) {
	dir := mountSmallDisk(t, "4m")
	b := openBoard(t, dir, testEnv{})
	b.createReady("alpha")
	path := b.paths.DB
	_, err := b.db.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
	must(t, err)
	must(t, b.Store.Close())
	b.Store.db, b.Store.lengthFile = nil, nil
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	clearCheckedFiles()
	s, err := openStoreAt(t, path)
	must(t, err)
	list, err := s.Tasks(t.Context(), TaskFilter{})
	if must(t, err); len(list) != 1 {
		t.Errorf("%d tasks can be read", len(list))
	}
	if _, err := s.Create(t.Context(), b.now, Task{Title: "one more"}); !strings.Contains(ExplainFileError(err), "mounted read-only") {
		t.Errorf("a write: %v", err)
	}
	d := &Dispatcher{Store: s, Profiles: b.dispatcher.Profiles}
	if _, err := d.Tick(t.Context(), b.now, TickOptions{}); !strings.Contains(ExplainFileError(err), "mounted read-only") {
		t.Errorf("a pass: %v", err)
	}
	if res, err := d.Tick(t.Context(), b.now, TickOptions{DryRun: true}); err != nil || len(res.Spawned) != 1 {
		t.Errorf("a dry run: %+v, %v", res, err)
	}
	must(t, s.Backup(t.Context(), filepath.Join(t.TempDir(), "copy.db")))
	must(t, s.Close())
	if _, err := openStoreAt(t, filepath.Join(dir, "boards", "other.db")); err == nil || !strings.Contains(err.Error(), "mounted read-only") {
		t.Errorf("a board that does not exist: %v", err)
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, ""))
	s, err = openStoreAt(t, path)
	must(t, err)
	checkIntegrity(t, s)
	must(t, s.Close())
}

func mountSmallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("kanban-test", dir, "tmpfs", 0, "size="+size); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestLargeBody(t *testing.T) {
	size := 5 << 20
	if *longTests {
		size = 100 << 20 // Each change writes the whole row, which takes seconds.
	}
	b := newBoard(t)
	body := strings.Repeat("0123456789abcdef", size/16)
	id := b.create(Task{Assignee: "alpha", Body: body})
	if got := b.task(id).Body; got != body {
		t.Errorf("%d bytes came back", len(got))
	}
	checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
	ok, err := b.Complete(t.Context(), b.now, id, Completion{Summary: "done"})
	if must(t, err); !ok {
		t.Error("not completed")
	}
}

func TestLockedForLong(t *testing.T) {
	b := newBoard(t)
	id := b.createReady("alpha")
	holder, err := openDatabase(b.paths.DB, "rw", time.Second)
	must(t, err)
	defer holder.Close()
	_, err = holder.Exec("BEGIN IMMEDIATE")
	must(t, err)
	_, err = b.db.Exec("PRAGMA busy_timeout = 100")
	must(t, err)
	if _, err := b.dispatcher.Tick(t.Context(), b.now, TickOptions{}); err == nil || !isBusy(err) {
		t.Errorf("%v", err)
	}
	// A caller that cancels must get an answer at once.
	_, err = b.db.Exec("PRAGMA busy_timeout = 120000")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.Create(ctx, b.now, Task{Title: "x"}); err == nil {
		t.Error("no error")
	}
	_, err = holder.Exec("ROLLBACK")
	must(t, err)
	checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
	checkIntegrity(t, b.Store)
}

func TestClockSteps(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		b := newBoard(t)
		b.runner.reportsStarted = true
		id := b.createReady("alpha")
		b.tick()
		b.advance(step)
		for range 3 {
			b.tick()
		}
		b.checkStatus(id, Running) // The runner reports the worker as alive, which outweighs the clock.
		b.reportExit(id, Exit{Code: 1})
		b.tick()
		if n := b.task(id).ConsecutiveFailures; n != 1 {
			t.Errorf("%s: %d failures", step, n)
		}
	}
}

// TestAWordInAColumnOfNumbersStopsNobody checks that a text in a numeric column does not stop the
// board. SQLite permits such a value.
func TestAWordInAColumnOfNumbersStopsNobody(t *testing.T) {
	t.Parallel()
	for _, table := range []table{tasksTable, runsTable} {
		for _, c := range table.columns {
			if !strings.HasPrefix(c.definition, sqlInteger) || c.definition == sqlSerial {
				continue
			}
			b := newBoard(t)
			bad, good := b.createReady("alpha"), b.createReady("beta")
			b.tick()
			b.execSQL("UPDATE " + table.name + " SET " + c.name + " = 'zzz' WHERE rowid = 1")
			misfits, err := b.NonIntegerValues(t.Context())
			if must(t, err); len(misfits) == 0 || table.name == "tasks" && !strings.Contains(misfits[0], bad) {
				t.Errorf("%s: doctor names %q", c.name, misfits)
			}
			next := b.createReady("beta")
			_, err = b.dispatcher.Tick(t.Context(), b.now, TickOptions{})
			if err != nil || b.task(next).Status != Running || b.task(good).Status != Running {
				t.Errorf("%s: %v; %s", c.name, err, b.task(next).Status)
			}
			if _, err := b.dispatcher.NextPassTime(t.Context(), b.now); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if _, err := b.Tasks(t.Context(), TaskFilter{}); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if _, err := b.Stats(t.Context(), b.now); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
}
