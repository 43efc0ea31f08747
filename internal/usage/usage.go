// Package usage is what /proc says of the processes of services: who belongs to which service, and what it uses. It reads and sums up;
// it keeps nothing, asks hinit nothing and owns no goroutine.
package usage

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"hinit/client"
	"hinit/internal/procstat"
)

// dialTime is how long hinit's socket may take to say who listens.
const dialTime = time.Second

// Table is all processes at one time, by their numbers.
type Table map[int]procstat.Stat

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
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid <= 0 {
			continue
		}
		if p, err := procstat.ReadAt(int(dir.Fd()), name+"/stat"); err == nil { // else it has ended
			old[pid] = p
		}
	}
	return old, nil
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
			u.CPU += float64(used) / procstat.Hertz / passed.Seconds()
		}
		out[name] = u
	}
	return out
}
