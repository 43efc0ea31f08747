package watch

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Detach makes the kernel close the inotify instances of this process after the process has exited, instead of during its exit.
// This makes the exit faster, because the last close of an instance takes up to 20 ms for every processor. Call Detach shortly
// before the process exits. The instances keep their watches. If Detach fails, the exit is merely slower.
//
// It sends the descriptors of the instances over a socket, together with the socket itself. So the instances stay open when
// this process has closed them. After its exit, no process can receive them, and the kernel closes them in a kernel thread
// (unix(7), since Linux 6.9). An older kernel closes them during the exit.
func Detach() {
	if fds := inotifyInstances(); len(fds) > 0 {
		_, _, _ = sendToSocket(fds) // without success, the exit is slower
	}
}

// sendToSocket sends the descriptors from one socket to its peer, where they stay in the queue. It returns the receiving and the
// sending socket. Both must stay open.
func sendToSocket(fds []int) (to, from int, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, err
	}
	if err = unix.Sendmsg(pair[1], []byte{0}, unix.UnixRights(append(fds, pair[0])...), nil, 0); err != nil {
		unix.Close(pair[0])
		unix.Close(pair[1])
	}
	return pair[0], pair[1], err
}

// inotifyInstances returns the inotify descriptors of this process.
func inotifyInstances() (fds []int) {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // after an error, use the names read so far
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		// This call fails with ENOENT on an inotify instance, and with another error on any other descriptor.
		if _, err = unix.InotifyAddWatch(fd, "", unix.IN_ATTRIB); errors.Is(err, unix.ENOENT) {
			fds = append(fds, fd)
		}
	}
	return fds
}
