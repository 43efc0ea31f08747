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
	// bootGCPercent is the GOGC value during the boot: how much the heap may grow between two garbage collections, in percent. It
	// also delays the first collection.
	bootGCPercent = 400
	// ReleaseAfter is how long PID 1 must be idle before it returns unused memory to the kernel.
	ReleaseAfter = 250 * time.Millisecond
	// ReleaseAgain is the delay before PID 1 returns memory a second time. By then each periodic task has run once and left
	// garbage behind.
	ReleaseAgain = 2500 * time.Millisecond
	// leastGrowth is how many bytes the heap must have grown since the last collection before Release collects again. It must
	// also have grown by an eighth, because the cost of a collection grows with the heap.
	leastGrowth = 256 << 10
)

// RelaxGC makes the garbage collector run less often until the boot ends and the caller calls normal. Turning the collector off
// would cost more, because new memory is more expensive than used memory.
func RelaxGC() (normal func()) {
	percent := debug.SetGCPercent(bootGCPercent)
	if percent < 0 || percent > bootGCPercent { // GOGC sets another value or turns the collector off, so keep its setting
		debug.SetGCPercent(percent)
	}
	return sync.OnceFunc(func() { debug.SetGCPercent(percent) })
}

// PID 1 may use the container's memory limit divided by memoryShare, but always at least leastMemory.
const (
	memoryShare = 8
	leastMemory = 24 << 20
)

// LimitMemory limits the heap to a part of the memory that the container's control group allows. GOMEMLIMIT overrides it. The Go
// runtime sets GOMAXPROCS itself.
func LimitMemory() { limitMemory(cgroupDir) }

func limitMemory(cgroup string) {
	if limit, ok := memoryLimit(cgroup); ok && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(max(int64(limit)/memoryShare, leastMemory))
	}
}

// MemoryLimit returns how many bytes the control group of the container allows. ok is false without a limit.
func MemoryLimit() (limit int, ok bool) { return memoryLimit(cgroupDir) }

func memoryLimit(cgroup string) (limit int, ok bool) {
	return cgroupNumber(cgroup, "memory.max", "memory/memory.limit_in_bytes")
}

// Releaser returns unused memory to the kernel when PID 1 becomes idle. That is after the boot, after a burst of starts or
// crashes, and after requests to the control API. The zero value is ready for use by one goroutine.
type Releaser struct {
	last uint64 // size of the heap after the last release
}

// Release returns unused memory to the kernel. Call it when PID 1 was idle for [ReleaseAfter], and again after [ReleaseAgain]. It
// collects garbage only if the heap has grown. With hundreds of services it then takes a few milliseconds, else a tenth of a
// millisecond.
func (r *Releaser) Release() {
	defer dropProgramText()
	if r.last != 0 && heapInUse() < r.last+max(leastGrowth, r.last/8) {
		return
	}
	// A collection also halves the stacks that are mostly empty. The stacks of waiting log pumps are four times too large,
	// because opening a file needed a deep stack once. So two collections are needed; FreeOSMemory does the second.
	runtime.GC()
	debug.FreeOSMemory()
	r.last = heapInUse()
}

func heapInUse() uint64 {
	var m runtime.MemStats // importing runtime/metrics instead would cost every command 0.1 ms
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// dropProgramText releases the memory of the program's code and constants (madvise(2), MADV_DONTNEED). When a page is used, the
// kernel maps it again from the page cache. Both mappings are read-only and of a file, so nothing is lost.
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
