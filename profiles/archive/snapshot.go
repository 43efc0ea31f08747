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
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/pause"
)

const (
	mostPasses = 4
	// coarse exceeds the resolution of file timestamps. A file that changed within this time before its copy may have changed
	// again without a new timestamp.
	coarse    = 50 * time.Millisecond
	mostDepth = 500      // limit for nested directories, because each one is open while its content is copied
	reserve   = 64 << 20 // bytes of the volume that a snapshot leaves free for gateways
	readFlags = os.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_NOFOLLOW
)

// note describes a file in the snapshot.
type note struct {
	stamp uint64 // stamp of the original when it was copied; 0 means copy it again
	pass  uint8  // last pass that found the original
	dir   bool
	db    bool
}

// snapshot is a copy of a home, made in passes. Each pass copies the files that have changed since the previous pass.
type snapshot struct {
	*Export

	home     *os.Root
	top      *os.File // the home as well
	files    *directory
	seed     maphash.Seed
	notes    map[uint64]note
	plain    map[string]bool // databases that SQLite could not copy
	pass     uint8
	changed  int // files that changed, appeared or disappeared since the previous pass
	room     int64
	unshared []string // names of the variables of .env that a clone leaves out
	head     Head
}

// copyHome makes passes until a pass finds no change, at most mostPasses. Then it writes the head into dir.
func (x *Export) copyHome(home *os.Root, dir, files *directory) error {
	s := snapshot{Export: x, home: home, files: files, seed: maphash.MakeSeed(), notes: make(map[uint64]note), plain: make(map[string]bool)}
	var err error
	if s.top, err = home.Open("."); err != nil {
		return err
	}
	defer s.top.Close()
	for s.pass = 1; ; s.pass++ {
		if s.pass == 2 && s.Quiet != nil {
			if err := s.Quiet(); err != nil {
				return err
			}
		} else if s.pass > 1 {
			pause.For(context.Background(), 2*coarse)
		}
		s.head = Head{
			Format: format, Profile: s.Name, Snapshot: dir.name, Created: time.Now().UTC(), Hinit: s.Version, Moment: OneMoment,
			Secrets: s.Secrets, Clone: s.Clone, LeftOut: make(map[string]Names),
		}
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(s.files.file.Fd()), &st); err != nil {
			return err
		}
		s.changed, s.room = 0, int64(st.Bavail)*st.Bsize-reserve
		if err := s.walk("."); err != nil {
			return err
		}
		for _, n := range s.notes {
			if n.pass == s.pass-1 {
				s.changed++ // the file is gone
			}
		}
		if s.changed == 0 || s.pass == mostPasses {
			break
		}
	}
	if s.Copied != nil {
		if err := s.Copied(); err != nil {
			return err
		}
	}
	return s.finish(dir)
}

func (s *snapshot) walk(dir string) error {
	f, err := s.home.OpenFile(dir, readFlags|unix.O_DIRECTORY, 0)
	if err != nil {
		return s.missing(dir, err)
	}
	defer f.Close()
	for {
		entries, err := f.ReadDir(256)
		for _, e := range entries {
			if err := s.entry(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return s.missing(dir, err)
		}
	}
}

// missing returns nil for an error that means that a file is gone, has another type now, or may not be read. It records a file
// that may not be read. An error of [os.Root] without a number means that a link out of the home has replaced a directory.
func (s *snapshot) missing(rel string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		s.head.leave(rel, "no permission to read it")
		return nil
	}
	if !errors.As(err, new(unix.Errno)) || slices.ContainsFunc([]error{fs.ErrNotExist, unix.ENOTDIR, unix.ELOOP, unix.ENXIO, unix.EINVAL}, func(e error) bool { return errors.Is(err, e) }) {
		return nil
	}
	return err
}

// entry copies a file of the home if it has changed since it was last copied.
func (s *snapshot) entry(rel string) error {
	now := time.Now()
	info, err := s.home.Lstat(rel)
	target := ""
	if err == nil && info.Mode().Type() == fs.ModeSymlink {
		target, err = s.home.Readlink(rel)
	}
	if err != nil {
		return s.missing(rel, err)
	}
	if why, skip := s.leftOut(rel, target, info); skip || s.companion(rel, info) {
		return nil
	} else if why != "" {
		s.head.leave(rel, why)
		return nil
	}
	key := maphash.String(s.seed, rel)
	was, known := s.notes[key]
	n := note{stamp: s.stamp(info), pass: s.pass, dir: info.IsDir()}
	n.db = info.Mode().IsRegular() && (was.db || was.stamp != n.stamp) && s.isDatabase(rel)
	last := changedAt(info)
	if n.db {
		n.stamp, last = s.databaseStamp(rel, n.stamp, last)
	}
	switch {
	case n.dir && was.dir, known && was.stamp == n.stamp:
	default:
		torn, err := s.copy(rel, target, n, info)
		if err != nil {
			return err
		}
		if _, err := s.files.Lstat(rel); err != nil && !n.db {
			return nil // the file is gone, or may not be read
		}
		s.changed++
		if !n.dir {
			s.head.Moved.add(rel)
		}
		if torn || s.plain[rel] {
			s.head.Torn.add(rel)
		}
		if torn && n.db {
			return nil // the next pass copies it as an ordinary file
		}
		if torn || now.Sub(last) < coarse {
			n.stamp = 0
		}
	}
	s.notes[key] = n
	switch {
	case n.dir:
		return errors.Join(s.files.Chmod(rel, info.Mode().Perm()|0o700), s.walk(rel))
	case target == "":
		return errors.Join(s.files.Chmod(rel, info.Mode().Perm()), s.files.Chtimes(rel, info.ModTime(), info.ModTime()))
	}
	return nil
}

// copy makes a new copy of a file. torn reports whether the file changed or disappeared meanwhile.
func (s *snapshot) copy(rel, target string, n note, info fs.FileInfo) (torn bool, err error) {
	if s.room -= info.Size(); s.room < 0 {
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
	case n.db:
		// SQLite can't copy a database that is damaged, locked, or on a read-only volume. The next pass copies it as an ordinary
		// file.
		torn = s.Backup(s.top, s.files.file, rel) != nil
		s.plain[rel] = torn
	default:
		torn, err = s.copyFile(rel)
	}
	return torn, err
}

func changedAt(info fs.FileInfo) time.Time {
	return time.Unix(info.Sys().(*syscall.Stat_t).Ctim.Unix())
}

// stamp returns a hash of the metadata that changes when the content changes. It is never 0.
func (s *snapshot) stamp(info fs.FileInfo) uint64 {
	st := info.Sys().(*syscall.Stat_t)
	return cmp.Or(maphash.Comparable(s.seed, [...]int64{int64(st.Dev), int64(st.Ino), st.Size, int64(st.Mode), info.ModTime().UnixNano(), changedAt(info).UnixNano()}), 1)
}

// copyFile copies a file that is not a database.
func (s *snapshot) copyFile(rel string) (torn bool, err error) {
	from, before, err := openFile(s.home, rel)
	if err != nil {
		return true, s.missing(rel, err)
	}
	defer from.Close()
	to, err := s.files.OpenFile(rel, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false, err
	}
	defer to.Close()
	if rel == ".env" && s.Clone {
		text, err := io.ReadAll(io.LimitReader(from, mostHead))
		kept, names := withoutIdentity(string(text))
		s.unshared = names
		_, writeErr := io.WriteString(to, kept)
		return false, errors.Join(err, writeErr)
	}
	if unix.IoctlFileClone(int(to.Fd()), int(from.Fd())) != nil { // few file systems support this
		if _, err := io.Copy(to, io.LimitReader(from, before.Size())); err != nil {
			return false, err
		}
	}
	after, err := from.Stat()
	return err != nil || s.stamp(before) != s.stamp(after), err
}

// finish removes copies of files that the last pass did not find, counts the other files, and writes the head into dir.
func (s *snapshot) finish(dir *directory) error {
	if s.changed > 0 {
		s.head.Moment = SomeMoments
	}
	for _, name := range s.unshared {
		s.head.leave(name+" in .env", isIdentity)
	}
	err := fs.WalkDir(s.files.FS(), ".", func(rel string, d fs.DirEntry, err error) error {
		if err != nil || rel == "." {
			return err
		}
		if s.notes[maphash.String(s.seed, rel)].pass != s.pass {
			if err = s.files.RemoveAll(rel); err == nil && d.IsDir() {
				err = fs.SkipDir
			}
			return err
		}
		info, err := d.Info()
		if err == nil && d.Type().IsRegular() {
			s.head.Bytes += info.Size()
		}
		s.head.Files++
		return err
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

// companions are the endings of the files that SQLite writes beside a database. They hold its latest changes, which SQLite's
// backup includes.
var companions = []string{"-wal", "-journal", "-shm"}

// companion reports whether a file is such a file beside a database. It is not copied by itself.
func (s *snapshot) companion(rel string, info fs.FileInfo) bool {
	i := slices.IndexFunc(companions, func(end string) bool { return strings.HasSuffix(rel, end) })
	return i >= 0 && info.Mode().IsRegular() && s.isDatabase(strings.TrimSuffix(rel, companions[i]))
}

// isDatabase reports whether a file is a database that SQLite may be able to copy.
func (s *snapshot) isDatabase(rel string) bool {
	const magic = "SQLite format 3\x00"
	f, _, err := openFile(s.home, rel)
	if err != nil || s.plain[rel] {
		return false
	}
	defer f.Close()
	var head [len(magic)]byte
	_, err = io.ReadFull(f, head[:])
	return err == nil && string(head[:]) == magic
}

// databaseStamp adds the companions of a database to its stamp and to the time of its last change.
func (s *snapshot) databaseStamp(rel string, stamp uint64, last time.Time) (uint64, time.Time) {
	for i, end := range companions[:2] {
		if info, err := s.home.Lstat(rel + end); err == nil && info.Size() > 0 {
			// without the owner, which SQLite changes by itself
			stamp += maphash.Comparable(s.seed, [...]int64{int64(i), info.Size(), info.ModTime().UnixNano()})
			if last.Before(info.ModTime()) {
				last = info.ModTime()
			}
		}
	}
	return max(stamp, 1), last
}
