package control

import (
	"bytes"
	"os"
	"strconv"
)

// residentMemory returns the resident memory of a process in bytes, 0 when it is not known: there is no process, it is
// gone, or /proc hides it. The second number of statm counts pages (proc(5)). A process that ended since the snapshot was
// taken is still there as a zombie, with 0, or its number is free; another process with the same number would need all
// numbers to be used once in between.
func residentMemory(pid int) uint64 {
	if pid <= 0 {
		return 0
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(b)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}
