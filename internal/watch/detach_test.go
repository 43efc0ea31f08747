package watch

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDetachedInotifyOutlivesItsDescriptor(t *testing.T) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE); err != nil {
		t.Fatal(err)
	}
	if found := inotifyInstances(); !slices.Contains(found, fd) {
		t.Fatalf("descriptor %d is an inotify instance, and only %v are found", fd, found)
	}
	to, from, err := sendToSocket([]int{fd})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(to)
	defer unix.Close(from)
	unix.Close(fd)
	if err := os.WriteFile(dir+"/new", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	rights := make([]byte, unix.CmsgSpace(2*4))
	_, n, _, _, err := unix.Recvmsg(to, make([]byte, 1), rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d messages, %v", len(messages), err)
	}
	held, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(held) != 2 {
		t.Fatalf("the socket holds %v, %v; want the instance and the socket itself", held, err)
	}
	defer unix.Close(held[0])
	defer unix.Close(held[1])
	if n, err := unix.Read(held[0], make([]byte, 4096)); n <= 0 {
		t.Errorf("the instance has lost its watch: %d, %v", n, err)
	}
}

func TestOnlyInotifyIsDetached(t *testing.T) {
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	found := inotifyInstances()
	for _, other := range []int{int(file.Fd()), int(dir.Fd()), pipe[0], pipe[1]} {
		if slices.Contains(found, other) {
			t.Errorf("descriptor %d is taken for an inotify instance", other)
		}
	}
}
