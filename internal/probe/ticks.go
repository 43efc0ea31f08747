package probe

import (
	"bytes"
	"os"
	"strconv"
)

// usage is the processor time of a process.
type usage struct {
	state  byte // as in proc_pid_stat(5); 0: there is no such process
	parent int
	ticks  uint64 // clock ticks that it and the children that it waited for have used
}

// processorTime returns what a process has used.
func processorTime(pid int) usage {
	var stat []byte
	_ = short(func() (err error) {
		stat, err = os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err
	})
	return parseUsage(stat)
}

func parseUsage(stat []byte) (u usage) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const first = 3 // number of the field after the name
	if len(fields) <= 17-first {
		return u
	}
	for _, field := range fields[14-first : 17-first+1] {
		n, _ := strconv.ParseUint(string(field), 10, 64)
		u.ticks += n
	}
	u.parent, _ = strconv.Atoi(string(fields[4-first]))
	u.state = fields[0][0]
	return u
}

// treesOf returns for every process what it and all below it have used.
func treesOf() map[int]uint64 {
	all := make(map[int]usage)
	_ = short(func() error {
		names, err := os.ReadDir("/proc")
		for _, name := range names {
			pid, err := strconv.Atoi(name.Name())
			if err != nil {
				continue
			}
			if stat, err := os.ReadFile("/proc/" + name.Name() + "/stat"); err == nil {
				all[pid] = parseUsage(stat)
			}
		}
		return err
	})
	sums := make(map[int]uint64, len(all))
	for pid, u := range all {
		for at, depth := pid, 0; at > 0 && depth <= len(all); depth++ { // processes may have moved while this was read
			sums[at] += u.ticks
			at = all[at].parent
		}
	}
	return sums
}
