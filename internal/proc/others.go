package proc

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/procstat"
)

// StartTicks returns when a process was started, in clock ticks since the machine booted (proc_pid_stat(5)). With the number of the
// process it names the process: no other gets both. It reports false when there is no such process, or only what is left of one that
// has ended.
func StartTicks(pid int) (uint64, bool) {
	if pid <= 0 {
		return 0, false
	}
	st, err := procstat.Read(pid)
	return st.Start, err == nil && !st.Dead()
}

// Origin returns the name that a process goes by (comm), "" when it is gone, and whether it may descend from this one. Every process of
// the container but this one does, unless it was started from outside, as by docker exec: the kernel makes orphans children of this one.
func Origin(pid int) (name string, inside bool) {
	if pid <= 0 {
		return "", false // this process's namespace does not see it
	}
	comm, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm") // it is gone
	name = strings.TrimSuffix(string(comm), "\n")
	for range 64 { // of a longer chain, nothing is known
		st, err := procstat.Read(pid)
		if err != nil || st.Parent == os.Getpid() {
			return name, true
		}
		if pid = st.Parent; pid <= 1 {
			return name, false
		}
	}
	return name, true
}

// Await blocks until a process has ended that is not a child of this one. It returns at once when there is none, and where the kernel
// has no way to wait for it.
func Await(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// ByEnv finds the processes that were started with these variables, those first whose parent was not; sure says that every process that
// could be one was looked at.
func ByEnv(vars map[string]string) (pids []int, sure bool) {
	s := newScanner()
	if s.dir < 0 {
		return nil, false
	}
	defer unix.Close(s.dir)
	s.look()
	has, sure := make(map[int]bool), true
	for _, p := range s.stats {
		if p.Dead() || p.PID == os.Getpid() {
			continue
		}
		env, ok := s.readAll(strconv.Itoa(p.PID) + "/environ")
		if s.whole = env[:0]; !ok {
			sure = sure && !s.ours(p.PID)
			continue
		}
		has[p.PID] = hasVars(env, vars)
	}
	for _, p := range s.stats {
		switch {
		case !has[p.PID]:
		case has[p.Parent]:
			pids = append(pids, p.PID)
		default:
			pids = slices.Insert(pids, 0, p.PID)
		}
	}
	return pids, sure
}

// ours reports whether a process is of this process's user.
func (s *scanner) ours(pid int) bool {
	var st unix.Stat_t
	return unix.Fstatat(s.dir, strconv.Itoa(pid), &st, 0) == nil && int(st.Uid) == os.Geteuid()
}

func hasVars(env []byte, vars map[string]string) bool {
	found := 0
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		name, value, _ := bytes.Cut(kv, []byte{'='})
		if want, is := vars[string(name)]; is && want == string(value) {
			found++
		}
	}
	return found == len(vars)
}
