package logrotate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"gopkg.in/natefinch/lumberjack.v2"

	"hinit/internal/faultinject"
	"hinit/internal/fsutil"
)

// open opens the file. It creates the file and its directories if they are missing. If another process removes the file or a
// directory during the call, open tries again, up to maxOpenTries times.
func (f *file) open() (err error) {
	for range maxOpenTries {
		if err = f.set.opts.Actor.Do(f.openOnce); !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("cannot open log file %q: %w", f.path, err)
	}
	return nil
}

// openOnce makes one attempt to open the file. The caller acts as the agent.
func (f *file) openOnce() error {
	dir, base := filepath.Split(f.path)
	dirFD, err := openDir(dir)
	if err != nil {
		return err
	}
	defer unix.Close(dirFD)
	fd, err := openLog(dirFD, base)
	if err != nil {
		return err
	}
	if err := f.useDescriptor(fd); err != nil {
		unix.Close(fd)
		return err
	}
	if !f.scanned {
		f.readArchives()
	}
	return nil
}

// openDir opens the directory dir, and creates it if it is missing. The path dir ends with a slash.
func openDir(dir string) (int, error) {
	dir = filepath.Clean(dir)
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open(dir, flags, 0)
	if errors.Is(err, unix.ENOENT) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return -1, err
		}
		fd, err = unix.Open(dir, flags, 0)
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		var st unix.Stat_t
		if unix.Lstat(dir, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			err = fsutil.ErrSymlink
		}
	}
	if err != nil {
		return -1, &os.PathError{Op: "open directory", Path: dir, Err: err}
	}
	return fd, nil
}

// openLog opens the file base in the directory dirFD for appending, and creates it if it is missing. O_NONBLOCK prevents a wait if
// an agent has put a named pipe there.
func openLog(dirFD int, base string) (int, error) {
	const flags = unix.O_RDWR | unix.O_APPEND | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	if err := faultinject.BeforeCall(faultinject.CallOpen, base); err != nil {
		return -1, err
	}
	fd, err := unix.Openat(dirFD, base, flags, 0)
	if errors.Is(err, unix.ENOENT) {
		fd, err = unix.Openat(dirFD, base, flags|unix.O_CREAT|unix.O_EXCL, 0o644)
		if err == nil {
			_ = unix.Fchmod(fd, 0o644) // The umask may have reduced the mode; some file systems can't change it, which does no harm.
		}
	}
	if errors.Is(err, unix.ELOOP) {
		err = fsutil.ErrSymlink
	}
	return fd, err
}

// useDescriptor makes fd the open log file, and connects the writer. If the last line has no newline, it adds one.
func (f *file) useDescriptor(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.New("not a regular file")
	}
	if st.Size > 0 {
		var last [1]byte
		if _, err := unix.Pread(fd, last[:], st.Size-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			if err := faultinject.RunCall(faultinject.CallWrite, f.path, func() error { _, err := unix.Write(fd, []byte{'\n'}); return err }); err != nil {
				return err
			}
			st.Size++
		}
	}
	if err := attach(f.writer, fd, &st); err != nil {
		return err
	}
	f.fd, f.dev, f.ino = fd, st.Dev, st.Ino
	f.size, f.hasPartialLine = st.Size, false
	f.markComplete(false)
	return nil
}

// readArchives reads the list of archives from the directory and removes those beyond the limits. A directory that can't be read
// counts as empty.
func (f *file) readArchives() {
	if err := f.archives.Read(); err != nil {
		f.recordError(err)
	}
	f.scanned = true
	if err := f.prune(time.Now()); err != nil {
		f.recordError(err)
	}
	f.requestPacking()
}

// wasReplaced reports whether the file's path now leads to another file, or to none. If this can't be determined, it returns
// false.
func (f *file) wasReplaced() (gone bool) {
	_ = f.set.opts.Actor.Do(func() error {
		gone = f.pathMoved()
		return nil
	})
	return gone
}

// pathMoved does the work of replaced. Its caller acts as the agent.
func (f *file) pathMoved() bool {
	var st unix.Stat_t
	if err := unix.Lstat(f.path, &st); err != nil {
		return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
	}
	return st.Dev != f.dev || st.Ino != f.ino
}

// rotate renames the file to an archive. The next write creates a new file. If the rename fails, the file grows beyond its limit,
// and a later write tries again.
func (f *file) rotate(now time.Time) {
	gone, moved := false, false
	err := f.set.opts.Actor.Do(func() error {
		gone = f.pathMoved()
		if gone {
			return nil
		}
		if err := f.archives.Add(f.path, now); err != nil {
			return err
		}
		moved = true
		return errors.Join(f.replaceOldest(), f.prune(now))
	})
	switch {
	case err != nil:
		err = fmt.Errorf("cannot rotate log file %q: %w", f.path, err)
		f.recordError(err)
		if f.rotateErr == nil {
			f.set.opts.Warn(f.service, err.Error()+"; no line is lost, but the log may grow beyond its limits")
		}
		f.rotateErr = err
		if !moved {
			f.rotateAt = now.Add(f.set.opts.period)
		}
	case f.rotateErr != nil && moved:
		f.rotateErr = nil
		f.lastErr.Store(nil)
		f.set.opts.Warn(f.service, fmt.Sprintf("log file %q is rotated again", f.path))
	}
	if gone || moved {
		f.closeFile()
		f.scanned = f.scanned && moved
		f.requestPacking()
	}
}

// newWriter returns a lumberjack writer to use with attach (decision record 6). Its size limit is 2^30 megabytes, so it never
// rotates: lumberjack rotates by path, and the agent can put a link there.
func newWriter() *lumberjack.Logger { return &lumberjack.Logger{MaxSize: 1 << 30} }

// attach makes w write to the open file fd, whose status is st. It fails without /proc.
//
// Lumberjack opens the file by its link in /proc/self/fd, which always leads to the open file, so the agent can't put another
// file there. Without /proc, lumberjack would create a file at that path.
func attach(w *lumberjack.Logger, fd int, st *unix.Stat_t) error {
	w.Filename = "/proc/self/fd/" + strconv.Itoa(fd)
	var link unix.Stat_t
	if err := unix.Stat(w.Filename, &link); err != nil || link.Dev != st.Dev || link.Ino != st.Ino {
		return errors.New("/proc is needed and not mounted")
	}
	_, err := w.Write(nil) // An empty write only opens the file.
	if err != nil {
		_ = w.Close() // Ignore the error: the error of the write is returned.
	}
	return err
}
