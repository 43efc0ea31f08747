package probe

import (
	"bytes"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// usage is the processor time of a process.
type usage struct {
	state  byte // as in proc_pid_stat(5); 0: there is no such process
	parent int
	ticks  uint64 // clock ticks that it and the children that it waited for have used
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 1<<10); return &b }}

// processorTime returns what a process has used. It leaves no garbage: it is asked of every gateway.
func processorTime(pid int) (u usage) {
	pooled := buffers.Get().(*[]byte)
	defer buffers.Put(pooled)
	_ = short(func() error {
		fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		n, err := unix.Read(fd, *pooled)
		u = parseUsage((*pooled)[:max(n, 0)])
		return err
	})
	return u
}

func parseUsage(stat []byte) (u usage) {
	rest := stat[bytes.LastIndexByte(stat, ')')+1:]
	for n := 3; n <= 17; n++ { // the field after the name is the third
		field, after, more := bytes.Cut(bytes.TrimLeft(rest, " "), []byte(" "))
		if !more {
			return usage{}
		}
		switch rest = after; {
		case n == 3:
			u.state = field[0]
		case n == 4:
			u.parent = int(number(field))
		case n >= 14:
			u.ticks += number(field)
		}
	}
	return u
}

// number reads decimal digits.
func number(digits []byte) (n uint64) {
	for _, d := range digits {
		if d >= '0' && d <= '9' {
			n = n*10 + uint64(d-'0')
		}
	}
	return n
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
