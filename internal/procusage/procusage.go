// Package procusage measures the processor time and memory of each service's processes. It reads /proc, finds the service of each
// process, and adds up the numbers. It keeps no state, and owns no goroutine.
package procusage

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"hinit/client"
	"hinit/internal/proc"
	"hinit/internal/procstat"
)

// dialTime is the time limit of Root for connecting to hinit's socket.
const dialTime = time.Second

// Table holds all processes at one moment, by PID.
type Table map[int]procstat.Stat

// Usage is the total usage of all processes of one service.
type Usage struct {
	CPU       float64 // number of processors used, on average since the previous measurement
	Memory    uint64
	Processes int
}

// Root returns the path of a /proc in which hinit's processes have the PIDs that hinit itself uses. socket is hinit's control
// socket, and pid is hinit's own PID. Root returns "" if this process can't see hinit's processes: hinit is in another PID
// namespace, behind a relay, or runs as another user.
func Root(socket string, pid int) string {
	conn, err := (&net.Dialer{Timeout: dialTime}).DialContext(context.Background(), "unix", socket)
	if err != nil {
		return ""
	}
	defer conn.Close()
	cred, err := proc.Peer(conn)
	if err != nil || cred.Pid == 0 {
		return ""
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", cred.Pid))
	if err != nil { // the process belongs to another user, so compare only its PID
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

// RootsOf returns the main processes that a status lists, for [proc.ServiceRoots.Owners]. It reads their marks below root.
func RootsOf(st client.Status, root string) proc.ServiceRoots {
	r := proc.ServiceRoots{Init: st.Init.PID, Mains: make(map[int]string, len(st.Services)), Mark: Marks(root)}
	for i := range st.Services {
		if s := &st.Services[i]; s.PID > 1 {
			r.Mains[s.PID] = s.Name
		}
	}
	return r
}

// Marks returns a function that reads the mark of a process below root, for [proc.ServiceRoots].
func Marks(root string) func(pid int) (proc.Mark, bool) {
	return func(pid int) (proc.Mark, bool) {
		dir := root + "/" + strconv.Itoa(pid)
		limits, _ := os.ReadFile(dir + "/limits") // if the files can't be read, ParseMark finds no mark
		status, _ := os.ReadFile(dir + "/status")
		return proc.ParseMark(limits, status)
	}
}

// Read reads all processes below root. A process that ends during the call may be missing. If old is not nil, Read overwrites
// this table instead of allocating a new one.
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

// Used returns the usage of each service, by name. The argument before is the table of the previous measurement, and passed is
// the time since then. If before is nil, the processor time is 0.
func (t Table) Used(r proc.ServiceRoots, before Table, passed time.Duration) map[string]Usage {
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
