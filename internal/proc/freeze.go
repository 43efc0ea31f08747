package proc

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/procstat"
)

// uninterruptibleLimit is the time after which [FreezeOthers] counts a thread in an uninterruptible wait as stopped. The parent
// in a vfork(2) waits like this for its stopped child. A shorter wait proves nothing: a running fork may wait too, for instance
// while its process changes the control group.
const uninterruptibleLimit = time.Second

// FreezeOthers freezes every other process of the PID namespace with SIGSTOP. PID 1 calls it before a re-execution when few
// PIDs are free, so that no process takes the PIDs that the new program needs. before lists the processes that were already
// stopped; pass it to [ThawOthers]. beyond is a process that this user may not freeze, or 0. FreezeOthers blocks until all
// threads are frozen. If that takes longer than patience, it returns an error, and all processes run again. It fails outside
// PID 1, because kill(2) with -1 would reach processes that do not belong to hinit.
func FreezeOthers(patience time.Duration) (before []int, beyond int, err error) {
	if self, err := os.Readlink("/proc/self"); os.Getpid() != 1 || err != nil || self != "1" {
		return nil, 0, errors.New("only process 1 with a /proc of its own can stop the others meanwhile")
	}
	s := newScanner()
	defer unix.Close(s.dir)
	s.scan()
	if len(s.stats) == 0 {
		return nil, 0, errors.New("cannot list the processes, to stop them meanwhile")
	}
	for _, p := range s.stats {
		if p.State == 'T' {
			before = append(before, p.PID)
		}
	}
	s.stopShells()
	if err := unix.Kill(-1, unix.SIGSTOP); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EPERM) {
		return nil, 0, fmt.Errorf("cannot stop the other processes meanwhile: %w", err)
	}
	waiting := make(map[string]time.Time)
	begin := time.Now()
	for {
		pid, beyond := s.findUnstopped(waiting)
		if pid == 0 {
			return before, beyond, nil
		}
		if time.Since(begin) > patience {
			name := strings.TrimSpace(string(s.readFile(strconv.Itoa(pid) + "/comm")))
			ThawOthers(before)
			return nil, 0, fmt.Errorf("process %d (%q) does not stop meanwhile; end it and try again", pid, name)
		}
		<-time.After(time.Millisecond)
	}
}

// stopShells stops the oldest shells with job control first, and waits until each has stopped. A running shell would take the
// terminal back when its job is stopped. The number of shells is limited, because an agent can start any number.
func (s *scanner) stopShells() {
	const limit, each = 8, 250 * time.Millisecond
	byPID := make(map[int]stat, len(s.stats))
	for _, p := range s.stats {
		byPID[p.PID] = p
	}
	var shells []stat
	for _, job := range s.stats {
		shell := byPID[job.Parent]
		if shell.PID > 1 && shell.State != 'T' && shell.Session == job.Session && shell.Group != job.Group && !slices.Contains(shells, shell) {
			shells = append(shells, shell)
		}
	}
	slices.SortFunc(shells, func(a, b stat) int { return cmp.Compare(a.Start, b.Start) })
	for _, shell := range shells[:min(len(shells), limit)] {
		_ = unix.Kill(shell.PID, unix.SIGSTOP)
		for begin := time.Now(); time.Since(begin) < each; {
			if now, ok := s.readStat(shell.PID); !ok || now.State != 'S' && now.State != 'R' {
				break
			}
			<-time.After(each / 1000)
		}
	}
}

// findUnstopped returns a process with a running thread, and a process that this user may not stop (beyond); 0 for none.
// waiting records since when each thread is in an uninterruptible wait. Pass the same map to each call.
func (s *scanner) findUnstopped(waiting map[string]time.Time) (pid, beyond int) {
	s.scan()
	if len(s.stats) == 0 {
		return 1, 0 // without /proc, FreezeOthers must continue to wait
	}
	now := time.Now()
	for _, p := range s.stats {
		if p.PID == 1 || p.Threads <= 1 && strings.IndexByte("TtZXx", p.State) >= 0 {
			continue
		}
		dir := strconv.Itoa(p.PID) + "/task/"
		for _, thread := range s.threadNames(dir) {
			thread = dir + thread
			t, ok := procstat.Parse(s.readFile(thread + "/stat"))
			if t.State != 'D' {
				delete(waiting, thread)
			} else if waiting[thread].IsZero() {
				waiting[thread] = now
			}
			if !ok || strings.IndexByte("TtZXx", t.State) >= 0 || t.State == 'D' && now.Sub(waiting[thread]) >= uninterruptibleLimit {
				continue
			}
			if errors.Is(unix.Kill(p.PID, 0), unix.EPERM) {
				beyond = p.PID
			} else if pid == 0 {
				pid = p.PID // record the waits of the remaining threads too
			}
		}
	}
	return pid, beyond
}

// ThawOthers continues the processes that [FreezeOthers] has stopped, except those in before. It begins with the youngest, so
// that no shell sees its command still stopped. It also signals processes in an uninterruptible wait, which would otherwise
// stop when the wait ends.
func ThawOthers(before []int) {
	s := newScanner()
	defer unix.Close(s.dir)
	s.scan()
	if len(s.stats) == 0 {
		_ = unix.Kill(-1, unix.SIGCONT)
	}
	slices.SortFunc(s.stats, func(a, b stat) int { return cmp.Or(cmp.Compare(b.Start, a.Start), cmp.Compare(b.PID, a.PID)) })
	for _, p := range s.stats {
		if p.PID != 1 && !p.Dead() && !slices.Contains(before, p.PID) {
			_ = unix.Kill(p.PID, unix.SIGCONT) // an error means a process of another user, which FreezeOthers did not stop either
		}
	}
}

// EndDescendants ends all descendants of this process, for a program without a supervisor. It sends SIGTERM, and SIGKILL half
// a second before the budget is over. It returns when all have ended, or half a second after SIGKILL. The channel children
// must deliver SIGCHLD.
func EndDescendants(children <-chan os.Signal, budget time.Duration) {
	procs, err := New()
	if err != nil {
		return
	}
	const afterKill = 500 * time.Millisecond
	procs.SignalDescendants(int(unix.SIGTERM))
	end := time.After(max(budget-afterKill, 0))
	for killed := false; !procs.Reap(false, func(Exit) {}); {
		select {
		case <-children:
		case <-end:
			if killed {
				return
			}
			killed = true
			procs.SignalDescendants(int(unix.SIGKILL))
			end = time.After(afterKill)
		}
	}
}
