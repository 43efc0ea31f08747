package blocking

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// nudgeAfter is the time after which a signal interrupts a call in Peer, and the time between further signals.
	nudgeAfter = 5 * time.Millisecond
	// passRights is the option SO_PASSRIGHTS of socket(7), which Linux has since 6.16.
	passRights = 83
)

// Peer works like Do, for a call that receives from the socket of a process that root doesn't trust. Such a call normally
// doesn't wait. But during the call the kernel closes file descriptors that the peer has passed. Closing a TCP socket can
// take as long as the peer has set with SO_LINGER. Peer interrupts that wait with a signal. Peer calls f on a locked
// thread.
func Peer(f func() error) error {
	return Do(Peers, func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var over atomic.Bool
		defer over.Store(true)
		thread := unix.Gettid()
		defer time.AfterFunc(nudgeAfter, func() {
			for ; !over.Load(); <-time.After(nudgeAfter) {
				_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG) // the runtime ignores this signal if it did not send it
			}
		}).Stop()
		return f()
	})
}

// RefuseDescriptors makes the kernel refuse file descriptors that are sent to the Unix socket fd, or to the connections of the
// listener fd. Older kernels can't do that; see [Peer].
func RefuseDescriptors(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, passRights, 0) }

// Drain reads the remaining data from a socket before it is closed, and prevents further data. Without Drain the close could wait
// because of a passed TCP socket, see [Peer].
func Drain(fd uintptr) {
	_ = Peer(func() error {
		_ = unix.Shutdown(int(fd), unix.SHUT_RD) // the error doesn't matter: the peer may have closed the socket
		var rest [4096]byte
		for {
			if n, err := unix.Read(int(fd), rest[:]); n <= 0 && err != unix.EINTR {
				return err
			}
		}
	})
}
