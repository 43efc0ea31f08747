// Package procusage measures how much processor time and memory the processes of each service use. hinit top and hinit web
// call it from outside PID 1. It reads /proc and finds the service of each process. It keeps no state, and owns no goroutine.
package procusage

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/internal/redact"
)

// dialTimeout is how long FindProc waits for a connection to hinit's socket.
const dialTimeout = time.Second

// Table holds all processes at one moment, by PID.
type Table map[int]procstat.Stat

// Usage is what all processes of one service use together.
type Usage struct {
	CPU       float64 // processors in use, on average since the previous measurement
	Memory    uint64
	Processes int
}

// FindProc returns the path of a /proc in which the processes of hinit have the PIDs that hinit itself uses. socket is hinit's
// control socket, and pid is hinit's own PID. FindProc returns "" if this process can't see the processes: hinit is in another
// PID namespace, behind a relay, or runs as another user.
func FindProc(socket string, pid int) string {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(context.Background(), "unix", socket)
	if err != nil {
		return ""
	}
	defer conn.Close()
	cred, err := proc.PeerCredentials(conn)
	if err != nil || cred.Pid == 0 {
		return ""
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", cred.Pid))
	if err != nil { // hinit runs as another user, so compare only the PID
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

// ServiceRootsOf returns the main processes of the services in a status, for [proc.ServiceRoots.Owners]. It reads their marks
// in the /proc at root.
func ServiceRootsOf(st client.Status, root string) proc.ServiceRoots {
	r := proc.ServiceRoots{Init: st.Init.PID, Mains: make(map[int]string, len(st.Services)), Mark: MarkReader(root)}
	for i := range st.Services {
		if s := &st.Services[i]; s.PID > 1 {
			r.Mains[s.PID] = s.Name
		}
	}
	return r
}

// MarkReader returns a function that reads the mark of a process in the /proc at root, for the field Mark of
// [proc.ServiceRoots].
func MarkReader(root string) func(pid int) (proc.Mark, bool) {
	return func(pid int) (proc.Mark, bool) {
		dir := root + "/" + strconv.Itoa(pid)
		limits, _ := os.ReadFile(dir + "/limits") // without the files, ParseMark finds no mark
		status, _ := os.ReadFile(dir + "/status")
		return proc.ParseMark(limits, status)
	}
}

// ReadProcesses reads all processes of the /proc at root. It may miss a process that ends during the call.
func ReadProcesses(root string) (Table, error) {
	all := make(Table)
	if err := procstat.EachProcess(root, func(p procstat.Stat) { all[p.PID] = p }); err != nil {
		return nil, err
	}
	return all, nil
}

// UsageByService returns the usage of each service, by name. before is the table of the previous measurement, and passed is
// the time since then. Without a table before, the processor time is 0.
func (t Table) UsageByService(r proc.ServiceRoots, before Table, passed time.Duration) map[string]Usage {
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
			u.CPU += float64(used) / procstat.TicksPerSecond / passed.Seconds()
		}
		out[name] = u
	}
	return out
}

// Process is a process in a tree, for display. Depth is the number of its ancestors in the tree.
type Process struct {
	PID, Depth int
	procstat.Stat
}

// Tree returns the processes for which belongs returns true, each after its parent. The process main and its descendants come
// first.
func (t Table) Tree(main int, belongs func(pid int) bool) (list []Process) {
	children := make(map[int][]int)
	var tops []int
	for _, pid := range slices.Sorted(maps.Keys(t)) {
		if !belongs(pid) {
			continue
		}
		parent := t[pid].Parent
		if _, known := t[parent]; known && parent != pid && pid != main && belongs(parent) {
			children[parent] = append(children[parent], pid)
		} else {
			tops = append(tops, pid)
		}
	}
	if at := slices.Index(tops, main); at > 0 {
		tops = slices.Insert(slices.Delete(tops, at, at+1), 0, main)
	}
	var walk func(pid, depth int)
	walk = func(pid, depth int) {
		list = append(list, Process{pid, depth, t[pid]})
		for _, child := range children[pid] {
			walk(child, depth+1)
		}
	}
	for _, pid := range tops {
		walk(pid, 0)
	}
	return list
}

// CommandLine returns the command line of a process of the /proc at root, with secrets hidden. Secrets are passwords in URLs,
// tokens of known forms, and values of flags and variables whose names suggest a secret. Without a command line, as for a
// kernel thread, it returns the name in brackets. It cuts the text to MaxTextBytes, because an agent can pass any number of
// arguments.
func CommandLine(root string, pid int) string {
	line, _ := ReadProcFile(fmt.Sprintf("%s/%d/cmdline", root, pid))
	if len(line) == 0 {
		name, _ := os.ReadFile(fmt.Sprintf("%s/%d/comm", root, pid)) // name is "" if the process is gone
		return "[" + strings.TrimSuffix(string(name), "\n") + "]"
	}
	text := maskArgs(strings.Split(strings.TrimRight(string(line), "\x00"), "\x00"))
	return strings.Clone(text[:min(len(text), MaxTextBytes)])
}

func maskArgs(argv []string) string {
	var masker redact.Masker
	words := make([]string, len(argv))
	secretNext := false
	for i, word := range argv {
		name, value, assigns := strings.Cut(word, "=")
		secret := redact.IsSecretName(strings.ReplaceAll(strings.TrimLeft(name, "-"), "-", "_"))
		switch {
		case secretNext && !strings.HasPrefix(word, "-"):
			word = redact.Hidden
		case assigns && secret && !strings.ContainsAny(name, " \t\n"):
			word = name + "=" + redact.Hidden
		case assigns:
			word = name + "=" + redact.HideValue("", value)
		default:
			word = redact.HideValue("", word)
		}
		secretNext = !assigns && secret && strings.HasPrefix(name, "--")
		words[i] = string(masker.Hide([]byte(word), nil))
	}
	return strings.Join(words, " ")
}

// MaxTextBytes is the maximum length in bytes of a displayed command line or variable.
const MaxTextBytes = 4 << 10

// maxProcFile is how many bytes of a file below /proc are read at most. A process can make the kernel show any part of its memory
// as its command line (prctl(2), PR_SET_MM), even terabytes of zeros.
const maxProcFile = 2 << 20

// readTimeout is how long ReadProcFile waits for the kernel. maxReads is how many reads may still wait after that.
const readTimeout, maxReads = time.Second / 2, 8

var readTokens = make(chan struct{}, maxReads)

// ReadProcFile reads up to maxProcFile bytes of a file below /proc; only a hostile process makes such a file longer. The kernel
// may have to wait for the memory lock of the process, which the process can hold. After readTimeout, ReadProcFile returns an
// error, and its goroutine keeps waiting.
func ReadProcFile(name string) ([]byte, error) {
	select {
	case readTokens <- struct{}{}:
	default:
		return nil, fmt.Errorf("cannot read %s: %w", name, blocking.ErrBusy)
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	var data []byte
	err := blocking.Wait(ctx, "reading "+name, func() (err error) {
		defer func() { <-readTokens }()
		data, err = readProcFile(name)
		return err
	})
	if err != nil {
		return nil, err // the goroutine may still read, so data must not be used
	}
	return data, nil
}

func readProcFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxProcFile))
}
