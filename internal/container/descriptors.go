package container

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// keepDescriptors sees to it that nothing started from here inherits more than the three standard descriptors: whoever
// started the init may have left others open, to files that the agent must not read.
func keepDescriptors() {
	if unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	entries, err := os.ReadDir("/proc/self/fd") // a kernel before 5.11, or seccomp
	if err != nil {
		return
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}
