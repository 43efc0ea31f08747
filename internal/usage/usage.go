// Package usage is what /proc says of the processes of services: who belongs to which service, and what it uses. It reads and sums up;
// it keeps nothing, asks hinit nothing and owns no goroutine.
package usage

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// Hertz is the unit of times in /proc, in a second (proc_pid_stat(5)): this on every system that runs Go.
const Hertz = 100

// dialTime is how long hinit's socket may take to say who listens.
const dialTime = time.Second

// Process is what /proc/PID/stat says of a process. Times are in ticks of Hertz, and Waited is the time of the children it has waited for.
type Process struct {
	Parent, Group, Session int
	CPU, Waited, Start     uint64
	Threads                int
	Memory                 uint64 // bytes
}

// Table is all processes at one time, by their numbers.
type Table map[int]Process

// Usage is what the processes of a service use.
type Usage struct {
	CPU       float64 // processors, on average since the measurement before
	Memory    uint64
	Processes int
}

// Root finds the /proc that shows the processes of the hinit behind a socket, by the numbers that hinit has for them; pid is its own. It
// is "" when this process may not see them: hinit is in another PID namespace, on the other side of a relay, or another user's.
func Root(socket string, pid int) string {
	dialer := net.Dialer{Timeout: dialTime}
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

// Mains are the main processes of a status, with the names of their services.
func Mains(st client.Status) map[int]string {
	mains := make(map[int]string, len(st.Services))
	for i := range st.Services {
		if s := &st.Services[i]; s.PID > 1 {
			mains[s.PID] = s.Name
		}
	}
	return mains
}

// Read reads all processes below a root. What ends meanwhile is missing. It fills old, whose content is lost, if that is not nil.
func Read(root string, old Table) (Table, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	if old == nil {
		old = make(Table, len(names))
	}
	clear(old)
	page := uint64(os.Getpagesize())
	var buffer [1024]byte
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid <= 0 {
			continue
		}
		fd, err := unix.Openat(int(dir.Fd()), name+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // it has ended
		}
		n, err := unix.Read(fd, buffer[:])
		_ = unix.Close(fd)
		if err != nil {
			continue
		}
		if p, is := parseStat(buffer[:n]); is {
			p.Memory *= page
			old[pid] = p
		}
	}
	return old, nil
}

// parseStat reads a line of proc_pid_stat(5). Memory is in pages.
func parseStat(line []byte) (p Process, is bool) {
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
	p.Parent, p.Group, p.Session = int(number(4)), int(number(5)), int(number(6))
	p.CPU, p.Waited = number(14)+number(15), number(16)+number(17)
	p.Threads = int(number(20))
	p.Start = number(22)
	p.Memory = number(24)
	return p, at < len(line)
}

// Owners finds out to which main process's service each process belongs.
func (t Table) Owners(mains map[int]string) map[int]string {
	known := make(map[int]string, len(t))
	for pid := range t {
		t.owner(pid, mains, known)
	}
	return known
}

// owner finds the service of a process: by its ancestors, else by its session or its group, which an orphan keeps.
func (t Table) owner(pid int, mains, known map[int]string) string {
	if name, is := known[pid]; is {
		return name
	}
	p, is := t[pid]
	if !is || pid <= 1 {
		return ""
	}
	known[pid] = mains[pid] // a ring of parents can be seen while processes come and go
	for _, other := range []int{p.Session, p.Group} {
		if known[pid] == "" {
			known[pid] = mains[other]
		}
	}
	name := mains[pid]
	if name == "" {
		name = t.owner(p.Parent, mains, known)
	}
	if name != "" {
		known[pid] = name
	}
	return known[pid]
}

// Used sums up by service. before is the table of a measurement that is so long ago; without it processor times are 0.
func (t Table) Used(mains map[int]string, before Table, passed time.Duration) map[string]Usage {
	out := make(map[string]Usage, len(mains))
	for pid, name := range t.Owners(mains) {
		if name == "" {
			continue
		}
		p, u := t[pid], out[name]
		u.Processes++
		u.Memory += p.Memory
		used := p.CPU
		if old, is := before[pid]; is && old.Start == p.Start {
			used -= min(old.CPU, used)
		}
		if before != nil && passed > 0 {
			u.CPU += float64(used) / Hertz / passed.Seconds()
		}
		out[name] = u
	}
	return out
}
