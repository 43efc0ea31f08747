package control

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// residentMemory returns the resident memory of a process in bytes, 0 when it is not known: there is no process, it is
// gone, or /proc hides it. The second number of statm counts pages (proc(5)). A process that ended since the snapshot was
// taken is still there as a zombie, with 0, or its number is free; another process with the same number would need all
// numbers to be used once in between.
func residentMemory(pid int) uint64 {
	if pid <= 0 {
		return 0
	}
	// Straight system calls: os.ReadFile would offer the file to the poller, and this is asked for hundreds of processes.
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/statm", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	var buffer [128]byte
	n, err := unix.Read(fd, buffer[:])
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(buffer[:n], []byte{' '})
	resident, _, _ := bytes.Cut(rest, []byte{' '})
	pages, err := strconv.ParseUint(string(resident), 10, 64)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}
