package tenants_test

import (
	"errors"
	"flag"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// terminalsRow is a resource with a machine-wide limit, so it is tested only with -machine.
const terminalsRow = "pseudoterminals"

var wholeMachine = flag.Bool("machine", false, "also take all pseudoterminals of the machine; other programs get none meanwhile")

// openAll opens kernel objects until that fails, and keeps them until release is called.
func openAll(open func() (io.Closer, error)) (release func()) {
	var kept []io.Closer
	for {
		one, err := open()
		if err != nil {
			return func() {
				for _, c := range kept {
					_ = c.Close()
				}
			}
		}
		kept = append(kept, one)
	}
}

// openOne opens an object of the kernel, and closes it.
func openOne(open func() (io.Closer, error)) error {
	one, err := open()
	if err != nil {
		return err
	}
	return one.Close()
}

// timer is the ID of a timer that never expires, for which the kernel reserves a queued signal.
type timer int32

// Close implements [io.Closer].
func (t timer) Close() error { return syscall3(unix.SYS_TIMER_DELETE, uintptr(t), 0, 0) }

func newTimer() (io.Closer, error) {
	var id timer
	err := syscall3(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&id)))
	return id, err
}

// files are closed together.
type files []*os.File

func (all files) Close() (err error) {
	for _, f := range all {
		err = errors.Join(err, f.Close())
	}
	return err
}

// newPipe creates a pipe with the maximum buffer.
func newPipe() (io.Closer, error) {
	const most = 1 << 20
	from, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	pipe := files{from, to}
	if _, err := unix.FcntlInt(from.Fd(), unix.F_SETPIPE_SZ, most); err != nil {
		return nil, errors.Join(err, pipe.Close())
	}
	return pipe, nil
}

// newMessage queues a message with the maximum number of descriptors on a Unix socket.
func newMessage() (io.Closer, error) {
	const most = 253 // Value of SCM_MAX_FD.
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ends := files{os.NewFile(uintptr(pair[0]), "sender"), os.NewFile(uintptr(pair[1]), "receiver")}
	fds := make([]int, most)
	if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fds...), nil, 0); err != nil { // Send descriptor 0 repeatedly.
		return nil, errors.Join(err, ends.Close())
	}
	return ends, nil
}
