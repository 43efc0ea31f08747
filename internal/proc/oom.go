package proc

import (
	"bytes"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// oomScore is the oom_score_adj of this process (proc_pid_oom_score_adj(5)).
type oomScore int

// maxOOMScoreAdj is the highest value of oom_score_adj.
const maxOOMScoreAdj = 1000

func newOOMScore() oomScore {
	text, _ := os.ReadFile("/proc/self/oom_score_adj")
	own, _ := strconv.Atoi(string(bytes.TrimSpace(text)))
	return oomScore(own)
}

// OOMRoom returns by how much the oom_score_adj of a process can exceed the value of this process.
func OOMRoom() int { return maxOOMScoreAdj - int(newOOMScore()) }

// raiseProcess raises the oom_score_adj of the process pid, which was just started, and of its children. The new value is this
// process's own value plus by. When memory is short, the kernel then kills those processes before this process. Call raiseProcess
// after the start: if this process raised its own value before the fork, the kernel could kill this process. Raising a value
// needs no privilege.
func (own oomScore) raiseProcess(s *scanner, pid, by int) {
	score := []byte(strconv.Itoa(min(int(own)+by, maxOOMScoreAdj)))
	pids := []int{pid}
	for i := 0; i < len(pids) && i < maxExitedMarks; i++ {
		dir := strconv.Itoa(pids[i])
		if !s.writeFile(dir, "oom_score_adj", score) {
			continue
		}
		if list, ok := s.readAll(dir + "/task/" + dir + "/children"); ok && len(list) > 0 {
			for word := range bytes.FieldsSeq(list) {
				if child, err := strconv.Atoi(string(word)); err == nil {
					pids = append(pids, child)
				}
			}
		}
	}
}

// writeFile writes a file of a process in /proc. If root lacks the privilege to write files of other users, it opens the file
// with the identity of the file's owner.
func (s *scanner) writeFile(dir, name string, data []byte) bool {
	if s.dir < 0 {
		return false
	}
	name = dir + "/" + name
	fd, err := unix.Openat(s.dir, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) {
		var st unix.Stat_t
		if unix.Fstatat(s.dir, name, &st, 0) == nil {
			runAs(st.Uid, st.Gid, func() { fd, err = unix.Openat(s.dir, name, unix.O_WRONLY|unix.O_CLOEXEC, 0) })
		}
	}
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, data)
	return err == nil
}

// OOMKills returns a function that returns the number of processes of this container that the kernel has killed for lack of
// memory. OOMKills returns nil if the kernel does not count these processes (cgroups(7)). The function never waits for a
// disk. It keeps its file open, because the supervisor reads the count at every exit.
func OOMKills() func() uint64 {
	for _, file := range []string{
		"/sys/fs/cgroup/memory.events",             // version 2
		"/sys/fs/cgroup/memory/memory.oom_control", // version 1
	} {
		fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if _, ok := oomKills(fd); ok {
			return func() uint64 { n, _ := oomKills(fd); return n }
		}
		_ = unix.Close(fd)
	}
	return nil
}

// oomKillsIn returns the count of OOMKills for one control group of version 2.
func oomKillsIn(group string) (uint64, bool) {
	text, _ := os.ReadFile(group + "/memory.events")
	return valueOf(text, "oom_kill")
}

func oomKills(fd int) (uint64, bool) {
	content := make([]byte, 1024) // large enough: each file has a few short lines
	n, _ := unix.Pread(fd, content, 0)
	return valueOf(content[:max(n, 0)], "oom_kill")
}
