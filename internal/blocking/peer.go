package blocking

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// nudgeAfter is how long a call that waits for nothing may take before a signal ends what it waits for.
	nudgeAfter = 5 * time.Millisecond
	// passRights is SO_PASSRIGHTS of socket(7), from Linux 6.16 on.
	passRights = 83
)

// Peer is Do for a call that takes from the socket of a process that root doesn't trust. Such a call does not wait by itself. But
// the kernel closes in it the descriptors that the peer has passed. The close of a TCP socket waits as long as the peer has set
// by SO_LINGER. A signal ends that wait. f is called with the thread locked.
func Peer(f func() error) error {
	return Do(Peers, func() error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var over atomic.Bool
		defer over.Store(true)
		thread := unix.Gettid()
		defer time.AfterFunc(nudgeAfter, func() {
			for ; !over.Load(); <-time.After(nudgeAfter) {
				_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG) // the runtime takes it for one of its own
			}
		}).Stop()
		return f()
	})
}

// RefuseDescriptors makes the kernel refuse descriptors that are sent to a Unix socket, or to the connections of a listener. Older kernels
// can't; see [Peer].
func RefuseDescriptors(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, passRights, 0) }

// Drain takes what is unread from a socket that is about to be closed, and lets nothing more come: the close would wait as in [Peer].
func Drain(fd uintptr) {
	_ = Peer(func() error {
		_ = unix.Shutdown(int(fd), unix.SHUT_RD) // it may be closed by the peer
		var rest [4096]byte
		for {
			if n, err := unix.Read(int(fd), rest[:]); n <= 0 && err != unix.EINTR {
				return err
			}
		}
	})
}
