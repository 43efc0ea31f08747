// Package procstat reads /proc/PID/stat (proc_pid_stat(5)): what the kernel says of one process. It is the only reader of that file. It
// leaves little garbage, for PID 1 reads hundreds of them when a service ends. It keeps nothing and owns no goroutine.
package procstat

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Hertz is the unit of times in /proc, in a second: this on every system that runs Go.
const Hertz = 100

// Stat is one process. Times are in ticks of [Hertz].
type Stat struct {
	PID, Parent, Group, Session int

	State   byte   // of its first thread: 'Z' when that has ended, 'T' when a signal has stopped it
	Threads int    // the first one counts until it is reaped, although it has ended
	CPU     uint64 // processor time
	Waited  uint64 // processor time of the children it has waited for
	Start   uint64 // since the boot of the machine; with the number it names the process, and stays when it is a zombie
	Memory  uint64 // resident, in bytes
}

// Dead reports whether all threads have ended. When only the first one has, the process is shown as a zombie and lives on.
func (s Stat) Dead() bool {
	return (s.State == 'Z' || s.State == 'X' || s.State == 'x') && s.Threads <= 1
}

// errFormat says that the kernel wrote something else than it should.
var errFormat = errors.New("it has not the fields of a process")

// Read returns the process of a number. The error wraps [fs.ErrNotExist] when there is none. It touches only /proc: it does not block, but
// in PID 1 it takes a turn (internal/blocking).
func Read(pid int) (Stat, error) {
	s, err := ReadAt(unix.AT_FDCWD, "/proc/"+strconv.Itoa(pid)+"/stat")
	if err != nil {
		return s, fmt.Errorf("cannot look at process %d: %w", pid, err)
	}
	return s, nil
}

// ReadAt is Read for a path below an open directory.
func ReadAt(dir int, path string) (Stat, error) {
	fd, err := unix.Openat(dir, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Stat{}, err
	}
	defer unix.Close(fd)
	var buffer [1024]byte // a line has fewer than 400 bytes
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

// Each calls found for every process below root, usually /proc. It may miss a process that begins or ends meanwhile. An error may come after
// some of them.
func Each(root string, found func(Stat)) error {
	dir, err := os.Open(root)
	if err != nil {
		return err
	}
	defer dir.Close()
	return EachIn(int(dir.Fd()), make([]byte, DirectorySize), found)
}

// EachIn is Each for an open directory, which it reads from its beginning. buffer has [DirectorySize] bytes.
func EachIn(dir int, buffer []byte, found func(Stat)) error {
	names, err := Names(dir, buffer)
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		if st, err := ReadAt(dir, name+"/stat"); err == nil {
			found(st)
		}
	}
	return err
}

// DirectorySize is the size of a buffer for the names in a directory of /proc.
const DirectorySize = 32 << 10

// Names returns the names in an open directory of /proc. buffer is as in [EachIn].
func Names(dir int, buffer []byte) (names []string, err error) {
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

// Parse reads a line. The name in parentheses may hold anything, parentheses too.
func Parse(line []byte) (s Stat, ok bool) {
	open, end := bytes.IndexByte(line, ' '), bytes.LastIndexByte(line, ')')
	if open < 0 || end < 0 || end+2 > len(line) {
		return s, false
	}
	if s.PID, ok = number[int](line[:open]); !ok {
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
			return s, field > 22 // some kernels in sandboxes end there
		}
		rest = rest[len(word):]
		n, _ := number[uint64](word)
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
			s.Waited += n
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

// number reads decimal digits.
func number[T int | uint64](digits []byte) (n T, ok bool) {
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = n*10 + T(d-'0')
	}
	return n, len(digits) > 0
}

// StartedAt returns the time of a [Stat.Start].
func StartedAt(ticks uint64) time.Time {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // it exists on every Linux that runs Go
	return time.Now().Add(time.Duration(ticks)*(time.Second/Hertz) - time.Duration(now.Nano()))
}
