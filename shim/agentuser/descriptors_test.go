package agentuser

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestCloseOnExecByName(t *testing.T) {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for name, fn := range map[string]func() error{"close_range": CloseOnExec, "by name": closeOnExecByName} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			t.Fatal(err)
		}
		if err := fn(); err != nil {
			t.Fatal(err)
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%s: flags %#x, %v", name, flags, err)
		}
		if flags, err := unix.FcntlInt(0, unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
			t.Errorf("%s: stdin has flags %#x, %v", name, flags, err)
		}
	}
}
