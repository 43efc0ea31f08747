package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// usage is the resource use of all processes in a namespace except for the services.
type usage struct {
	processes int // Supervisor, its helpers and loggers.
	services  int
	cpu       time.Duration
	switches  int64 // Context switches of both kinds, of all threads.
	pss       int64 // Proportional set size, in bytes.
	private   int64 // Private dirty pages, in bytes.
	tables    int64 // Page tables, in bytes.
}

// processes returns the pids of all processes in the namespace except for the services, and the
// number of services.
func (i *instance) processes() (others []int, services int, err error) {
	dir, err := os.Open(i.proc())
	if err != nil {
		return nil, 0, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, 0, err
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		exe, err := os.Readlink(i.proc(name, "exe"))
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH):
			continue // The process has ended or is a zombie.
		case err != nil:
			return nil, 0, err
		case exe == i.sleeper:
			services++
		default:
			others = append(others, pid)
		}
	}
	return others, services, nil
}

func (i *instance) proc(parts ...string) string {
	return fmt.Sprintf("/proc/%d/root/proc/%s", i.pid(), strings.Join(parts, "/"))
}

// usage sums up processor time and context switches.
func (i *instance) usage() (usage, error) {
	var u usage
	others, services, err := i.processes()
	if err != nil {
		return u, err
	}
	u.processes, u.services = len(others), services
	for _, pid := range others {
		tasks := i.proc(strconv.Itoa(pid), "task")
		threads, err := os.ReadDir(tasks)
		if err != nil {
			continue // The process has ended.
		}
		for _, t := range threads {
			u.switches += sumFields(tasks+"/"+t.Name()+"/status", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
			text, err := os.ReadFile(tasks + "/" + t.Name() + "/schedstat")
			if err == nil {
				u.cpu += parseSchedstat(text)
			}
		}
	}
	return u, nil
}

// memory returns the processes' memory in a usage.
func (i *instance) memory() (usage, error) {
	u, err := i.usage()
	if err != nil {
		return u, err
	}
	others, _, err := i.processes()
	if err != nil {
		return u, err
	}
	for _, pid := range others {
		p := strconv.Itoa(pid)
		u.pss += sumFields(i.proc(p, "smaps_rollup"), "Pss") << 10
		u.private += sumFields(i.proc(p, "smaps_rollup"), "Private_Dirty") << 10
		u.tables += sumFields(i.proc(p, "status"), "VmPTE") << 10
	}
	if u.pss == 0 {
		return u, errors.New("cannot read the memory of the supervisor")
	}
	return u, nil
}

// sumFields adds up lines like "Name: 12 kB" of a file in /proc. The sum is 0 if the process has
// ended.
func sumFields(path string, names ...string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	return parseFields(text, names...)
}

func parseFields(text []byte, names ...string) int64 {
	var sum int64
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), ":")
		if !ok {
			continue
		}
		for _, want := range names {
			if fields := strings.Fields(value); name == want && len(fields) > 0 {
				if n, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
					sum += n
				}
			}
		}
	}
	return sum
}

// parseSchedstat parses the processor time in /proc/PID/schedstat, in nanoseconds.
func parseSchedstat(text []byte) time.Duration {
	fields := strings.Fields(string(text))
	if len(fields) == 0 {
		return 0
	}
	n, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(n)
}

// cpuTime returns the processor time of a process without its children, with nanosecond precision
// (clock_getcpuclockid(3)).
func cpuTime(pid int) (time.Duration, error) {
	const sched = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &t); err != nil {
		return 0, fmt.Errorf("cannot read the CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}
