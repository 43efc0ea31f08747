package container

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"hinit/supervisor"
)

const (
	// crowdMargin is how many process numbers of the container are left when the status says that they run out.
	crowdMargin = 8
	// crowdLooked is up to how many processes are counted for who has most of them.
	crowdLooked = 8192
)

// crowd says that the process numbers of the container are used up, and by whom, "" while there are some. It reads what the kernel
// has in memory only.
func crowd(cgroups, proc string, services []*supervisor.Service) string {
	limit, ok := processLimit(cgroups)
	if !ok {
		return ""
	}
	used, ok := processCount(cgroups)
	if !ok || used < limit-crowdMargin {
		return ""
	}
	text := fmt.Sprintf("%d of the %d process numbers of the container are used, so it can start next to nothing", used, limit)
	if limit > crowdLooked {
		return text
	}
	// Who has few of them is not to blame: the others belong to no service, or have left theirs.
	if name, most := mostProcesses(proc, services); most >= limit/4 {
		text += fmt.Sprintf("; %s has %d of them or more; to end it: hinit stop %s", name, most, name)
	}
	return text
}

// processCount is how many processes and threads are in the container's cgroup.
func processCount(cgroups string) (int, bool) {
	for _, name := range []string{"/pids.current", "/pids/pids.current"} {
		if text, err := os.ReadFile(cgroups + name); err == nil {
			n, err := strconv.Atoi(strings.TrimSpace(string(text)))
			return n, err == nil
		}
	}
	return 0, false
}

// mostProcesses finds the service with most processes. They are told by their session, which each service begins; who begins
// another one is not counted.
func mostProcesses(proc string, services []*supervisor.Service) (name string, most int) {
	dir, err := os.Open(proc)
	if err != nil {
		return "", 0
	}
	defer dir.Close()
	entries, _ := dir.Readdirnames(-1) // what can be read counts
	sessions := make(map[int]int)
	for _, entry := range entries {
		if entry[0] < '0' || entry[0] > '9' {
			continue
		}
		text, err := os.ReadFile(proc + "/" + entry + "/stat")
		if err != nil {
			continue
		}
		// PID (COMM) STATE PPID PGRP SESSION; the name may hold anything (proc_pid_stat(5)).
		if fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]); len(fields) > 3 {
			session, _ := strconv.Atoi(string(fields[3])) // 0 is nobody's
			sessions[session]++
		}
	}
	for _, s := range services {
		if n := sessions[s.PID]; s.PID > 1 && n > most {
			name, most = s.Name, n
		}
	}
	return name, most
}
