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
	"hinit/internal/proc"
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

// RootsOf returns the roots of a status, whose processes are seen below root.
func RootsOf(st client.Status, root string) proc.Roots {
	r := proc.Roots{Init: st.Init.PID, Mains: make(map[int]string, len(st.Services)), Mark: func(pid int) (proc.Mark, bool) {
		dir := root + "/" + strconv.Itoa(pid)
		limits, _ := os.ReadFile(dir + "/limits") // without them there is no mark
		status, _ := os.ReadFile(dir + "/status")
		return proc.ParseMark(limits, status)
	}}
	for i := range st.Services {
		if s := &st.Services[i]; s.PID > 1 {
			r.Mains[s.PID] = s.Name
		}
	}
	return r
}

// Read reads all processes below a root. A process that ends meanwhile is missing. Read fills old, if it is not nil, and
// overwrites its content.
func Read(root string, old Table) (Table, error) {
	if old == nil {
		old = make(Table)
	}
	clear(old)
	if err := procstat.Each(root, func(p procstat.Stat) { old[p.PID] = p }); err != nil {
		return nil, err
	}
	return old, nil
}

// Used sums up by service. before is the table of a measurement that is so long ago; without it processor times are 0.
func (t Table) Used(r proc.Roots, before Table, passed time.Duration) map[string]Usage {
	out := make(map[string]Usage, len(r.Mains))
	for pid, main := range r.Owners(t) {
		if main == 0 {
			continue
		}
		name := r.Mains[main]
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
