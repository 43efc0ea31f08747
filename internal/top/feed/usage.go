package feed

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// measureEvery is the shortest time between two measurements.
	measureEvery = time.Second
	// measureShare is how many times as long as one takes lies between two: they use a hundredth of a processor at most.
	measureShare = 100
	// userHZ is the unit of time in /proc (proc_pid_stat(5)), which is this on every system that runs Go.
	userHZ = 100
)

// Usage is what the processes of a service use.
type Usage struct {
	CPU       float64
	Memory    uint64
	Processes int
}

// procOf finds the /proc that shows the processes of the hinit behind a socket, by the numbers that hinit has for them. It is "" when
// this process may not see them: hinit is in another PID namespace, on the other side of a relay, or another user's.
func procOf(socket string, pid int) string {
	dialer := net.Dialer{Timeout: measureEvery}
	conn, err := dialer.DialContext(context.Background(), "unix", socket)
	if err != nil {
		return ""
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return ""
	}
	var cred *syscall.Ucred
	if failed := raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); failed != nil || err != nil || cred.Pid == 0 {
		return ""
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", cred.Pid))
	if err != nil { // another user's: the number itself is all there is to go by
		if int(cred.Pid) == pid {
			return "/proc"
		}
		return ""
	}
	for _, root := range []string{"/proc", fmt.Sprintf("/proc/%d/root/proc", cred.Pid)} {
		if seen, err := os.Readlink(fmt.Sprintf("%s/%d/ns/pid", root, pid)); err == nil && seen == theirs {
			return root
		}
	}
	return ""
}

// process is what a measurement reads of a process.
type process struct {
	parent, session int
	cpu             uint64 // ticks, of itself
	start           uint64
	pages           uint64
}

// meter measures, and remembers for the next time.
type meter struct {
	root        string
	at          time.Time
	before, now map[int]process
	buffer      [1024]byte
}

// read reads all processes.
func (m *meter) read() error {
	dir, err := os.Open(m.root)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	m.before, m.now = m.now, m.before
	if m.now == nil {
		m.now = make(map[int]process, len(names))
	}
	clear(m.now)
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		fd, err := unix.Openat(int(dir.Fd()), name+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // it has ended
		}
		n, err := unix.Read(fd, m.buffer[:])
		_ = unix.Close(fd)
		if err != nil {
			continue
		}
		if p, is := parseStat(m.buffer[:n]); is {
			m.now[pid] = p
		}
	}
	return nil
}

// parseStat reads a line of proc_pid_stat(5).
func parseStat(line []byte) (p process, is bool) {
	end := bytes.LastIndexByte(line, ')') // the name before it can hold anything
	if end < 0 {
		return p, false
	}
	field := 2 // that ended
	at := end + 1
	number := func(until int) uint64 {
		for field < until {
			for at < len(line) && line[at] == ' ' {
				at++
			}
			if field++; field == until {
				break
			}
			for at < len(line) && line[at] != ' ' {
				at++
			}
		}
		var n uint64
		for at < len(line) && line[at] >= '0' && line[at] <= '9' {
			n = n*10 + uint64(line[at]-'0')
			at++
		}
		return n
	}
	p.parent = int(number(4))
	p.session = int(number(6))
	p.cpu = number(14) + number(15)
	p.start = number(22)
	p.pages = number(24)
	return p, at < len(line)
}

// usage sums up by service. mains are the main processes of the services.
func (m *meter) usage(mains map[int]string, passed time.Duration) map[string]Usage {
	out := make(map[string]Usage, len(mains))
	owner := make(map[int]string, len(m.now))
	for pid, p := range m.now {
		name := m.ownerOf(pid, mains, owner)
		if name == "" {
			continue
		}
		u := out[name]
		u.Processes++
		u.Memory += p.pages * uint64(os.Getpagesize())
		used := p.cpu
		if old, is := m.before[pid]; is && old.start == p.start {
			used -= min(old.cpu, used)
		} else if m.at.IsZero() {
			used = 0 // it is not known since when
		}
		if passed > 0 {
			u.CPU += float64(used) / userHZ / passed.Seconds()
		}
		out[name] = u
	}
	return out
}

// ownerOf finds the service of a process: by its ancestors, else by its session, which an orphan keeps.
func (m *meter) ownerOf(pid int, mains, known map[int]string) string {
	if name, is := mains[pid]; is {
		return name
	}
	if name, is := known[pid]; is {
		return name
	}
	p, is := m.now[pid]
	if !is || pid <= 1 {
		return ""
	}
	known[pid] = "" // a ring of parents can be seen while processes come and go
	name := m.ownerOf(p.parent, mains, known)
	if name == "" {
		name = mains[p.session]
	}
	known[pid] = name
	return name
}

// mains are the main processes of all services.
func (f *Feed) mains() (pids map[int]string, init int) {
	st := f.status.Load()
	if st == nil {
		return nil, 0
	}
	pids = make(map[int]string, len(st.Services))
	for i := range st.Services {
		if s := &st.Services[i]; s.PID > 0 {
			pids[s.PID] = s.Name
		}
	}
	return pids, st.Init.PID
}

// proc is the /proc of the services, "" when it is not to be seen.
func (f *Feed) proc() string {
	if _, pid := f.mains(); pid > 0 {
		return procOf(f.client.Load().Socket(), pid)
	}
	return ""
}

// Usage measures what the services use, again and again: once a second where that costs little, else so much less often that it takes
// a hundredth of a processor. used gets nil where it can't be measured.
func (f *Feed) Usage(ctx context.Context, used func(map[string]Usage)) {
	runtime.LockOSThread() // whose time is measured
	defer runtime.UnlockOSThread()
	m := new(meter)
	for ctx.Err() == nil {
		begin := threadTime()
		if m.root == "" {
			m.root = f.proc()
		}
		if pids, _ := f.mains(); m.root != "" && pids != nil {
			now := time.Now()
			if err := m.read(); err != nil {
				*m = meter{}
				used(nil)
			} else {
				passed := time.Duration(0)
				if !m.at.IsZero() {
					passed = now.Sub(m.at)
				}
				used(m.usage(pids, passed))
				m.at = now
			}
		} else if pids != nil {
			used(nil)
		}
		pause := max(measureEvery, measureShare*(threadTime()-begin))
		if f.status.Load() == nil {
			pause = retry
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// threadTime is the processor time of this thread.
func threadTime() time.Duration {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now) != nil {
		return 0
	}
	return time.Duration(now.Nano())
}
