package logrotate

import (
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/fault"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

const (
	// packChunk is how much is compressed at a time. After each the worker rests packRest times as long, so compressing takes at
	// most a quarter of a core. A thread of low priority would hold up the runtime.
	packChunk = 64 << 10
	packRest  = 3
)

// errAbandoned says that an archive isn't compressed because it is gone, or everything ends.
var errAbandoned = errors.New("abandoned")

// compressor compresses archives, one after the other, in a goroutine that is there while there is something to do.
//
// It needs no lock against the pump that prunes: the compressed file gets its name when it is complete, then the archive is
// removed. If that was pruned meanwhile, the compressed file goes too.
type compressor struct {
	set  *Set
	stop chan struct{} // closed at the end

	mu      sync.Mutex // never held across I/O
	queue   []*file    // each once
	busy    chan struct{}
	stopped bool
}

// request asks for f's archives. It doesn't block.
func (c *compressor) request(f *file) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped || slices.Contains(c.queue, f) {
		return
	}
	c.queue = append(c.queue, f)
	if c.busy == nil {
		c.busy = make(chan struct{})
		busy := c.busy
		guard.Go("compressing archives", func() { c.run(busy) })
	}
}

// end stops the work. It doesn't wait for it.
func (c *compressor) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.stopped, c.queue = true, nil
		close(c.stop)
	}
}

// wait waits until nothing is being done any more.
func (c *compressor) wait() {
	c.mu.Lock()
	busy := c.busy
	c.mu.Unlock()
	if busy != nil {
		<-busy
	}
}

// take returns whose archives were asked for, and nothing at the end.
func (c *compressor) take() []*file {
	c.mu.Lock()
	defer c.mu.Unlock()
	batch := c.queue
	c.queue = nil
	if len(batch) == 0 {
		c.busy = nil
	}
	return batch
}

func (c *compressor) run(busy chan struct{}) {
	defer close(busy)
	w := newPacker(c.set)
	for w.pause(c.set.opts.period) {
		batch := c.take()
		if len(batch) == 0 {
			return
		}
		for _, f := range batch {
			if again := w.file(f); again {
				c.request(f)
			}
		}
	}
}

// packer is what a compressor needs while it works.
type packer struct {
	set   *Set
	actor *fsutil.Actor // takes turns
	stop  <-chan struct{}
	gzip  *gzip.Writer // made for the first archive
	buf   []byte
	most  int64 // bytes of an archive that is compressed; 0: any number
}

func newPacker(s *Set) *packer {
	return &packer{set: s, actor: s.opts.Actor.In(blocking.Logs), stop: s.compressor.stop}
}

// pause waits so long, and reports false when everything ends.
func (w *packer) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.stop:
		return false
	}
}

// file compresses the archives of f. It reports whether some of them are still too young.
func (w *packer) file(f *file) (again bool) {
	if !f.limits.Load().Compress {
		return false
	}
	// A larger one is not hinit's, or nobody could read it compressed (see ReadOptions), and all others would wait for it.
	w.most = max(2*f.limits.Load().MaxSize, defaultMaxArchive)
	dir, _ := filepath.Split(f.path)
	var names []string
	err := w.actor.Do(func() (err error) {
		names, err = archiveFiles(filepath.Clean(dir))
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	for _, name := range names {
		if strings.HasSuffix(name, packed) {
			continue
		}
		if !w.pause(0) {
			return false
		}
		// After a step back of the clock an archive seems to come from the future. That isn't young.
		if t, _ := archiveTime(name); time.Since(t).Abs() < w.set.opts.period {
			again = true
			continue
		}
		if err = w.archive(dir, name); errors.Is(err, unix.ENOENT) || errors.Is(err, errAbandoned) {
			err = nil // it was pruned meanwhile
		}
		if err != nil {
			break
		}
	}
	switch {
	case err == nil && f.unpackable.Swap(false):
		w.set.opts.Warn(f.service, fmt.Sprintf("the archives of %q are compressed again", f.path))
	case err != nil && !f.unpackable.Swap(true):
		w.set.opts.Warn(f.service, fmt.Sprintf("cannot compress the archives of %q: %v; they stay as they are for now", f.path, err))
	}
	return again && err == nil
}

// archive compresses one archive in the directory of that path.
func (w *packer) archive(dir, name string) error {
	to := name + packed + partial
	at := -1
	var in, out *os.File
	err := w.actor.Do(func() (err error) {
		if at, err = openDir(dir); err != nil {
			return err
		}
		if in, err = openBeneath(at, name, unix.O_RDONLY); err != nil {
			return err
		}
		var st unix.Stat_t
		if err = unix.Fstat(int(in.Fd()), &st); err != nil {
			return err
		}
		if w.most > 0 && st.Size > w.most {
			return errAbandoned
		}
		_ = unix.Unlinkat(at, to, 0) // what an init left that was killed
		out, err = openBeneath(at, to, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
		return err
	})
	if at >= 0 {
		defer unix.Close(at)
	}
	if in != nil {
		defer in.Close()
	}
	if err != nil {
		return err
	}
	copied := w.copy(in, out)
	return errors.Join(copied, w.actor.Do(func() error {
		if err := out.Close(); copied != nil || err != nil {
			_ = unix.Unlinkat(at, to, 0) // the next one that is compressed tries it again
			return err
		}
		return replaceArchive(at, name, to)
	}))
}

// openBeneath opens a regular file in the directory at. It neither follows a link nor waits for a FIFO.
func openBeneath(at int, name string, flags int) (*os.File, error) {
	if err := fault.Before(fault.Open, name); err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	fd, err := unix.Openat(at, name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, &os.PathError{Op: "open", Path: name, Err: errors.Join(err, errors.New("not a regular file"))}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// replaceArchive gives the complete file to its name and removes the archive that it was made of.
func replaceArchive(at int, name, to string) error {
	err := fault.Before(fault.Rename, to)
	if err == nil {
		err = unix.Renameat(at, to, at, name+packed)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: to, New: name + packed, Err: err}
	}
	fault.After(fault.Rename, to)
	dir, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil { // the name is on the disk before the archive is not; where that can't be had, it is likely
		_ = unix.Fsync(dir)
		unix.Close(dir)
	}
	if err = fault.Before(fault.Remove, name); err == nil {
		err = unix.Unlinkat(at, name, 0)
	}
	if errors.Is(err, unix.ENOENT) { // it was pruned
		_ = unix.Unlinkat(at, name+packed, 0)
		return errAbandoned
	}
	return err
}

// copy writes in, compressed, to out, which is on the disk when it returns.
func (w *packer) copy(in, out *os.File) error {
	var st identity
	err := blocking.Do(blocking.Logs, func() (err error) {
		st, err = identify(in)
		return err
	})
	if err != nil {
		return err
	}
	if w.gzip == nil {
		w.gzip, w.buf = gzip.NewWriter(out), make([]byte, packChunk)
	}
	w.gzip.Reset(out)
	w.gzip.Extra, w.gzip.ModTime = st.extra(), time.Unix(st.written, 0)
	for {
		begin := time.Now()
		err := blocking.Do(blocking.Logs, func() error { return w.chunk(in, out) })
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if !w.pause(packRest * time.Since(begin)) {
			return errAbandoned
		}
	}
	return blocking.Do(blocking.Logs, func() error {
		if err := w.gzip.Close(); err != nil {
			return err
		}
		if err := fault.Before(fault.Sync, out.Name()); err != nil {
			return err
		}
		return out.Sync()
	})
}

// chunk copies a part of in, unless that is gone.
func (w *packer) chunk(in, out *os.File) error {
	if now, err := identify(in); err != nil || now.links == 0 {
		return errors.Join(err, errAbandoned)
	}
	n, err := in.Read(w.buf)
	if err != nil {
		return err
	}
	if err := fault.Before(fault.Write, out.Name()); err != nil {
		return err
	}
	_, err = w.gzip.Write(w.buf[:n])
	return err
}

// identity says which file an archive was made of, so that a slow follower, which has that file open, doesn't read the archive
// again.
type identity struct {
	dev, ino uint64
	links    uint64
	written  int64
}

func identify(f *os.File) (identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return identity{}, err
	}
	return identity{st.Dev, st.Ino, uint64(st.Nlink), st.Mtim.Sec}, nil //nolint:unconvert // it has 32 bits on arm64
}

// extraMark begins the field of a gzip header (RFC 1952, section 2.3.1.1) that holds an identity.
var extraMark = []byte{'h', 'i', 16, 0}

func (i identity) extra() []byte {
	b := binary.LittleEndian.AppendUint64(slices.Clip(extraMark), i.dev)
	return binary.LittleEndian.AppendUint64(b, i.ino)
}

// sweep removes what is left of archives that were being compressed when an init was killed.
func sweep(dir string, names []string) {
	for _, name := range names {
		if whole, ok := strings.CutSuffix(name, packed+partial); ok && IsArchive(whole) {
			_ = unix.Unlink(dir + name) // the next start tries it again
		}
	}
}
