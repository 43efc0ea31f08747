package tuning

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"testing"
)

func TestRestTakesTheImageOutOfMemoryAndTheProgramGoesOn(t *testing.T) {
	before := residentFile(t)
	dropProgramText()
	if after := residentFile(t); after >= before {
		t.Errorf("%d kB of files are mapped after resting, %d kB before", after, before)
	}
}

func TestRestGivesBackWhatABurstNeeded(t *testing.T) {
	var r Releaser
	r.Release()
	calm := r.last
	grown := func() uint64 {
		burst := bytes.Repeat([]byte{1}, 8<<20)
		defer runtime.KeepAlive(burst)
		return heapInUse()
	}()
	if grown < calm+1<<20 {
		t.Fatalf("the heap is %d in a burst, %d before", grown, calm)
	}
	r.Release()
	if r.last >= grown-4<<20 {
		t.Errorf("the heap is %d after resting, %d during the burst", r.last, grown)
	}
}

func TestEveryRestDropsTheImage(t *testing.T) {
	var r Releaser
	r.Release()
	_ = fmt.Sprint(os.ReadDir("/proc/self")) // it maps some of the program again
	before := residentFile(t)
	r.last = 1 << 40 // no heap has grown so far that a collection would pay
	r.Release()
	if after := residentFile(t); after >= before {
		t.Errorf("%d kB of files are mapped after resting once more, %d kB before", after, before)
	}
}

// residentFile returns the resident pages of files, in kB (proc_pid_status(5)).
func residentFile(t *testing.T) (kB int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(status) {
		if n, _ := fmt.Sscanf(string(line), "RssFile: %d kB", &kB); n == 1 {
			return kB
		}
	}
	t.Fatal("the kernel does not tell RssFile")
	return 0
}
