package kanban

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite" // SQLite without cgo
	sqlite3 "modernc.org/sqlite/lib"
)

// ownLocks makes the engine's locks belong to its own descriptors. Otherwise any close of a board's file in this process, of the
// descriptor that checks its length say, would drop the locks that keep other processes out.
var ownLocks = sync.OnceFunc(func() { _, _ = sqlite.OFDLocking(true) })

// connect opens a file with the contract's settings. It has one connection, so a caller must have read all rows before it asks
// for the next ones. Mode is "rwc", "rw", "ro", or [unchanging].
func connect(path, mode string, busy time.Duration) (*sql.DB, error) {
	ownLocks()
	query := url.Values{"_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busy.Milliseconds()),
		"synchronous(FULL)", "wal_autocheckpoint(100)", "foreign_keys(ON)", "secure_delete(ON)", "cell_size_check(ON)",
	}}
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: "mode=" + mode + "&" + query.Encode()}
	connector, err := sqlite.NewConnector(dsn.String())
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	return db, nil
}

// unchanging is the mode for a file on a volume that is mounted read-only: SQLite then needs no file beside it.
const unchanging = "ro&immutable=1"

// busy says whether an error means that somebody else is using the file, which says nothing about its health.
func busy(err error) bool { return isCode(err, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) }

// Plainly says why the board's file can't be used, where the words of SQLite or the kernel don't say it; else it is empty.
func Plainly(err error) string {
	switch {
	case busy(err):
		return "another program is writing to the board, and does not end; try again, or see: hinit kanban doctor"
	case isCode(err, sqlite3.SQLITE_READONLY), errors.Is(err, unix.EROFS):
		return "the board's file can't be written: the volume is mounted read-only (mount it without :ro), or the file belongs to another user"
	case isCode(err, sqlite3.SQLITE_FULL), errors.Is(err, unix.ENOSPC):
		return "the volume of the board is full"
	}
	return ""
}

// corrupt says whether an error means that the file's content is at fault.
func corrupt(err error) bool { return isCode(err, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) }

// isCode says whether an error is one of these of the engine.
func isCode(err error, codes ...int) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && slices.Contains(codes, e.Code()&0xff)
}

// tx is a write transaction. Every row it writes has its time. Its first error sticks: the calls after that do nothing, and the transaction
// fails with it. So its functions return no errors.
type tx struct {
	conn  *sql.Conn
	ctx   context.Context //nolint:containedctx // it lives as long as the call
	store *Store
	now   int64
	err   error
}

// exec changes rows and says how many.
func (t *tx) exec(query string, args ...any) (rows int64) {
	if t.err != nil {
		return 0
	}
	res, err := t.conn.ExecContext(t.ctx, query, args...)
	if err == nil {
		rows, err = res.RowsAffected()
	}
	t.err = err
	return rows
}

// insert adds a row and returns its id.
func (t *tx) insert(query string, args ...any) (id int64) {
	t.exec(query, args...)
	return one[int64](t, "SELECT last_insert_rowid()")
}

// all is [read] inside a transaction.
func all[T any](t *tx, query string, args ...any) (rows []T) {
	if t.err == nil {
		rows, t.err = read[T](t.ctx, t.conn, query, args...)
	}
	return rows
}

// one is [first] inside a transaction.
func one[T any](t *tx, query string, args ...any) (row T) {
	if t.err == nil {
		row, t.err = first[T](t.ctx, t.conn, query, args...)
	}
	return row
}

// errNothing ends a transaction that has nothing to commit. It is no failure.
var errNothing = errors.New("nothing to do")

// Writable is why the board can't be written now, if so.
func (s *Store) Writable(ctx context.Context) error {
	return s.write(ctx, time.Time{}, func(*tx) error { return errNothing })
}

// change runs one transaction on a task. It reports false for an unknown task, and where do has nothing to do.
func (s *Store) change(ctx context.Context, now time.Time, id string, do func(t *tx, task Task) error) (done bool, err error) {
	err = s.write(ctx, now, func(t *tx) error {
		task, err := taskByID(ctx, t.conn, id)
		if errors.Is(err, ErrNoTask) {
			return errNothing
		}
		if err == nil {
			err = do(t, task)
			done = err == nil
		}
		return err
	})
	return done && err == nil, err
}

// write runs one immediate transaction. It isn't re-entrant: do must use the transaction only.
func (s *Store) write(ctx context.Context, now time.Time, do func(t *tx) error) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	t := &tx{conn: conn, ctx: ctx, store: s, now: now.Unix()}
	if err = do(t); t.err != nil {
		err = t.err
	}
	if err == nil {
		err = s.point("commit")
	}
	if err == nil {
		if _, err = conn.ExecContext(ctx, "COMMIT"); err == nil {
			return errors.Join(s.point("committed"), s.checkLength(ctx))
		}
	}
	// The first error is the one to report. A connection that can't even roll back is of no use to the next caller.
	// A code of SQLITE_ERROR means that the engine had rolled back by itself.
	if _, rollback := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK"); rollback != nil && !isCode(rollback, sqlite3.SQLITE_ERROR) {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	if errors.Is(err, errNothing) {
		return nil
	}
	return err
}
