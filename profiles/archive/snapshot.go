package archive

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/pause"
)

const (
	maxPasses = 4
	// maxTimestampStep is the coarsest resolution of file timestamps that is expected. If a file changed less than this before
	// its copy, it may have changed again with the same timestamp.
	maxTimestampStep = 50 * time.Millisecond
	// backupTimeout is the time limit for SQLite's copy of a database, plus backupTimePerBlock for each 512 bytes that the
	// database occupies. An agent can block SQLite, with a FIFO or with a signal to the program that runs it.
	backupTimeout      = 30 * time.Second
	backupTimePerBlock = 500 * time.Microsecond
	growthTimeout      = time.Minute // Cancel a copy that has not grown for this time; the agent controls the size of the database.
	maxDepth           = 500         // Maximum depth of directories, because each stays open while its content is copied.
	minFreeBytes       = 64 << 20    // Free bytes that snapshots leave on the volume for the gateways.
	readFlags          = os.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_NOFOLLOW
)

// copiedFile is the record of one copied file in a snapshot.
type copiedFile struct {
	stamp uint64 // Stamp of the original when it was copied; 0: it must be copied again.
	pass  uint8  // Last pass that has found the original.
	dir   bool
	db    bool
}

// snapshot is a copy of a home, which is made in passes. Each pass copies the files that have changed since the pass before.
type snapshot struct {
	*Export

	ctx             context.Context //nolint:containedctx // context of this copy only
	home            *os.Root
	homeDir         *os.File // The home as a file, for Backup.
	files           *directory
	seed            maphash.Seed
	copied          map[uint64]copiedFile
	failedDatabases map[string]bool // Databases that SQLite could not copy or must not open; they are copied as ordinary files.
	sqliteTooSlow   bool            // Whether SQLite was too slow once, so that it opens no further databases.
	pass            uint8
	changedFiles    int // Number of files that changed, appeared or disappeared in this pass.
	freeBytes       int64
	removedVars     []string // Names of the variables that a clone omits from .env.
	head            Head
}

// copyHome copies the home in passes until a pass finds no change, at most maxPasses times. It writes the head into dir, the
// directory of the snapshot, and the copies into files.
func (x *Export) copyHome(ctx context.Context, home *os.Root, dir, files *directory) error {
	top, err := home.Open(".")
	if err != nil {
		return err
	}
	defer top.Close()
	s := snapshot{Export: x, ctx: ctx, home: home, homeDir: top, files: files, seed: maphash.MakeSeed(), copied: make(map[uint64]copiedFile), failedDatabases: make(map[string]bool)}
	for s.pass = 1; ; s.pass++ {
		if s.pass == 2 && s.StopGateway != nil {
			if err := s.StopGateway(); err != nil {
				return err
			}
		} else if s.pass > 1 {
			pause.For(ctx, 2*maxTimestampStep)
		}
		s.head = Head{
			Format: formatVersion, Profile: s.Name, Snapshot: dir.name, Created: time.Now().UTC(), Hinit: s.Version, Moment: Consistent,
			Secrets: s.IncludeSecrets, Clone: s.ForClone, LeftOut: make(map[string]NameList),
		}
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(s.files.file.Fd()), &st); err != nil {
			return err
		}
		s.changedFiles, s.freeBytes = 0, int64(st.Bavail)*int64(st.Bsize)-minFreeBytes //nolint:unconvert // Bavail is 32 bits wide on some machines
		if err := s.walk("."); err != nil {
			return err
		}
		for _, n := range s.copied {
			if n.pass == s.pass-1 {
				s.changedFiles++ // A removed file counts as changed.
			}
		}
		if s.changedFiles == 0 || s.pass == maxPasses {
			break
		}
	}
	if s.RestartGateway != nil {
		if err := s.RestartGateway(); err != nil {
			return err
		}
	}
	return s.finish(dir)
}

func (s *snapshot) walk(dir string) error {
	var failed error
	err := eachEntry(s.home, dir, func(rel string) error {
		failed = s.copyEntry(rel)
		return failed
	})
	if err == nil || failed != nil {
		return failed
	}
	return s.ignoreIfGone(dir, err)
}

// ignoreIfGone returns nil if the export can continue after err, an error about the file rel. This is so if the file is gone, has
// another type now, or may not be read. The head lists files that may not be read, or on which a program has a lease (fcntl(2)). If
// an error of [os.Root] has no error number, a directory was replaced by a link out of the home; then the file also counts as gone.
func (s *snapshot) ignoreIfGone(rel string, err error) error {
	switch {
	case errors.Is(err, unix.EAGAIN):
		s.head.recordLeftOut(rel, "a program has a lease on it")
	case errors.Is(err, fs.ErrPermission):
		s.head.recordLeftOut(rel, "no permission to read it")
	case errors.As(err, new(unix.Errno)) && !slices.ContainsFunc([]error{fs.ErrNotExist, unix.ENOTDIR, unix.ELOOP, unix.ENXIO, unix.EINVAL}, func(e error) bool { return errors.Is(err, e) }):
		return err
	}
	return nil
}

// copyEntry copies the file rel of the home if it has changed since the last pass.
func (s *snapshot) copyEntry(rel string) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	now := time.Now()
	info, target, err := lstat(s.home, rel)
	if err != nil {
		return s.ignoreIfGone(rel, err)
	}
	if why, skip := s.whyLeftOut(rel, target, info); skip || s.isCompanion(rel, info) {
		return nil
	} else if why != "" {
		s.head.recordLeftOut(rel, why)
		return nil
	}
	key := maphash.String(s.seed, rel)
	was, known := s.copied[key]
	n := copiedFile{stamp: s.stamp(info), pass: s.pass, dir: info.IsDir()}
	n.db = info.Mode().IsRegular() && (was.db || was.stamp != n.stamp) && s.isDatabase(rel)
	last := changedAt(info)
	if n.db {
		n.stamp, last = s.databaseStamp(rel, n.stamp, last)
	}
	if same := n.dir && was.dir || known && was.stamp == n.stamp; !same {
		torn, err := s.replaceCopy(rel, target, n, info)
		if err != nil {
			return err
		}
		if _, err := s.files.Lstat(rel); err != nil {
			return nil // The file is gone, or this user may not read it.
		}
		s.changedFiles++
		if !n.dir {
			s.head.Moved.add(rel)
		}
		if torn || s.failedDatabases[rel] {
			s.head.Torn.add(rel)
		}
		if torn || now.Sub(last) < maxTimestampStep {
			n.stamp = 0
		}
	}
	s.copied[key] = n
	switch {
	case n.dir:
		return errors.Join(s.files.Chmod(rel, info.Mode().Perm()|0o700), s.walk(rel))
	case target == "":
		return errors.Join(s.files.Chmod(rel, info.Mode().Perm()), s.files.Chtimes(rel, info.ModTime(), info.ModTime()))
	}
	return nil
}

// replaceCopy replaces the copy of the file rel in the snapshot. torn reports whether the copy may be a mixture of old and new
// content, because the original changed or disappeared meanwhile, or SQLite failed to copy it.
func (s *snapshot) replaceCopy(rel, target string, n copiedFile, info fs.FileInfo) (torn bool, err error) {
	s.freeBytes -= info.Size()
	if s.freeBytes < 0 {
		return false, fmt.Errorf("the copy of %s has no room: free some on the volume, or name another directory with --scratch", rel)
	}
	if err := s.files.RemoveAll(rel); err != nil {
		return false, err
	}
	switch {
	case n.dir:
		return false, s.files.Mkdir(rel, 0o700)
	case target != "":
		err = s.files.Symlink(target, rel)
	case n.db && s.backup(rel, info) == nil:
	case n.db:
		// SQLite can't copy a database that is damaged, locked, or on a read-only volume. Such a database is copied as an
		// ordinary file.
		s.failedDatabases[rel] = true
		if err = s.files.RemoveAll(rel); err == nil {
			_, err = s.copyFile(rel)
		}
		torn = true
	default:
		torn, err = s.copyFile(rel)
	}
	return torn, err
}

// backup lets SQLite copy the database rel. It cancels the copy after a time that depends on the size, or if the copy no longer
// grows.
func (s *snapshot) backup(rel string, info fs.FileInfo) error {
	blocks := info.Sys().(*syscall.Stat_t).Blocks
	ctx, cancel := context.WithTimeout(s.ctx, backupTimeout+time.Duration(blocks)*backupTimePerBlock)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Backup(ctx, s.homeDir, s.files.file, rel) }()
	for size := int64(0); ; {
		select {
		case err := <-done:
			s.sqliteTooSlow = s.sqliteTooSlow || err != nil && ctx.Err() != nil
			return err
		case <-time.After(growthTimeout):
			if info, err := s.files.Lstat(rel); err == nil && info.Size() > size {
				size = info.Size()
			} else {
				cancel()
			}
		}
	}
}

func changedAt(info fs.FileInfo) time.Time {
	return time.Unix(info.Sys().(*syscall.Stat_t).Ctim.Unix())
}

// stamp returns a hash of a file's metadata, which changes when the file's content changes. The hash is never 0.
func (s *snapshot) stamp(info fs.FileInfo) uint64 {
	st := info.Sys().(*syscall.Stat_t)
	return cmp.Or(maphash.Comparable(s.seed, [...]int64{int64(st.Dev), int64(st.Ino), st.Size, int64(st.Mode), info.ModTime().UnixNano(), changedAt(info).UnixNano()}), 1)
}

// copyFile copies the file rel itself, without SQLite. For a clone, it leaves the identities out of .env.
func (s *snapshot) copyFile(rel string) (torn bool, err error) {
	from, before, err := openFile(s.home, rel)
	if err != nil {
		return true, s.ignoreIfGone(rel, err)
	}
	defer from.Close()
	to, err := s.files.OpenFile(rel, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false, err
	}
	defer to.Close()
	if rel == ".env" && s.ForClone {
		text, err := io.ReadAll(io.LimitReader(from, maxHead))
		kept, names := withoutIdentity(string(text))
		s.removedVars = names
		_, writeErr := io.WriteString(to, kept)
		return false, errors.Join(err, writeErr)
	}
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) != nil { // The file system can't share blocks between files, so copy the content.
		if _, err := io.Copy(to, io.LimitReader(from, before.Size())); err != nil {
			return false, err
		}
	}
	after, err := from.Stat()
	return err != nil || s.stamp(before) != s.stamp(after), err
}

// finish completes the snapshot after the last pass. It removes copies whose originals this pass has not found, counts the files,
// and writes the head into dir.
func (s *snapshot) finish(dir *directory) error {
	if s.changedFiles > 0 {
		s.head.Moment = Inconsistent
	}
	for _, name := range s.removedVars {
		s.head.recordLeftOut(name+" in .env", reasonIdentity)
	}
	err := s.eachFile(s.ctx, s.files.Root, ".", nil, func(rel, _ string, info fs.FileInfo) error {
		if s.copied[maphash.String(s.seed, rel)].pass != s.pass {
			return cmp.Or(s.files.RemoveAll(rel), fs.SkipDir)
		}
		s.head.count(info)
		return nil
	})
	data, jsonErr := json.Marshal(s.head)
	if err = errors.Join(err, jsonErr); err != nil {
		return err
	}
	f, err := dir.OpenFile(headName, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_, err = f.Write(data)
		err = errors.Join(err, f.Close())
	}
	return err
}

// companionSuffixes are the suffixes of files that SQLite keeps beside a database. They contain the latest changes, which are part
// of SQLite's own copy.
var companionSuffixes = []string{"-wal", "-journal", "-shm"}

// isCompanion reports whether rel is a companion of an existing database. Such a file is not copied, because SQLite's copy of the
// database includes its content.
func (s *snapshot) isCompanion(rel string, info fs.FileInfo) bool {
	i := slices.IndexFunc(companionSuffixes, func(end string) bool { return strings.HasSuffix(rel, end) })
	return i >= 0 && info.Mode().IsRegular() && s.isDatabase(strings.TrimSuffix(rel, companionSuffixes[i]))
}

// isDatabase reports whether rel is a database that SQLite may open. It returns false if SQLite has failed to copy this database,
// or was too slow with any database. It also returns false if a companion is not a regular file, because SQLite would block on a
// FIFO.
func (s *snapshot) isDatabase(rel string) bool {
	const magic = "SQLite format 3\x00"
	if s.failedDatabases[rel] {
		return false
	}
	f, _, err := openFile(s.home, rel)
	if err != nil {
		return false
	}
	defer f.Close()
	var head [len(magic)]byte
	if _, err = io.ReadFull(f, head[:]); err != nil || string(head[:]) != magic {
		return false
	}
	if s.sqliteTooSlow || slices.ContainsFunc(companionSuffixes, func(end string) bool {
		info, err := s.home.Lstat(rel + end)
		return err == nil && !info.Mode().IsRegular()
	}) {
		s.failedDatabases[rel] = true
	}
	return !s.failedDatabases[rel]
}

// databaseStamp returns the stamp and the modification time of the database rel together with its companions. stamp and last are
// the values of the database file alone.
func (s *snapshot) databaseStamp(rel string, stamp uint64, last time.Time) (uint64, time.Time) {
	for i, end := range companionSuffixes[:2] {
		if info, err := s.home.Lstat(rel + end); err == nil && info.Size() > 0 {
			// SQLite itself changes the owner of this file, so add only size and time.
			stamp += maphash.Comparable(s.seed, [...]int64{int64(i), info.Size(), info.ModTime().UnixNano()})
			if last.Before(info.ModTime()) {
				last = info.ModTime()
			}
		}
	}
	return max(stamp, 1), last
}
