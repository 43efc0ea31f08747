package tuning

import (
	"bufio"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// bootGCPercent is how much the heap may grow between two collections of the boot. It also delays the first one.
	bootGCPercent = 400
	// RestAfter is how long nothing must have happened until PID 1 gives back the memory that it needed for what did happen.
	RestAfter = 250 * time.Millisecond
	// RestAgain is how much later it gives back what the first times of whatever it does by the clock have needed.
	RestAgain = 2500 * time.Millisecond
	// restWorth is how much the heap must have grown since the last collection for another one to pay. An eighth of the heap
	// counts too, because the cost of a collection grows with the heap.
	restWorth = 256 << 10
)

// RelaxGC makes the garbage collector wait longer until normal is called, at the end of the boot. Turned off it would cost more:
// used memory is cheaper than new memory.
func RelaxGC() (normal func()) {
	percent := debug.SetGCPercent(bootGCPercent)
	if percent < 0 || percent > bootGCPercent { // GOGC says so
		debug.SetGCPercent(percent)
	}
	return sync.OnceFunc(func() { debug.SetGCPercent(percent) })
}

// memoryShare is the part of the container's memory that PID 1 has for itself, and leastMemory the least that it is held to.
const (
	memoryShare = 8
	leastMemory = 24 << 20
)

// LimitMemory holds the garbage collector to a part of what the control group of the container allows. GOMEMLIMIT wins, and the Go runtime
// sets GOMAXPROCS by itself.
func LimitMemory() { limitMemory(cgroupDir) }

func limitMemory(cgroup string) {
	if limit, ok := memoryLimit(cgroup); ok && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(max(int64(limit)/memoryShare, leastMemory))
	}
}

// MemoryLimit returns how many bytes the control group of the container allows.
func MemoryLimit() (limit int, ok bool) { return memoryLimit(cgroupDir) }

func memoryLimit(cgroup string) (limit int, ok bool) {
	return cgroupNumber(cgroup, "memory.max", "memory/memory.limit_in_bytes")
}

// Releaser gives memory back to the kernel when PID 1 comes to rest. That is after the boot, after a burst of starts or crashes,
// and after requests of the control API. The zero value is ready for use, by one goroutine.
type Releaser struct {
	last uint64 // heap in use after the last time
}

// Release is to be called when nothing has happened for [RestAfter], and once more after [RestAgain]. It takes a few milliseconds
// with hundreds of services where a collection pays, else a tenth of one.
func (r *Releaser) Release() {
	defer dropProgramText()
	if r.last != 0 && heapInUse() < r.last+max(restWorth, r.last/8) {
		return
	}
	// A collection halves a stack that is mostly empty. The stacks of the log pumps are four times too large while they wait,
	// because opening a file went deep once. FreeOSMemory collects for the second time.
	runtime.GC()
	debug.FreeOSMemory()
	r.last = heapInUse()
}

func heapInUse() uint64 {
	var m runtime.MemStats // not runtime/metrics, whose import costs every command 0.1 ms
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// dropProgramText drops the program's text and constants from this process (madvise(2), MADV_DONTNEED). A page that is used again
// comes back from the page cache. Both mappings are read-only and of a file, so nothing is lost.
func dropProgramText() {
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
