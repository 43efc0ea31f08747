package proc

import (
	"bytes"
	"os"
	"strconv"
)

// OOMKills returns a function that reads how many processes of this container the kernel has killed for memory, or nil
// when the kernel does not tell (cgroups(7)). Reading a control file does not block on a disk.
func OOMKills() func() uint64 {
	for _, file := range []string{
		"/sys/fs/cgroup/memory.events",             // version 2
		"/sys/fs/cgroup/memory/memory.oom_control", // version 1
	} {
		if _, ok := oomKills(file); ok {
			return func() uint64 { n, _ := oomKills(file); return n }
		}
	}
	return nil
}

func oomKills(file string) (uint64, bool) {
	content, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range bytes.Lines(content) {
		if f := bytes.Fields(line); len(f) == 2 && string(f[0]) == "oom_kill" {
			n, err := strconv.ParseUint(string(f[1]), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
