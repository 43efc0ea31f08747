package kanban

import (
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

func openStoreAt(t *testing.T, path string) (*Store, error) {
	t.Helper()
	s, err := Open(t.Context(), Paths{Board: "default", DB: path}, Options{Env: testEnv{"HERMES_KANBAN_BUSY_TIMEOUT_MS": "700"}.get})
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

// clearCheckedFiles makes the next Open of a path check the file again, as in another process.
func clearCheckedFiles() {
	checkedFiles.Clear()
}

// TestOpen checks the rows of the contract about the file, section 28.10. The subtests share the
// record of checked files.
func TestOpen(t *testing.T) {
	t.Run("init idempotent, tables present", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "deep", "er", "kanban.db")
		var before string
		for range 3 {
			s, err := openStoreAt(t, path)
			must(t, err)
			schema := dumpTables(t, s, "sqlite_master")
			if before != "" && schema != before {
				t.Errorf("the schema changed:\n%s\n%s", before, schema)
			}
			before = schema
			for _, table := range tables {
				if !strings.Contains(schema, `"`+table.name+`"`) {
					t.Errorf("no table %s", table.name)
				}
			}
			must(t, s.Close())
			clearCheckedFiles()
		}
	})
	t.Run("pragmas on first and later opens", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "kanban.db")
		for range 2 {
			s, err := openStoreAt(t, path)
			must(t, err)
			for pragma, want := range map[string]string{
				"journal_mode": "wal", "synchronous": "2", "wal_autocheckpoint": "100", "foreign_keys": "1", "secure_delete": "1", "cell_size_check": "1",
				"user_version": "0", "busy_timeout": "700",
			} {
				var got string
				must(t, s.db.QueryRow("PRAGMA "+pragma).Scan(&got))
				if got != want {
					t.Errorf("%s is %s, not %s", pragma, got, want)
				}
			}
		}
	})
	t.Run("busy timeout from env", func(t *testing.T) {
		for value, want := range map[string]time.Duration{"": 2 * time.Minute, "500": 500 * time.Millisecond, "0": 2 * time.Minute, "x": 2 * time.Minute} {
			s, err := Open(t.Context(), Paths{DB: filepath.Join(t.TempDir(), "k.db")}, Options{Env: testEnv{"HERMES_KANBAN_BUSY_TIMEOUT_MS": value}.get})
			must(t, err)
			if s.opt.BusyTimeout != want {
				t.Errorf("%q: %s", value, s.opt.BusyTimeout)
			}
			must(t, s.Close())
		}
	})
	t.Run("TLS-like header", func(t *testing.T) {
		for offset, head := range map[int]string{0: "\x17\x03\x03\x00\x40abcdefghijklmnopqrstuvwxyz0123456789", 5: "SQLit\x17\x03\x03\x01\x01t 3\x00abcdefghijklmnopqrstuvwxyz"} {
			path := filepath.Join(t.TempDir(), "kanban.db")
			writeTestFile(t, path, []byte(head))
			_, err := openStoreAt(t, path)
			var bad *CorruptError
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), "file is not a database") || !strings.Contains(err.Error(), fmt.Sprintf("offset %d", offset)) ||
				!strings.Contains(err.Error(), fmt.Sprintf("%x", head[:32])) {
				t.Errorf("%v", err)
			}
			if data, _ := os.ReadFile(path); string(data) != head {
				t.Error("the file was changed")
			}
		}
	})
	t.Run("other headers", func(t *testing.T) {
		for _, head := range []string{"x", "SQLite format 2", "SQLite format 3", strings.Repeat("\x00", 4096)} {
			path := filepath.Join(t.TempDir(), "kanban.db")
			writeTestFile(t, path, []byte(head))
			if _, err := openStoreAt(t, path); err == nil || strings.Contains(err.Error(), "TLS") {
				t.Errorf("%.20q: %v", head, err)
			}
		}
	})
	t.Run("locked healthy file is not corrupt", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "kanban.db")
		s, err := openStoreAt(t, path)
		must(t, err)
		must(t, s.Close())
		clearCheckedFiles()
		db, err := openDatabase(path, "rw", time.Second)
		must(t, err)
		defer db.Close()
		for _, stmt := range []string{"PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE", "CREATE TABLE held (x)"} {
			_, err := db.Exec(stmt)
			must(t, err)
		}
		_, err = openStoreAt(t, path)
		var bad *CorruptError
		if err == nil || errors.As(err, &bad) || !isBusy(err) {
			t.Errorf("%v", err)
		}
		if names, _ := filepath.Glob(path + ".corrupt*"); len(names) > 0 {
			t.Errorf("a backup of a healthy file: %q", names)
		}
	})
	t.Run("fast path", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "kanban.db")
		s, err := openStoreAt(t, path)
		must(t, err)
		lock, held, err := TryLock(s.paths.initLock())
		if must(t, err); !held {
			t.Fatal("the lock was kept")
		}
		defer lock.Release()
		began := time.Now()
		_, err = openStoreAt(t, path)
		must(t, err)
		if waited := time.Since(began); waited > maxInitLockWait/2 {
			t.Errorf("waited %s for the lock", waited)
		}
	})
	t.Run("bounded init lock", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "kanban.db")
		lock, _, err := TryLock(Paths{DB: path}.initLock())
		must(t, err)
		defer lock.Release()
		began := time.Now()
		s, err := Open(t.Context(), Paths{DB: path}, Options{Env: testEnv{}.get, initLockTimeout: 300 * time.Millisecond})
		must(t, err)
		defer s.Close()
		if waited := time.Since(began); waited < 300*time.Millisecond {
			t.Errorf("waited only %s", waited)
		}
	})
	t.Run("a symbolic link and a directory", func(t *testing.T) {
		dir := t.TempDir()
		if _, err := openStoreAt(t, dir); err == nil {
			t.Error("a directory is no board")
		}
	})
}

// corruptPage overwrites the file's second page with bytes of fill. The page belongs to the schema or to
// the first table.
func corruptPage(t *testing.T, path string, fill byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	st, err := f.Stat()
	must(t, err)
	for at := int64(4096); at < st.Size(); at += 4096 {
		_, err = f.WriteAt(slices.Repeat([]byte{fill}, 512), at)
		must(t, err)
	}
}

// makeLargeBoard creates a board whose database has many pages.
func makeLargeBoard(t *testing.T, path string) {
	t.Helper()
	s, err := openStoreAt(t, path)
	must(t, err)
	for range 50 {
		_, err := s.Create(t.Context(), time.Unix(1, 0), Task{Title: "x", Body: strings.Repeat("b", 500)})
		must(t, err)
	}
	must(t, s.Close())
}

func TestCorruptFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kanban.db")
	makeLargeBoard(t, path)
	for n, fill := range []byte{0xff, 0x07} {
		corruptPage(t, path, fill)
		writeTestFile(t, path+"-wal", []byte("whatever a log holds"))
		content, err := os.ReadFile(path)
		must(t, err)
		var backup string
		for range 10 {
			clearCheckedFiles()
			_, err := openStoreAt(t, path)
			var bad *CorruptError
			if !errors.As(err, &bad) || bad.Backup == "" || !strings.Contains(err.Error(), "corrupt DB") {
				t.Fatalf("%v", err)
			}
			backup = bad.Backup
		}
		if data, _ := os.ReadFile(backup); !slices.Equal(data, content) {
			t.Error("the backup differs")
		}
		if data, _ := os.ReadFile(path); !slices.Equal(data, content) {
			t.Error("the file was changed")
		}
		if data, _ := os.ReadFile(path + "-wal"); string(data) != "whatever a log holds" || !isFile(backup+"-wal") {
			t.Error("its log was changed, or not copied")
		}
		names, err := filepath.Glob(path + ".corrupt.????????????????.bak")
		if must(t, err); len(names) != n+1 {
			t.Errorf("%q", names)
		}
	}
}

func TestTruncatedWAL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kanban.db")
	s, err := openStoreAt(t, path)
	must(t, err)
	first, err := s.Create(t.Context(), time.Unix(1, 0), Task{Title: "first"})
	must(t, err)
	_, err = s.db.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
	must(t, err)
	_, err = s.Create(t.Context(), time.Unix(1, 0), Task{Title: "second"})
	must(t, err)
	copied := filepath.Join(t.TempDir(), "kanban.db") // The state after a power failure: the file, and a part of its log.
	for _, part := range []string{"", "-wal"} {
		data, err := os.ReadFile(path + part)
		must(t, err)
		if part != "" {
			data = data[:len(data)-100]
		}
		writeTestFile(t, copied+part, data)
	}
	cut, err := openStoreAt(t, copied)
	must(t, err)
	list, err := cut.Tasks(t.Context(), TaskFilter{})
	if must(t, err); len(list) != 1 || list[0].ID != first { // The log ends inside the second transaction, so only the first task exists.
		t.Errorf("%+v", list)
	}
	checkIntegrity(t, cut)
}

func TestNoWAL(t *testing.T) {
	// A lock mode without shared memory imitates a file system that lacks it.
	path := filepath.Join(t.TempDir(), "kanban.db")
	s := &Store{paths: Paths{DB: path}, opt: Options{Log: newTestLog(t), BusyTimeout: time.Second}}
	db, err := sql.Open("sqlite", "file:"+path+"?vfs=unix-dotfile")
	must(t, err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	s.db = db
	must(t, s.enableWriteAheadLog(t.Context()))
	var mode string
	must(t, db.QueryRow("PRAGMA journal_mode").Scan(&mode))
	if mode != "delete" {
		t.Errorf("journal_mode is %s", mode)
	}
}

func TestTornFile(t *testing.T) {
	testkit.SkipIfShort(t)
	b := newBoard(t)
	b.createReady("alpha")
	_, err := b.db.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
	must(t, err)
	must(t, b.checkLength(t.Context(), b.db))
	st, err := os.Stat(b.paths.DB)
	must(t, err)
	copied := filepath.Join(t.TempDir(), "copy.db")
	must(t, copyFile(b.paths.DB, copied))
	must(t, os.Truncate(copied, st.Size()-1))
	torn, err := os.Open(copied)
	must(t, err)
	defer torn.Close()
	err = (&Store{lengthFile: torn}).checkLength(t.Context(), b.db)
	if err == nil || !strings.Contains(err.Error(), "torn-extend detected: page count mismatch") {
		t.Errorf("%v", err)
	}

	// During a checkpoint of another process, a reader may see an incomplete file.
	grow, err := os.OpenFile(copied, os.O_RDWR, 0)
	must(t, err)
	defer grow.Close()
	done := make(chan error, 1)
	go func() { done <- (&Store{lengthFile: torn}).checkLength(t.Context(), b.db) }()
	must(t, grow.Truncate(st.Size()))
	must(t, <-done)
	var header [4]byte
	_, err = grow.ReadAt(header[:], 28)
	must(t, err)
	if pages := binary.BigEndian.Uint32(header[:]); int64(pages)*4096 != st.Size() {
		t.Errorf("%d pages in %d bytes", pages, st.Size())
	}

	// The store checks the file after each commit.
	b.Store.lengthFile, torn = torn, b.Store.lengthFile
	must(t, os.Truncate(copied, 4096))
	must(t, os.WriteFile(copied+"-wal", []byte("no log"), 0o644))
	if _, err := b.Create(t.Context(), b.now, Task{Title: "x"}); err == nil || !strings.Contains(err.Error(), "torn-extend detected") {
		t.Errorf("%v", err)
	}
	b.Store.lengthFile, torn = torn, b.Store.lengthFile
}

// TestDeathInACheckpoint checks that the board opens after a process has died during a checkpoint,
// when missing pages are in the log.
func TestDeathInACheckpoint(t *testing.T) {
	b := newBoard(t)
	_, err := b.db.Exec("PRAGMA wal_autocheckpoint = 0")
	must(t, err)
	_, err = b.db.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
	must(t, err)
	st, err := os.Stat(b.paths.DB)
	must(t, err)
	for range 30 {
		b.create(Task{Body: strings.Repeat("b", 3000)})
	}
	dir := t.TempDir()
	copied := filepath.Join(dir, "kanban.db")
	must(t, copyFile(b.paths.DB+"-wal", copied+"-wal"))
	_, err = b.db.Exec("PRAGMA wal_checkpoint(PASSIVE)")
	must(t, err)
	must(t, copyFile(b.paths.DB, copied))
	must(t, os.Truncate(copied, st.Size()+4096)) // The header and one page were written.
	s, err := openStoreAt(t, copied)
	must(t, err)
	if s.lengthError() == nil {
		t.Error("the file is as long as its header says")
	}
	must(t, s.checkLength(t.Context(), s.db))
	list, err := s.Tasks(t.Context(), TaskFilter{})
	if must(t, err); len(list) != 30 {
		t.Errorf("%d tasks", len(list))
	}
	checkIntegrity(t, s)
}

func TestRollbackHidesNothing(t *testing.T) {
	b := newBoard(t)
	first := errors.New("the first error")
	err := b.write(t.Context(), b.now, func(tx *writeTx) error {
		tx.exec("ROLLBACK") // This statement makes the next ROLLBACK fail.
		return first
	})
	if !errors.Is(err, first) {
		t.Errorf("%v", err)
	}
	b.createReady("alpha") // The connection still works.
}

// TestTheFirstErrorSticks checks that an error ends a transaction without effect, whatever calls
// follow.
func TestTheFirstErrorSticks(t *testing.T) {
	b := newBoard(t)
	id := b.createReady("alpha")
	err := b.write(t.Context(), b.now, func(tx *writeTx) error {
		tx.exec("UPDATE tasks SET title = 'changed'")
		if queryFirstInTx[string](tx, "SELECT nothing FROM tasks") != "" || tx.insert("INSERT INTO task_events (task_id) VALUES ('x')") != 0 {
			t.Error("an answer after an error")
		}
		tx.exec("UPDATE tasks SET title = 'again'")
		return errNothingToCommit
	})
	if err == nil || !strings.Contains(err.Error(), "nothing") || b.task(id).Title != "task" {
		t.Errorf("%v; the title is %q", err, b.task(id).Title)
	}
}

// TestLocksSurviveReading checks that SQLite's locks survive the store's own opens and closes of
// the file.
func TestLocksSurviveReading(t *testing.T) {
	b := newBoard(t)
	conn, err := b.db.Conn(t.Context())
	must(t, err)
	defer conn.Close()
	_, err = conn.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	must(t, err)
	_, err = hashFile(b.paths.DB)
	must(t, err)
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 0x40000002, Len: 510} // The byte range that SQLite locks for readers.
	f, err := os.OpenFile(b.paths.DB, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	must(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock))
	if lock.Type == unix.F_UNLCK {
		t.Error("nobody holds a lock on the file")
	}
}

func writeTestFile(t *testing.T, path string, data []byte) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, data, 0o644))
}
