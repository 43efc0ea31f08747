package metrics

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// process is what /proc/PID/stat says (proc_pid_stat(5)).
type process struct {
	pid, parent, group, session int
	cpu                         time.Duration // with that of the children it has waited for
	threads                     int
	memory                      uint64
	fds                         int // -1 when they may not be counted
}

// usage is what several processes use together.
type usage struct {
	process
	processes int
}

// table is all processes at one time.
type table struct {
	root     string
	all      map[int]*process
	children map[int][]*process // by parent, session and group; a process may be there twice
}

// tick is the unit of times in /proc: user space has seen 100 a second on every Linux.
const tick = time.Second / 100

// readProcesses reads all processes. What ends meanwhile is missing.
func readProcesses(root string) *table {
	t := &table{root: root, all: make(map[int]*process), children: make(map[int][]*process)}
	dir, err := os.Open(root)
	if err != nil {
		return t
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	page := uint64(os.Getpagesize())
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name, "stat"))
		if err != nil {
			continue
		}
		if p := parseStat(pid, string(text), page); p != nil {
			t.all[pid] = p
			for _, over := range []int{p.parent, p.group, p.session} {
				t.children[over] = append(t.children[over], p)
			}
		}
	}
	return t
}

func parseStat(pid int, text string, page uint64) *process {
	end := strings.LastIndexByte(text, ')') // the name before it can hold anything
	if end < 0 {
		return nil
	}
	fields := strings.Fields(text[end+1:])
	if len(fields) < 22 {
		return nil
	}
	number := func(i int) int { // of a field as the manual counts them
		n, _ := strconv.Atoi(fields[i-3])
		return n
	}
	return &process{
		pid: pid, parent: number(4), group: number(5), session: number(6), fds: -1,
		cpu:     time.Duration(number(14)+number(15)+number(16)+number(17)) * tick,
		threads: number(20), memory: uint64(max(number(24), 0)) * page,
	}
}

// alone returns a process by itself, nil when it is not seen.
func (t *table) alone(pid int) *process {
	if t == nil || t.all[pid] == nil {
		return nil
	}
	p := *t.all[pid]
	p.fds = t.countFDs(pid)
	return &p
}

// of returns what a process and all that descends from it, or is in its session or group, use.
func (t *table) of(pid int) usage {
	var u usage
	main := t.all[pid]
	if main == nil || pid <= 1 {
		return u
	}
	seen := map[int]bool{pid: true}
	for queue := []*process{main}; len(queue) > 0; queue = queue[1:] {
		p := queue[0]
		u.processes++
		u.cpu += p.cpu
		u.memory += p.memory
		u.threads += p.threads
		switch n := t.countFDs(p.pid); {
		case n >= 0 && u.fds >= 0:
			u.fds += n
		case n < 0:
			u.fds = -1 // part of them would be a lie
		}
		for _, child := range t.children[p.pid] {
			if !seen[child.pid] {
				seen[child.pid] = true
				queue = append(queue, child)
			}
		}
	}
	return u
}

// countFDs returns how many descriptors a process has open, -1 when that is not allowed.
func (t *table) countFDs(pid int) int {
	dir, err := os.Open(filepath.Join(t.root, strconv.Itoa(pid), "fd"))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return 0 // it has ended
		}
		return -1
	}
	defer dir.Close()
	n := 0
	for {
		names, err := dir.Readdirnames(256)
		n += len(names)
		switch {
		case errors.Is(err, io.EOF):
			return n
		case err != nil:
			return -1
		}
	}
}

// SameProcesses returns a function for [Collector.Visible]: whether who listens on a control socket has the process number here that
// it says it has. In another PID namespace it has another one, or none.
func SameProcesses(socket string) func(client.Init) bool {
	return func(i client.Init) bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return false
		}
		defer conn.Close()
		unixConn, is := conn.(*net.UnixConn)
		if !is {
			return false
		}
		raw, err := unixConn.SyscallConn()
		if err != nil {
			return false
		}
		pid := 0
		err = raw.Control(func(fd uintptr) {
			if cred, bad := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); bad == nil {
				pid = int(cred.Pid)
			}
		})
		return err == nil && pid > 0 && pid == i.PID
	}
}
