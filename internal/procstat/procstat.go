// Package procstat parses /proc/PID/stat (proc_pid_stat(5)), in which the kernel describes a process, and reads a few other
// files of /proc. It allocates little memory, because PID 1 reads hundreds of these files when a service ends. It keeps no
// state and owns no goroutine.
package procstat

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// TicksPerSecond is the number of clock ticks per second in the times of /proc. It is 100 on every system on which Go runs.
const TicksPerSecond = 100

// Stat describes one process. Times are in clock ticks, see [TicksPerSecond].
type Stat struct {
	PID, Parent, Group, Session int

	State     byte   // state of the first thread: 'Z' when that thread has ended, 'T' while a signal keeps it stopped
	Threads   int    // number of threads. A first thread that has ended counts until the process is reaped.
	CPU       uint64 // processor time of the process
	ReapedCPU uint64 // processor time of the children that the process has reaped
	Start     uint64 // time of the start, since the machine was booted; PID and Start together identify a process
	Memory    uint64 // resident memory in bytes
}

// Dead reports whether all threads have ended. A process in state 'Z' with more than one thread is alive: only its first
// thread has ended.
func (s Stat) Dead() bool {
	return (s.State == 'Z' || s.State == 'X' || s.State == 'x') && s.Threads <= 1
}

// LivingThread returns the ID of a thread that has not ended, or 0. Usually this is the first thread, whose ID is the PID.
// /proc shows memory and open files of a process only through a living thread. LivingThread stops at the first one, because
// an agent may have thousands.
func (s Stat) LivingThread() (id int) {
	if strings.IndexByte("ZXx", s.State) < 0 {
		return s.PID
	}
	dir, _ := os.Open("/proc/" + strconv.Itoa(s.PID) + "/task") // after an error no thread is found
	defer dir.Close()
	names, _ := ReadNames(int(dir.Fd()), make([]byte, DirBufferSize))
	for _, name := range names {
		if t, err := ReadAt(int(dir.Fd()), name+"/stat"); err == nil && strings.IndexByte("ZXx", t.State) < 0 {
			return t.PID
		}
	}
	return 0
}

// errFormat means that a stat file has an unexpected format.
var errFormat = errors.New("it has not the fields of a process")

// Read reads the state of one process. The error wraps [fs.ErrNotExist] if there is no such process. Read never waits for a
// disk, but in PID 1 call it with package internal/blocking, like every read that an agent may delay.
func Read(pid int) (Stat, error) {
	s, err := ReadAt(unix.AT_FDCWD, "/proc/"+strconv.Itoa(pid)+"/stat")
	if err != nil {
		return s, fmt.Errorf("cannot look at process %d: %w", pid, err)
	}
	return s, nil
}

// ReadAt is Read for a path relative to the open directory dir.
func ReadAt(dir int, path string) (Stat, error) {
	fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Stat{}, err
	}
	defer unix.Close(fd)
	var buffer [1024]byte
	n, err := unix.Read(fd, buffer[:])
	if err != nil {
		return Stat{}, err
	}
	s, ok := Parse(buffer[:n])
	if !ok {
		return Stat{}, errFormat
	}
	return s, nil
}

// EachProcess calls found for every process below root, which is usually /proc. It usually begins with the newest processes,
// because these are likely to end first. It may miss processes that start or end during the call. An error may follow after
// some calls of found.
func EachProcess(root string, found func(Stat)) error {
	dir, err := os.Open(root)
	if err != nil {
		return err
	}
	defer dir.Close()
	return EachProcessIn(int(dir.Fd()), make([]byte, DirBufferSize), found)
}

// EachProcessIn is EachProcess for an open directory, which it reads from the beginning. The buffer must have [DirBufferSize]
// bytes.
func EachProcessIn(dir int, buffer []byte, found func(Stat)) error {
	names, err := ReadNames(dir, buffer)
	for _, name := range slices.Backward(names) {
		if name[0] >= '1' && name[0] <= '9' {
			if st, err := ReadAt(dir, name+"/stat"); err == nil {
				found(st)
			}
		}
	}
	return err
}

// DirBufferSize is the size in bytes of the buffer for [EachProcessIn] and [ReadNames].
const DirBufferSize = 32 << 10

// ReadNames returns the names in an open directory of /proc. buffer must have [DirBufferSize] bytes.
func ReadNames(dir int, buffer []byte) (names []string, err error) {
	if _, err := unix.Seek(dir, 0, 0); err != nil {
		return nil, err
	}
	for {
		n, err := unix.ReadDirent(dir, buffer)
		if err != nil || n <= 0 {
			return names, err
		}
		_, _, names = unix.ParseDirent(buffer[:n], -1, names)
	}
}

// Parse parses the content of a stat file. The process name in parentheses may contain any character, also a parenthesis.
func Parse(line []byte) (s Stat, ok bool) {
	open, end := bytes.IndexByte(line, ' '), bytes.LastIndexByte(line, ')')
	if open < 0 || end < 0 || end+2 > len(line) {
		return s, false
	}
	if s.PID, ok = parseDigits[int](line[:open]); !ok {
		return s, false
	}
	rest, pages := line[end+1:], uint64(0)
	for field := 3; field <= 24; field++ {
		rest = bytes.TrimLeft(rest, " \n")
		word := rest
		if i := bytes.IndexAny(rest, " \n"); i >= 0 {
			word = rest[:i]
		}
		if len(word) == 0 {
			return s, field > 22 // the kernels of some sandboxes show fewer fields
		}
		rest = rest[len(word):]
		n, _ := parseDigits[uint64](word)
		switch field {
		case 3:
			s.State = word[0]
		case 4:
			s.Parent = int(n)
		case 5:
			s.Group = int(n)
		case 6:
			s.Session = int(n)
		case 14, 15:
			s.CPU += n
		case 16, 17:
			s.ReapedCPU += n
		case 20:
			s.Threads = int(n)
		case 22:
			s.Start = n
		case 24:
			pages = n
		}
	}
	s.Memory = pages * uint64(os.Getpagesize())
	return s, true
}

// parseDigits parses decimal digits; ok is false for anything else. It does not check for overflow.
func parseDigits[T int | uint64](digits []byte) (n T, ok bool) {
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = n*10 + T(d-'0')
	}
	return n, len(digits) > 0
}

// StartedAt converts Stat.Start, which is in ticks, to a time.
func StartedAt(ticks uint64) time.Time {
	return time.Now().Add(time.Duration(ticks)*(time.Second/TicksPerSecond) - SinceBoot())
}

// SinceBoot returns CLOCK_BOOTTIME (clock_gettime(2)): the time since the machine booted. This clock can't be set, and it runs
// on while the machine sleeps.
func SinceBoot() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // ClockGettime can't fail: every Linux that runs Go has this clock
	return time.Duration(now.Nano())
}

// MachineLoad says how busy the whole machine is. A number is 0 if the kernel does not report it.
type MachineLoad struct {
	Runnable  int // threads that are running or wait for a processor
	Sockets   int // number of open sockets in this network namespace
	Terminals int // number of open pseudoterminals
}

// ReadMachineLoad returns the present demand. It reads only /proc. In PID 1 call it with package internal/blocking.
func ReadMachineLoad() (d MachineLoad) {
	load, _ := os.ReadFile("/proc/loadavg")
	network, _ := os.ReadFile("/proc/net/sockstat")
	terminals, _ := os.ReadFile("/proc/sys/kernel/pty/nr")
	_, _ = fmt.Sscanf(string(load), "%s %s %s %d/", new(string), new(string), new(string), &d.Runnable)
	_, _ = fmt.Sscanf(string(network), "sockets: used %d", &d.Sockets)
	_, _ = fmt.Sscan(string(terminals), &d.Terminals)
	return d
}

// Busy reports whether at least two threads for each processor want to run.
func (d MachineLoad) Busy(processors int) bool { return d.Runnable >= 2*processors }

// Status is the content of /proc/PID/status (proc_pid_status(5)), or "" if the process has ended.
type Status string

// ReadStatus reads the status of a process: a PID, "self" or "thread-self". It reads only /proc. In PID 1 call it with package
// internal/blocking.
func ReadStatus(process string) Status {
	text, _ := os.ReadFile("/proc/" + process + "/status")
	return Status(text)
}

// Fields returns the words of one line, such as "Uid", without its name; nil if there is no such line.
func (s Status) Fields(name string) []string {
	for line := range strings.Lines(string(s)) {
		if rest, is := strings.CutPrefix(line, name+":"); is {
			return strings.Fields(rest)
		}
	}
	return nil
}

// Number returns the first number of one line, in the given base. ok is false if there is no such line or number.
func (s Status) Number(name string, base int) (n uint64, ok bool) {
	words := s.Fields(name)
	if len(words) == 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(words[0], base, 64)
	return n, err == nil
}

// EachLock calls found for each file lock that the kernel lists (proc_locks(5)). kind is the type of lock, such as FLOCK. pid is
// the holder, or -1. file is the locked file, as MAJOR:MINOR:INODE.
func EachLock(found func(kind string, pid int, file string)) error {
	f, err := os.Open("/proc/locks")
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(io.LimitReader(f, 1<<20)) // an agent can make this list as long as it likes
	for lines.Scan() {
		w := strings.Fields(lines.Text())
		if len(w) > 5 && w[1] != "->" { // "->" marks a process that waits for the lock
			pid, _ := strconv.Atoi(w[4])
			found(w[1], pid, w[5])
		}
	}
	return lines.Err()
}
