// Package usage is what /proc says of the processes of services: who belongs to which service, and what it uses. It reads and sums up;
// it keeps nothing, asks hinit nothing and owns no goroutine.
package usage

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
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

// Roots say where the processes of the services of one hinit begin.
type Roots struct {
	Init  int                          // the process of hinit itself; 0 when it is not known
	Mains map[int]string               // the main processes with the names of their services
	Mark  func(pid int) (uint64, bool) // the mark of the run that a process comes from; nil: none is known
}

// RootsOf returns the roots of a status, whose processes are seen below root.
func RootsOf(st client.Status, root string) Roots {
	r := Roots{Init: st.Init.PID, Mains: make(map[int]string, len(st.Services)), Mark: func(pid int) (uint64, bool) {
		limits, _ := os.ReadFile(root + "/" + strconv.Itoa(pid) + "/limits") // without them there is no mark
		return proc.ParseMark(limits)
	}}
	for i := range st.Services {
		if s := &st.Services[i]; s.PID > 1 {
			r.Mains[s.PID] = s.Name
		}
	}
	return r
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

// markStep lies between the marks of two runs. A hinit inside a service lowers the mark a little further for what it runs.
const markStep = 1 << 40

// Owners finds out to which service each process belongs, as hinit does when it stops one: by its ancestors, by its session or group, which
// an orphan keeps, or by its mark. A process that does not descend from this hinit has no mark of it: another hinit gives the same ones.
func (t Table) Owners(r Roots) map[int]string {
	known := make(map[int]string, len(t))
	for pid := range t {
		t.owner(pid, r.Mains, known)
	}
	if r.Mark == nil || r.Init == 0 {
		return known
	}
	var marks map[uint64]string // read when the first orphan needs them
	for _, pid := range slices.Sorted(maps.Keys(t)) {
		if t[pid].Parent != r.Init || known[pid] != "" {
			continue
		}
		if marks == nil {
			marks = make(map[uint64]string, len(r.Mains))
			own, _ := r.Mark(r.Init)
			for main, name := range r.Mains {
				if mark, ok := r.Mark(main); ok && mark != own {
					marks[mark] = name
				}
			}
		}
		mark, ok := r.Mark(pid)
		nearest := uint64(markStep)
		for m, name := range marks {
			if ok && mark <= m && m-mark < nearest {
				known[pid], nearest = name, m-mark
			}
		}
		if known[pid] != "" {
			t.inherit(pid, known)
		}
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

// inherit gives the descendants of a process, which belong to no service, to the service of the process.
func (t Table) inherit(pid int, known map[int]string) {
	for child := range t {
		if t[child].Parent == pid && known[child] == "" && child != pid {
			known[child] = known[pid]
			t.inherit(child, known)
		}
	}
}

// Used sums up by service. before is the table of a measurement that is so long ago; without it processor times are 0.
func (t Table) Used(r Roots, before Table, passed time.Duration) map[string]Usage {
	out := make(map[string]Usage, len(r.Mains))
	for pid, name := range t.Owners(r) {
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
