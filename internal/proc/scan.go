package proc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/procstat"
)

// stat describes one process, as /proc/PID/stat does.
type stat = procstat.Stat

// procFileBufferSize is the size of the buffer of readFile, enough for all its files.
const procFileBufferSize = 4096

// scanner reads the process table in /proc. It stores the last scan, so that several questions need only one.
type scanner struct {
	dir           int // descriptor of /proc, or -1 if /proc is not mounted
	stats         []stat
	scanCount     int // number of scans so far, by which membership detects that its results are out of date
	scannedAt     time.Time
	scanSkippedAt time.Time // when RecordMembers last decided that no scan is necessary
	dirBuffer     []byte
	buf           []byte
	readAllBuffer []byte
}

func newScanner() *scanner {
	// after an error dir is -1, so that every read fails
	dir, _ := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return &scanner{dir: dir, dirBuffer: make([]byte, procstat.DirBufferSize), buf: make([]byte, procFileBufferSize)}
}

// scanWithin scans /proc, unless the last scan is younger than age.
func (s *scanner) scanWithin(age time.Duration) {
	if s.scanCount == 0 || time.Since(s.scannedAt) >= age {
		s.scan()
	}
}

// scan reads the state of all processes into s.stats.
func (s *scanner) scan() {
	s.scanCount++
	s.scannedAt = time.Now()
	s.stats = s.stats[:0]
	_ = procstat.EachProcessIn(s.dir, s.dirBuffer, func(st stat) { s.stats = append(s.stats, st) })
}

// readFile returns up to procFileBufferSize bytes of a file below /proc, or nil if the file can't be read. The next call
// overwrites the bytes.
func (s *scanner) readFile(name string) []byte {
	fd, err := unix.Openat(s.dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, s.buf)
	if err != nil {
		return nil
	}
	return s.buf[:n]
}

// isScanDue reports whether RecordMembers must scan: maxScanAge has passed since its last scan, and since it last found a scan
// unnecessary.
func (s *scanner) isScanDue() bool {
	return time.Since(s.scannedAt) >= maxScanAge && time.Since(s.scanSkippedAt) >= maxScanAge
}

// hasChild reports whether a process may have a child. It is true if the kernel does not list children (proc_pid_task(5)).
func (s *scanner) hasChild(pid int) bool {
	dir := strconv.Itoa(pid) + "/task"
	threads := s.threadNames(dir)
	return len(threads) == 0 || slices.ContainsFunc(threads, func(thread string) bool {
		list, ok := s.readAll(dir + "/" + thread + "/children")
		return !ok || len(list) > 0
	})
}

// hasUnknownChild reports whether hinit may have a child that it did not start. When a process dies, its children become
// children of hinit. So if the result is false, a dead process has left no descendants, and no scan is needed. If the kernel
// has no file "children" (proc_pid_task(5)), the result is always true.
//
// It reads one file for each thread in forkers, and not one for each process of the container. Orphans, and children of a
// thread that ends, go to the oldest thread. A child of another thread may make siblings (clone(2), CLONE_PARENT), which become
// children of that thread. The lists are exact, because only hinit reaps these children.
func (t *Table) hasUnknownChild() bool {
	for thread := range t.forkers {
		list, ok := t.procfs.readAll("self/task/" + strconv.Itoa(thread) + "/children")
		if !ok && (thread == os.Getpid() || unix.Faccessat(t.procfs.dir, "self/task/"+strconv.Itoa(thread), unix.F_OK, 0) == nil) {
			return true
		}
		if len(list) == 0 && thread != os.Getpid() { // the thread has ended, or has no child that could create siblings of itself
			delete(t.forkers, thread)
			continue
		}
		t.procfs.readAllBuffer = list[:0]
		for word := range bytes.FieldsSeq(list) {
			pid, err := strconv.Atoi(string(word))
			if _, own := t.owned[pid]; err != nil || !own {
				return true
			}
		}
	}
	return false
}

func (s *scanner) threadNames(dir string) []string {
	fd, err := unix.Openat(s.dir, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	names, _ := procstat.ReadNames(fd, s.dirBuffer) // a partial list is good enough after an error
	return names
}

// maxReadAll is the maximum size of a file below /proc. A process can make the kernel show any part of its memory as its
// environment or command line (prctl(2), PR_SET_MM), even terabytes of zeros.
const maxReadAll = 2 << 20

// readAll returns the content of a file below /proc. ok is false if it can't be read, or is longer than maxReadAll. The next
// call overwrites the bytes.
func (s *scanner) readAll(name string) (data []byte, ok bool) {
	fd, err := unix.Openat(s.dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false
	}
	defer unix.Close(fd)
	data = s.readAllBuffer[:0]
	for {
		data = slices.Grow(data, procFileBufferSize)
		n, err := unix.Read(fd, data[len(data):cap(data)])
		if err != nil {
			return nil, false
		}
		if n == 0 {
			return data, true
		}
		data = data[:len(data)+n]
		if len(data) > maxReadAll {
			return nil, false
		}
	}
}

// maxCachedOrphanRuns is how many results RunOf remembers until the next scan.
const maxCachedOrphanRuns = 4096

// runOfOrphanCached calls runOfOrphan once for each orphan, and stores the result. For an orphan that hides its mark it returns
// unknownRun.
func (t *Table) runOfOrphanCached(orphan identity) (id uint64, known bool) {
	if id, known = t.members.orphanRuns[orphan]; known {
		return id, true
	}
	id, known = t.runOfOrphan(orphan)
	if id == 0 && t.hidesMark(orphan.pid) {
		id = unknownRun
	}
	return id, known
}

// runOfOrphan returns the run from which an orphan came, or 0. The control group decides first, then the mark, then the tag
// in the environment. A mark of a run that no longer exists means no run, whatever the environment says. known is false while
// the environment is still being read; then ask again later.
func (t *Table) runOfOrphan(orphan identity) (id uint64, known bool) {
	pid := orphan.pid
	if id := t.runByCgroup(pid); id != 0 {
		return id, true
	}
	if id := t.runByMark(pid); id != 0 {
		return id, true
	}
	if limit, ok := t.readLimit(pid); ok && t.marker.ownLimit > firstMark>>1 && limit < t.marker.initialLimit && !t.hidesMark(pid) {
		return 0, true
	}
	return t.runByTag(orphan)
}

// environTimeout is the total time for which one scan or one call of RunOf waits for environments. The kernel normally answers
// within microseconds.
const environTimeout = 5 * time.Millisecond

// environRead is one read of the environment of a process, in another goroutine. The read needs the memory lock of the process,
// and a process can hold the lock for a very long time.
type environRead struct {
	process identity
	env     chan []byte // channel that gets the environment, once
}

// runByTag returns the run that the variable TagVar names in the initial environment of a process, or 0. The kernel shows the
// environment to processes of the same user or with CAP_SYS_PTRACE, which root in a container lacks. So root reads it with
// the file-system identity of the process (ptrace(2), PTRACE_MODE_READ_FSCREDS). known is false while this read, or the read
// of another environment, has not finished.
func (t *Table) runByTag(process identity) (id uint64, known bool) {
	if t.environ.process != process {
		// another read has not finished, or this scan has waited too long
		if t.environ.env != nil && len(t.environ.env) == 0 || t.environWaitTime >= environTimeout {
			return 0, false
		}
		t.readEnviron(process)
	}
	select {
	case env := <-t.environ.env:
		t.environ = environRead{}
		return t.runOfEnviron(process.pid, env), true
	default:
		return 0, false
	}
}

// readEnviron begins to read the environment of a process. It waits for the result until environTimeout is used up.
func (t *Table) readEnviron(process identity) {
	result := make(chan []byte, 1)
	t.environ = environRead{process, result}
	began := time.Now()
	defer func() { t.environWaitTime += time.Since(began) }()
	ctx, cancel := context.WithTimeout(context.Background(), environTimeout-t.environWaitTime)
	defer cancel()
	err := blocking.Within(ctx, blocking.Environ, "reading an environment", func() error {
		var env []byte
		var st unix.Stat_t
		if dir := "/proc/" + strconv.Itoa(process.pid); unix.Stat(dir, &st) == nil {
			env, _ = readFileAs(dir+"/environ", st.Uid, st.Gid)
		}
		result <- env
		return nil
	})
	if errors.Is(err, blocking.ErrBusy) { // all threads for blocking calls are in use, so this read never begins
		t.environ = environRead{}
	}
}

// runOfEnviron returns the run that the tag in an environment names, or 0 if there is no valid tag.
func (t *Table) runOfEnviron(pid int, env []byte) uint64 {
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if value, ok := bytes.CutPrefix(kv, []byte(TagVar+"=")); ok {
			if at := bytes.LastIndex(value, []byte(":"+t.tagNonce+":")); at >= 0 {
				id, _ := strconv.ParseUint(string(value[at+len(t.tagNonce)+2:]), 10, 64)
				return t.verifiedRun(pid, id)
			}
		}
	}
	return 0
}

func (s *scanner) readStat(pid int) (stat, bool) {
	return procstat.Parse(s.readFile(strconv.Itoa(pid) + "/stat"))
}

// tracerSearchInterval is the minimum time between two searches for dead main processes that a tracer holds. maxTracerSearch is
// the number of processes per call. With 500 services a whole search takes 5 ms, and each status and each exit would wait.
const tracerSearchInterval, maxTracerSearch = time.Second / 2, 50

// CheckForTracer makes the next Reap examine these processes: they may be dead main processes that a tracer holds (see
// nextHeldByTracer).
func (t *Table) CheckForTracer(pids ...int) { t.heldByTracer = append(t.heldByTracer, pids...) }

// nextHeldByTracer returns a dead main process whose end wait(2) does not report, or 0. That happens while a tracer such as
// strace holds the process or one of its threads. The kernel reports the end first to the tracer, and to hinit only when the
// tracer has waited for it (ptrace(2)).
func (t *Table) nextHeldByTracer() (pid int) {
	if len(t.tracerUnsearched) == 0 && time.Since(t.tracerSearchedAt) >= tracerSearchInterval {
		t.tracerSearchedAt, t.tracerUnsearched = time.Now(), slices.Collect(maps.Keys(t.owned))
	}
	n := min(maxTracerSearch, len(t.tracerUnsearched))
	t.CheckForTracer(t.tracerUnsearched[:n]...)
	t.tracerUnsearched = t.tracerUnsearched[n:]
	for pid == 0 && len(t.heldByTracer) > 0 {
		pid, t.heldByTracer = t.heldByTracer[0], t.heldByTracer[1:]
		st, _ := t.procfs.readStat(pid)
		// the tracer may have released the process, so that hinit has reaped it
		if shown, _ := findExitedChildOf(unix.P_PID, pid); shown != 0 || t.owned[pid] == 0 || st.State != 'Z' || st.LivingThread() != 0 {
			pid = 0
		}
	}
	return pid
}

// readFileAs reads a file with the file-system identity of another user, and so with that user's permissions.
func readFileAs(name string, uid, gid uint32) (data []byte, err error) {
	err = fsutil.NewActor(fsutil.Identity{UID: uid, GID: gid}).Do(func() error {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		data, err = io.ReadAll(io.LimitReader(f, maxReadAll))
		return err
	})
	return data, err
}
