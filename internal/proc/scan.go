package proc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/procstat"
)

// stat describes one process, with the fields of /proc/PID/stat.
type stat = procstat.Stat

// readSize is larger than any file below /proc that readFile reads.
const readSize = 4096

// scanner scans the process table in /proc. It keeps the result of the last scan, so that several questions need only one
// scan.
type scanner struct {
	dir           int       // descriptor of /proc, or -1 if /proc is not mounted
	stats         []stat    // all visible processes; empty without /proc
	scans         int       // number of scans so far
	at            time.Time // when the last scan was started
	skipped       time.Time // when RecordMembers last found a scan unnecessary
	dents         []byte    // buffer for the names in a directory
	buf           []byte    // buffer for readFile
	readAllBuffer []byte    // buffer for readAll
}

func newScanner() *scanner {
	dir, _ := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // -1 after an error; every read then fails
	return &scanner{dir: dir, dents: make([]byte, procstat.DirectorySize), buf: make([]byte, readSize)}
}

// scanWithin reads the state of all processes into stats, unless the last scan is younger than age.
func (s *scanner) scanWithin(age time.Duration) {
	if s.scans == 0 || time.Since(s.at) >= age {
		s.scan()
	}
}

// scan reads the state of all processes into stats.
func (s *scanner) scan() {
	s.scans++
	s.at = time.Now()
	s.stats = s.stats[:0]
	_ = procstat.EachIn(s.dir, s.dents, func(st stat) { s.stats = append(s.stats, st) }) // unreadable processes are left out
}

// readFile returns the beginning of a file below /proc, up to readSize bytes. It returns nil if the file can't be read. The
// next call overwrites the returned bytes.
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

// stale reports whether both the last scan and the last decision not to scan are older than maxAge. Only then does RecordMembers
// check whether a scan is needed.
func (s *scanner) stale() bool { return time.Since(s.at) >= maxAge && time.Since(s.skipped) >= maxAge }

// hasChild reports whether a process has a child. If the kernel does not report children (proc_pid_task(5)), the result is true.
func (s *scanner) hasChild(pid int) bool {
	dir := strconv.Itoa(pid) + "/task"
	threads := s.threadNames(dir)
	return len(threads) == 0 || slices.ContainsFunc(threads, func(thread string) bool {
		list, ok := s.readAll(dir + "/" + thread + "/children")
		return !ok || len(list) > 0
	})
}

// hasUnknownChild reports whether this process may have a child that it did not start. On a kernel without the file "children"
// (proc_pid_task(5)) the result is always true. When a process dies, at least the topmost of its descendants become children of
// this process. So if there is no such child, the dead process has left no process behind.
//
// hasUnknownChild reads one file for each thread in forkers, instead of one for each process of the container. The oldest thread
// adopts all orphans, and the children of a thread that ends. A process that another thread started may make siblings (clone(2),
// CLONE_PARENT), which become children of that thread. The lists are exact, because only this process reaps these children.
func (t *Table) hasUnknownChild() bool {
	for thread := range t.forkers {
		list, ok := t.procfs.readAll("self/task/" + strconv.Itoa(thread) + "/children")
		if !ok && (thread == os.Getpid() || unix.Faccessat(t.procfs.dir, "self/task/"+strconv.Itoa(thread), unix.F_OK, 0) == nil) {
			return true
		}
		if len(list) == 0 && thread != os.Getpid() { // the thread has no child that could make a sibling, or the thread has ended
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

// threadNames returns the names in a directory of threads, or nil if the directory can't be read.
func (s *scanner) threadNames(dir string) []string {
	fd, err := unix.Openat(s.dir, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	names, _ := procstat.Names(fd, s.dents) // after an error, the partial list is used
	return names
}

// maxRead is the maximum number of bytes that are read from a file below /proc. A process can make the kernel show any part of
// its memory as its environment and its command line (prctl(2), PR_SET_MM), even terabytes of zeros.
const maxRead = 2 << 20

// readAll returns the content of a file below /proc. ok is false after an error, and for more than maxRead bytes. The next
// call overwrites the returned bytes.
func (s *scanner) readAll(name string) (data []byte, ok bool) {
	fd, err := unix.Openat(s.dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false
	}
	defer unix.Close(fd)
	data = s.readAllBuffer[:0]
	for {
		data = slices.Grow(data, readSize)
		n, err := unix.Read(fd, data[len(data):cap(data)])
		if err != nil {
			return nil, false
		}
		if n == 0 {
			return data, true
		}
		if data = data[:len(data)+n]; len(data) > maxRead {
			return nil, false
		}
	}
}

// maxOrigins limits the results that RunOf remembers until the next scan.
const maxOrigins = 4096

// originOf returns the remembered result of runOfOrphan, or calls it. It returns unknownRun for an orphan that hides its run.
func (t *Table) originOf(who identity) (id uint64, known bool) {
	if id, known = t.members.origins[who]; known {
		return id, true
	}
	if id, known = t.runOfOrphan(who); id == 0 && t.hidesMark(who.pid) {
		id = unknownRun
	}
	return id, known
}

// runOfOrphan returns the run that an orphan came from, or 0 if there is none. It looks at the control group first, then at the
// mark (a resource limit), then at the tag (an environment variable). A process with the mark of a run that is gone belongs to no
// run, even if its environment names one. known is false while the environment is still being read; ask again later.
func (t *Table) runOfOrphan(who identity) (id uint64, known bool) {
	pid := who.pid
	if id := t.runByCgroup(pid); id != 0 {
		return id, true
	}
	if id := t.runByMark(pid); id != 0 {
		return id, true
	}
	if limit, ok := t.readLimit(pid); ok && t.marks.next > firstMark>>1 && limit < t.marks.base && !t.hidesMark(pid) {
		return 0, true
	}
	return t.runByTag(who)
}

// environPatience is the time for which one scan, or one call of RunOf, waits for environments. The kernel normally answers within
// microseconds.
const environPatience = 5 * time.Millisecond

// environRead is one read of the environment of a process, in its own goroutine. The kernel takes the memory lock of the process
// for it, and the process can hold this lock for a very long time.
type environRead struct {
	who identity
	env chan []byte // gets the result
}

// runByTag returns the run whose number is in TagVar in the initial environment of a process, or 0 if there is none. The kernel
// shows the environment only to a process of the same user, or with CAP_SYS_PTRACE, which root in a container lacks. So root
// opens the file with the file-system identity of the process (ptrace(2), PTRACE_MODE_READ_FSCREDS). known is false while this
// read, or the read of another environment, has not finished.
func (t *Table) runByTag(who identity) (id uint64, known bool) {
	if t.environ.who != who {
		if t.environ.env != nil && len(t.environ.env) == 0 || t.environWaited >= environPatience { // another read has not finished, or took long
			return 0, false
		}
		t.readEnviron(who)
	}
	select {
	case env := <-t.environ.env:
		t.environ = environRead{}
		return t.runOfEnviron(who.pid, env), true
	default:
		return 0, false
	}
}

// readEnviron starts to read the environment of a process, and waits for the result for the rest of environPatience.
func (t *Table) readEnviron(who identity) {
	result := make(chan []byte, 1)
	t.environ = environRead{who, result}
	began := time.Now()
	defer func() { t.environWaited += time.Since(began) }()
	ctx, cancel := context.WithTimeout(context.Background(), environPatience-t.environWaited)
	defer cancel()
	err := blocking.Within(ctx, blocking.Environ, "reading an environment", func() error {
		var env []byte // an unreadable environment has no tag
		var st unix.Stat_t
		if dir := "/proc/" + strconv.Itoa(who.pid); unix.Stat(dir, &st) == nil {
			env, _ = readAs(dir+"/environ", st.Uid, st.Gid)
		}
		result <- env
		return nil
	})
	if errors.Is(err, blocking.ErrBusy) { // the read has not begun, and will not begin
		t.environ = environRead{}
	}
}

// runOfEnviron returns the run that an environment names, if process pid may belong to it, else 0.
func (t *Table) runOfEnviron(pid int, env []byte) uint64 {
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if value, ok := bytes.CutPrefix(kv, []byte(TagVar+"=")); ok {
			if at := bytes.LastIndex(value, []byte(":"+t.nonce+":")); at >= 0 {
				id, _ := strconv.ParseUint(string(value[at+len(t.nonce)+2:]), 10, 64)
				return t.runOfUser(pid, id)
			}
		}
	}
	return 0
}

// readStat reads the state of one process, without a scan.
func (s *scanner) readStat(pid int) (stat, bool) {
	return procstat.Parse(s.readFile(strconv.Itoa(pid) + "/stat"))
}

// heldSearchPeriod is the shortest time between two searches for main processes that a tracer holds.
const heldSearchPeriod = time.Second / 2

// nextHeldByTracer returns a main process that has ended without wait(2) reporting it, or 0 if there is none. This happens while
// a tracer holds the process or one of its threads. The kernel then first reports the end to the tracer alone, until the tracer
// has waited for the process (ptrace(2)).
func (t *Table) nextHeldByTracer() (pid int) {
	if time.Since(t.heldSearched) >= heldSearchPeriod {
		t.heldSearched = time.Now()
		for pid := range t.owned {
			if st, ok := t.procfs.readStat(pid); ok && st.State == 'Z' && st.LivingThread() == 0 {
				t.heldByTracer = append(t.heldByTracer, pid)
			}
		}
	}
	for pid == 0 && len(t.heldByTracer) > 0 {
		pid, t.heldByTracer = t.heldByTracer[0], t.heldByTracer[1:]
		if shown, _ := peekAt(unix.P_PID, pid); shown != 0 || t.owned[pid] == 0 { // the tracer has released the process meanwhile, or it was reaped
			pid = 0
		}
	}
	return pid
}

// readAs reads a file with the file-system identity of another user.
func readAs(name string, asUID, asGID uint32) ([]byte, error) {
	var f *os.File
	var err error
	runAs(asUID, asGID, func() { f, err = os.Open(name) })
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRead))
}

// runAs calls a function with the file-system identity of another user (setfsuid(2)). If it can't restore the identity
// afterwards, it leaves the goroutine locked to the thread, so that the Go runtime ends the thread together with the goroutine.
func runAs(uid, gid uint32, call func()) {
	runtime.LockOSThread()
	ownUID, _ := unix.SetfsuidRetUid(-1)
	ownGID, _ := unix.SetfsgidRetGid(-1)
	_, _ = unix.SetfsgidRetGid(int(gid))
	_, _ = unix.SetfsuidRetUid(int(uid))
	call()
	_, _ = unix.SetfsuidRetUid(ownUID)
	_, _ = unix.SetfsgidRetGid(ownGID)
	if back, _ := unix.SetfsuidRetUid(-1); back == ownUID {
		runtime.UnlockOSThread()
	}
}
