package tuning

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRestTakesTheImageOutOfMemoryAndTheProgramGoesOn(t *testing.T) {
	before := residentFileKB(t)
	dropProgramText()
	if after := residentFileKB(t); after >= before {
		t.Errorf("%d kB of files are mapped after resting, %d kB before", after, before)
	}
}

// No page with constants of the program may be resident just after the drop. If the drop uses constants between its system
// calls, the kernel maps 64 KiB around each, and PID 1 keeps half a megabyte more.
func TestRestLeavesNoConstantsOfTheImage(t *testing.T) {
	smaps, err := unix.Open("/proc/self/smaps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(smaps)
	buf := make([]byte, 64<<10)
	for range 20 { // another thread, such as the collector's, may use constants in between
		dropProgramText()
		n, err := unix.Pread(smaps, buf, 0)
		_, constants, found := strings.Cut(string(buf[:max(n, 0)]), " r--p ")
		_, resident, _ := strings.Cut(constants, "\nRss:")
		kB := strings.Fields(resident)
		if err != nil || !found || len(kB) == 0 {
			t.Fatalf("no constants are mapped (%v):\n%s", err, buf[:max(n, 0)])
		}
		if kB[0] == "0" {
			return
		}
	}
	t.Error("each drop leaves constants")
}

func TestTheHeapIsHeldToAPartOfTheContainersMemory(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	dir := t.TempDir()
	for _, tt := range []struct {
		file, text, variable string
		want                 int64
	}{
		{"memory.max", "max\n", "", before},
		{"memory.max", "536870912\n", "30MiB", before},
		{"memory.max", "536870912\n", "", 64 << 20},
		{"memory.max", "41943040\n", "", 24 << 20},
		{"memory/memory.limit_in_bytes", "1073741824\n", "", 128 << 20},
	} {
		t.Setenv("GOMEMLIMIT", tt.variable)
		debug.SetMemoryLimit(before)
		_ = os.RemoveAll(dir)
		if err := errors.Join(os.MkdirAll(dir+"/memory", 0o755), os.WriteFile(dir+"/"+tt.file, []byte(tt.text), 0o600)); err != nil {
			t.Fatal(err)
		}
		limitMemory(dir)
		if got := debug.SetMemoryLimit(-1); got != tt.want {
			t.Errorf("%+v: %d", tt, got)
		}
	}
}

func TestRestGivesBackWhatABurstNeeded(t *testing.T) {
	var r Releaser
	r.Release(false)
	calm := r.heapAfterRelease
	grown := func() uint64 {
		burst := bytes.Repeat([]byte{1}, 8<<20)
		defer runtime.KeepAlive(burst)
		return heapInUse()
	}()
	if grown < calm+1<<20 {
		t.Fatalf("the heap is %d in a burst, %d before", grown, calm)
	}
	r.Release(false)
	if r.heapAfterRelease >= grown-4<<20 {
		t.Errorf("the heap is %d after resting, %d during the burst", r.heapAfterRelease, grown)
	}
}

// PID 1 must collect the garbage of a boot or of a periodic task when it is idle. This garbage may be too little for a
// collection during work.
func TestPID1KeptAnEighthOfItsHeapAsGarbageAtRest(t *testing.T) {
	kept := bytes.Repeat([]byte{1}, 32<<20)
	defer runtime.KeepAlive(kept)
	collections := func() uint32 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NumGC
	}
	var r Releaser
	r.Release(false)
	for final, collects := range map[bool]bool{false: false, true: true} {
		_ = bytes.Repeat([]byte{1}, 1<<20)
		before := collections()
		if r.Release(final); (collections() > before) != collects {
			t.Errorf("the last call of a rest: %v, and it collects: %v", final, !collects)
		}
	}
}

func TestEveryRestDropsTheImage(t *testing.T) {
	var r Releaser
	r.Release(false)
	_ = fmt.Sprint(os.ReadDir("/proc/self")) // brings a part of the program's file back into memory
	before := residentFileKB(t)
	r.heapAfterRelease = 1 << 40 // the heap was so large that no collection would be worth its cost
	r.Release(false)
	if after := residentFileKB(t); after >= before {
		t.Errorf("%d kB of files are mapped after resting once more, %d kB before", after, before)
	}
}

// residentFileKB returns the resident pages of files, in kB (proc_pid_smaps(5)). The counters in /proc/self/status are
// inexact before Linux 6.2.
func residentFileKB(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		t.Fatal(err)
	}
	kB := make(map[string]int)
	for line := range bytes.Lines(text) {
		if f := bytes.Fields(line); len(f) == 3 {
			kB[string(f[0])], _ = strconv.Atoi(string(f[1]))
		}
	}
	if kB["Rss:"] == 0 {
		t.Fatal("the kernel does not tell Rss")
	}
	return kB["Rss:"] - kB["Anonymous:"]
}
