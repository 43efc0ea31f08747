package container

import (
	"bufio"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// restAfter is how long nothing must have happened until hinit gives back the memory that it needed for what did happen.
	restAfter = 250 * time.Millisecond
	// restWorth is by how much the heap must have grown since the last time for that to pay.
	restWorth = 1 << 20
)

// rester gives memory back when hinit comes to rest: after the boot, and after a burst of starts or crashes. That is no
// periodic work: where nothing happens, it does nothing.
type rester struct {
	last uint64 // heap in use after the last time
}

// rest is called when nothing has happened for a while. It takes a few milliseconds with hundreds of services.
func (r *rester) rest() {
	if r.last != 0 && heapInUse() < r.last+restWorth {
		return
	}
	// A collection halves a stack that is mostly empty, and those of the log pumps are four times what they need while they
	// wait: opening a file went deep once. FreeOSMemory collects for the second time.
	runtime.GC()
	debug.FreeOSMemory()
	forgetImage()
	r.last = heapInUse()
}

func heapInUse() uint64 {
	var m runtime.MemStats // not runtime/metrics, whose import costs every command 0.1 ms
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// forgetImage takes the program's own text and constants out of this process (madvise(2), MADV_DONTNEED). What is used
// again comes back from the page cache, 64 KiB at a time; what only the boot needed stays away. Both mappings are read-only
// and of a file, so there is nothing in them that could be lost.
func forgetImage() {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return // /proc is not mounted
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		f := strings.Fields(lines.Text()) // 00400000-007f6000 r-xp 00000000 fe:00 4711 /init (proc_pid_maps(5))
		if len(f) != 6 || f[5] != self || !strings.HasPrefix(f[1], "r-") {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		begin, badBegin := strconv.ParseUint(from, 16, 64)
		end, badEnd := strconv.ParseUint(to, 16, 64)
		if badBegin == nil && badEnd == nil {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(begin), uintptr(end-begin), unix.MADV_DONTNEED)
		}
	}
}
