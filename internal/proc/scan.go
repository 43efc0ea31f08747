package proc

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// stat is one process as /proc/PID/stat tells it (proc_pid_stat(5)).
type stat struct {
	pid, ppid, group, session int
	state                     byte
	start                     uint64 // clock ticks since boot
}

func (s stat) dead() bool { return s.state == 'Z' || s.state == 'X' || s.state == 'x' }

// readSize holds any file below /proc that the scanner reads.
const readSize = 4096

// scanner reads the process table. One look is kept until forget, so that several questions in one turn of the loop cost
// one look.
type scanner struct {
	dir   int // descriptor of /proc, -1 when it is not mounted
	stats []stat
	fresh bool
	dents []byte
	buf   []byte
}

func newScanner() *scanner {
	dir, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		dir = -1
	}
	return &scanner{dir: dir}
}

func (s *scanner) forget() { s.fresh = false }

// look returns every process that this one can see. Without /proc the answer is empty.
func (s *scanner) look() []stat {
	if s.fresh || s.dir < 0 {
		return s.stats
	}
	if s.dents == nil {
		s.dents = make([]byte, 32<<10)
	}
	s.stats, s.fresh = s.stats[:0], true
	if _, err := unix.Seek(s.dir, 0, 0); err != nil {
		return nil
	}
	for {
		n, err := unix.ReadDirent(s.dir, s.dents)
		if err != nil || n <= 0 {
			break
		}
		_, _, names := unix.ParseDirent(s.dents[:n], -1, nil)
		for _, name := range names {
			if name[0] < '1' || name[0] > '9' {
				continue
			}
			if st, ok := parseStat(s.read(name + "/stat")); ok {
				s.stats = append(s.stats, st)
			}
		}
	}
	return s.stats
}

// read returns what fits into the buffer of a file below /proc, nil when it can't be read.
func (s *scanner) read(name string) []byte {
	if s.dir < 0 {
		return nil
	}
	if s.buf == nil {
		s.buf = make([]byte, readSize)
	}
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

// parseStat reads the fields that matter. The command name in parentheses may hold anything, parentheses too.
func parseStat(b []byte) (stat, bool) {
	open, end := bytes.IndexByte(b, ' '), bytes.LastIndexByte(b, ')')
	if open < 0 || end < 0 || end+2 > len(b) {
		return stat{}, false
	}
	f := bytes.Fields(b[end+1:])
	if len(f) < 20 {
		return stat{}, false
	}
	pid, err := strconv.Atoi(string(b[:open]))
	if err != nil {
		return stat{}, false
	}
	num := func(i int) int { n, _ := strconv.Atoi(string(f[i])); return n }
	start, _ := strconv.ParseUint(string(f[19]), 10, 64)
	return stat{pid: pid, state: f[0][0], ppid: num(1), group: num(2), session: num(3), start: start}, true
}

// tagged reports whether the environment a process was started with holds the tag of a run. The kernel shows it to a
// process of the same user, or to one with CAP_SYS_PTRACE, which root in a container lacks: there the thread takes the
// process's user for the file system (ptrace(2), PTRACE_MODE_READ_FSCREDS) for the moment of opening it.
func tagged(pid int, tag string, cred *Cred) bool {
	name := "/proc/" + strconv.Itoa(pid) + "/environ"
	env, err := os.ReadFile(name)
	if err != nil && cred != nil {
		env, err = readAs(name, cred)
	}
	return err == nil && (bytes.HasPrefix(env, []byte(tag+"\x00")) || bytes.Contains(env, []byte("\x00"+tag+"\x00")))
}

// stat reads one process anew.
func (s *scanner) stat(pid int) (stat, bool) {
	return parseStat(s.read(strconv.Itoa(pid) + "/stat"))
}
