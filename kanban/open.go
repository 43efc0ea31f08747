package kanban

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/pause"
	"hinit/internal/wholefile"
)

// Options are the options for opening a board. If only Env is set, Open works like the agent's own programs.
type Options struct {
	BusyTimeout time.Duration // Maximum wait for another program's lock; 0: HERMES_KANBAN_BUSY_TIMEOUT_MS, otherwise two minutes.
	Env         Env           // Environment of the program.
	Host        string        // Host name in the claims of this store; empty: os.Hostname.
	PID         int           // Pid in the claims of this store; 0: this process.
	Workdir     string        // default_workdir of the board.
	Toolsets    []string      // Names of toolsets, which Create refuses as names of skills.
	SkipCheck   bool          // Skip the integrity check of the whole file at the first open in this process.

	initLockTimeout time.Duration      // Maximum wait for the initLock; only tests set it.
	crashHook       func(string) error // Called at each [Store.crashPoint]; only tests set it.
	Log             *slog.Logger       // Log for warnings; nil: slog.Default.
}

// Store is one open board. Several goroutines may use it at a time. Each call is at most one transaction.
type Store struct {
	db         *sql.DB
	lengthFile *os.File       // Second descriptor of the file, to check its length.
	walFiles   [2]fs.FileInfo // Write-ahead log and index when the board was opened; nil: the file did not exist.
	paths      Paths
	opt        Options
	tickLock   *Lock // Tick lock that the dispatcher keeps between passes; nil: none.
}

// crashPoint marks a place at which a test can make the process die. The tests prove that the board survives this.
func (s *Store) crashPoint(name string) error {
	if s.opt.crashHook == nil {
		return nil
	}
	return s.opt.crashHook(name)
}

// maxInitLockWait limits how long Open waits while another process checks and migrates the file. After that time, Open does the
// same itself without the lock. This is safe, because a step that is done twice has no further effect.
const maxInitLockWait = 10 * time.Second

// checkedFiles maps the path of each file that this process has checked and migrated to its fs.FileInfo, so that it does so
// only once. If another file has replaced a known file, Open checks the new file.
var checkedFiles sync.Map

// Open opens a board. It creates a missing file. It migrates the file of an older version, after making a backup.
//
// Open follows symbolic links, as other writers of the board do. A caller that is root must therefore become the agent's user
// first.
func Open(ctx context.Context, paths Paths, opt Options) (*Store, error) {
	opt.Log = cmp.Or(opt.Log, slog.Default())
	if opt.BusyTimeout <= 0 {
		opt.BusyTimeout = DefaultBusyTimeout
		if ms, err := strconv.Atoi(opt.Env.trimmed("HERMES_KANBAN_BUSY_TIMEOUT_MS")); err == nil && ms > 0 {
			opt.BusyTimeout = time.Duration(ms) * time.Millisecond
		}
	}
	if opt.Host == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("cannot open board %s: %w", paths.DB, err)
		}
		opt.Host = host
	}
	opt.initLockTimeout = cmp.Or(opt.initLockTimeout, maxInitLockWait)
	opt.PID = cmp.Or(opt.PID, os.Getpid())
	s := &Store{paths: paths, opt: opt}
	if err := s.open(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	for i, end := range walSuffixes {
		s.walFiles[i], _ = os.Stat(s.paths.DB + end)
	}
	return s, nil
}

func (s *Store) open(ctx context.Context) error {
	path := s.paths.DB
	st, _ := os.Stat(path) // The result is nil if the file is missing.
	empty := st == nil || st.Size() == 0
	if readOnly(path) {
		return s.openReadOnly(ctx, empty)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("cannot make directory of board %s: %w", path, err)
	}
	if known, is := checkedFiles.Load(path); is && !empty && os.SameFile(st, known.(fs.FileInfo)) {
		return s.connectFile(ctx, "rwc")
	}

	if lock := s.lockInit(ctx); lock != nil {
		defer lock.Release()
	}
	if err := s.checkFile(ctx); err != nil {
		return err
	}
	if err := s.connectFile(ctx, "rwc"); err != nil {
		return err
	}
	if err := s.enableWriteAheadLog(ctx); err != nil {
		return err
	}
	if err := s.migrate(ctx); err != nil {
		return fmt.Errorf("cannot bring board %s up to date: %w", path, err)
	}
	if st, err := os.Stat(path); err == nil {
		checkedFiles.Store(path, st)
	}
	return nil
}

// walSuffixes are the suffixes of the files that SQLite keeps beside the database: the write-ahead log and its index.
var walSuffixes = [2]string{"-wal", "-shm"}

// readOnly reports whether a path is on a read-only file system. If the path doesn't exist, it checks the nearest existing
// directory above it.
func readOnly(path string) bool {
	var st unix.Statfs_t
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if err := unix.Statfs(dir, &st); err == nil || dir == filepath.Dir(dir) {
			return err == nil && st.Flags&unix.ST_RDONLY != 0
		}
	}
}

// openReadOnly opens a board on a volume that is mounted read-only, for commands that only read. Every write to the store fails.
func (s *Store) openReadOnly(ctx context.Context, empty bool) error {
	if empty {
		return fmt.Errorf("cannot make board %s: its volume is mounted read-only; mount it without :ro", s.paths.DB)
	}
	if log, err := os.Stat(s.paths.DB + "-wal"); err == nil && log.Size() > 0 {
		return fmt.Errorf("cannot open board %s: its volume is mounted read-only, and the last changes are still in %[1]s-wal; mount it without :ro once", s.paths.DB)
	}
	return s.connectFile(ctx, immutableMode)
}

// connectFile connects to the file. The mode "rwc" creates a missing file.
func (s *Store) connectFile(ctx context.Context, mode string) (err error) {
	if s.db, err = openDatabase(s.paths.DB, mode, s.opt.BusyTimeout); err == nil {
		_, err = queryFirst[int](ctx, s.db, "SELECT count(*) FROM sqlite_master")
	}
	if err == nil {
		s.lengthFile, err = wholefile.Open(s.paths.DB, os.O_RDONLY, 0)
	}
	return s.cannotOpen(err)
}

func (s *Store) cannotOpen(err error) error {
	if err != nil {
		return fmt.Errorf("cannot open board %s: %w", s.paths.DB, err)
	}
	return nil
}

// lockInit takes the lock for checking and migrating the file, see [Paths.initLock]. It returns nil if another process, or
// another goroutine of this process, holds the lock for longer than maxInitLockWait.
func (s *Store) lockInit(ctx context.Context) *Lock {
	ctx, cancel := context.WithTimeout(ctx, s.opt.initLockTimeout)
	defer cancel()
	for {
		lock, held, err := TryLock(s.paths.initLock())
		if held {
			return lock
		}
		if err != nil || !pause.For(ctx, 50*time.Millisecond) {
			s.opt.Log.Warn("opening the board without its init lock", "path", s.paths.initLock(), "error", cmp.Or(err, errLockHeld))
			return nil
		}
	}
}

var errLockHeld = errors.New("another program holds it")

var warnNoWAL sync.Once

// enableWriteAheadLog switches the database to a write-ahead log if the file system supports that, and warns once otherwise.
func (s *Store) enableWriteAheadLog(ctx context.Context) error {
	mode, err := queryFirst[string](ctx, s.db, "PRAGMA journal_mode")
	if err != nil || strings.EqualFold(mode, "wal") {
		return s.cannotOpen(err)
	}
	mode, err = queryFirst[string](ctx, s.db, "PRAGMA journal_mode = WAL")
	if strings.EqualFold(mode, "wal") || isBusy(err) {
		return s.cannotOpen(err)
	}
	warnNoWAL.Do(func() {
		s.opt.Log.Warn("the board's file system has no write-ahead log; readers and writers wait for each other", "path", s.paths.DB, "error", err)
	})
	_, err = queryFirst[string](ctx, s.db, "PRAGMA journal_mode = DELETE")
	return s.cannotOpen(err)
}

// Close closes the file, and releases the tick lock if a dispatcher holds it.
func (s *Store) Close() error {
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	if s.lengthFile != nil {
		err = errors.Join(err, s.lengthFile.Close())
	}
	if s.tickLock != nil {
		s.tickLock.Release()
	}
	return err
}

// IsFileInPlace reports whether the open file and its write-ahead log are still the files at the board's path. If another program
// has replaced or removed one of them, other programs don't see what this store writes. The caller must then open the board
// again.
func (s *Store) IsFileInPlace() bool {
	if !isFileAt(s.lengthFile, s.paths.DB) {
		return false
	}
	for i, end := range walSuffixes {
		if log, err := os.Stat(s.paths.DB + end); s.walFiles[i] != nil && (err != nil || !os.SameFile(s.walFiles[i], log)) {
			return false
		}
	}
	return true
}

// Paths returns the paths of the board.
func (s *Store) Paths() Paths { return s.paths }

// Claimer returns the identity that this store writes into its claims, as host:pid.
func (s *Store) Claimer() string { return s.opt.Host + ":" + strconv.Itoa(s.opt.PID) }

// isClaimOfThisHost reports whether a claim was made on this host. The pid in a claim of another host means nothing here.
func (s *Store) isClaimOfThisHost(lock string) bool { return strings.HasPrefix(lock, s.opt.Host+":") }

// DataVersion returns a number that changes when another connection changes the board. Comparing two numbers is much cheaper
// than reading the tasks.
func (s *Store) DataVersion(ctx context.Context) (int64, error) {
	return queryFirst[int64](ctx, s.db, "PRAGMA data_version")
}

// Lock is a file lock that this process holds. The kernel releases it when the process dies.
type Lock struct{ file *os.File }

// TryLock locks a file without waiting. held is false if another process holds the lock. An error means that the file can't be
// locked at all.
//
// TryLock takes two locks: flock(2) and a record lock of the whole file. The two kinds don't exclude each other, and other
// writers of the board may use either.
func TryLock(path string) (l *Lock, held bool, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, false, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, false, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	}
	if err == nil {
		return &Lock{f}, true, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EACCES) {
		return nil, false, nil
	}
	return nil, false, &os.PathError{Op: "lock", Path: path, Err: err}
}

// Release releases the lock. Closing the file is not enough: a child that is being started may still have a copy of the
// descriptor, which would keep the lock. So Release unlocks the file first.
func (l *Lock) Release() {
	_ = unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK})
	_ = unix.Flock(int(l.file.Fd()), unix.LOCK_UN)
	_ = l.file.Close()
}

// maxFileSize limits the files that are read as a whole, in bytes. An agent can write these files.
const maxFileSize = 16 << 20

// isFileAt reports whether an open file is still the file at a path. Another program with write access to the directory may have
// replaced it.
func isFileAt(f *os.File, path string) bool {
	open, err := f.Stat()
	there, failed := os.Stat(path)
	return err == nil && failed == nil && os.SameFile(open, there)
}

// replaceFile replaces a file atomically. It creates the file's directory if it is missing.
func replaceFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return wholefile.Replace(path, 0o644, false, bytes.NewReader(data).WriteTo)
}
