package tuning

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// bootGCPercent is GOGC during the boot: by how many percent the heap may grow between two garbage collections. The first
	// one also comes later.
	bootGCPercent = 400
	// ReleaseDelay is how long PID 1 must be idle before it returns unused memory to the kernel.
	ReleaseDelay = 250 * time.Millisecond
	// SecondReleaseDelay is how long PID 1 must be idle before it returns unused memory a second time. By then each periodic task
	// has run once and has left garbage.
	SecondReleaseDelay = 2500 * time.Millisecond
	// minHeapGrowth is how many bytes the heap must have grown since the last collection before Release collects garbage again.
	// Unless the call is the final one, it must also have grown by an eighth, because the cost of a collection grows with the
	// heap.
	minHeapGrowth = 256 << 10
)

// RelaxGC makes the garbage collector run less often during the boot. When the boot ends, call normal to restore the setting.
// Turning the collector off would be slower, because fresh memory costs more than reused memory.
func RelaxGC() (normal func()) {
	percent := debug.SetGCPercent(bootGCPercent)
	if percent < 0 || percent > bootGCPercent { // keep a GOGC setting that is higher or turns the collector off
		debug.SetGCPercent(percent)
	}
	return sync.OnceFunc(func() { debug.SetGCPercent(percent) })
}

// The heap of PID 1 may use the container's memory limit divided by memoryLimitDivisor, but always at least minMemory bytes.
const (
	memoryLimitDivisor = 8
	minMemory          = 24 << 20
)

// LimitMemory limits the heap to a part of the memory that the container's control group allows. GOMEMLIMIT overrides this limit.
func LimitMemory() { limitMemory(cgroupDir) }

func limitMemory(cgroup string) {
	if limit, ok := cgroupNumber(cgroup, "memory.max", "memory/memory.limit_in_bytes"); ok && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(max(int64(limit)/memoryLimitDivisor, minMemory))
	}
}

// Releaser returns unused memory to the kernel when PID 1 becomes idle. This happens after the boot, after a burst of starts or
// crashes, and after requests to the control API. The zero value is ready to use. Only one goroutine may use it.
type Releaser struct {
	heapAfterRelease uint64 // size of the heap in bytes after the last release
}

// Release returns unused memory to the kernel. Call it when PID 1 has been idle for [ReleaseDelay], and again after
// [SecondReleaseDelay]. final is true for the last call before PID 1 works again. Release collects garbage only if the heap has
// grown. A collection with hundreds of services takes a few milliseconds; without one, Release takes a tenth of a
// millisecond.
func (r *Releaser) Release(final bool) {
	defer dropProgramText()
	growth := uint64(minHeapGrowth)
	if !final {
		growth = max(growth, r.heapAfterRelease/8)
	}
	if r.heapAfterRelease != 0 && heapInUse() < r.heapAfterRelease+growth {
		return
	}
	// The stacks of waiting log pumps are four times too large, because opening a file once needed a deep stack. Each
	// collection halves stacks that are mostly empty, so two are enough. FreeOSMemory makes the second.
	runtime.GC()
	debug.FreeOSMemory()
	r.heapAfterRelease = heapInUse()
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// dropProgramText gives the memory of the program's code and constants back (madvise(2), MADV_DONTNEED). When a page is used
// again, the kernel maps it from the page cache. All these mappings are read-only mappings of a file, so nothing is lost.
func dropProgramText() {
	self, _ := os.Readlink("/proc/self/exe") // if /proc is not mounted, there are no lines below
	maps, _ := os.ReadFile("/proc/self/maps")
	var ranges [][2]uintptr // all are dropped at once, because the kernel maps 64 KiB around each page that this code uses
	for line := range strings.Lines(string(maps)) {
		// example of a line: 00400000-007f6000 r-xp 00000000 fe:00 4711 /init (proc_pid_maps(5))
		f := strings.Fields(line)
		if len(f) != 6 || f[5] != self || !strings.HasPrefix(f[1], "r-") {
			continue
		}
		var r [2]uintptr
		if n, _ := fmt.Sscanf(f[0], "%x-%x", &r[0], &r[1]); n == 2 {
			ranges = append(ranges, r)
		}
	}
	for _, r := range ranges {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, r[0], r[1]-r[0], unix.MADV_DONTNEED)
	}
}
